"""Several neighbouring elements at once: in memory as they are, in registers in f32 or f64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DTYPES, DType, f32, f64

__all__ = [
    "accumulator_of",
    "add_weighted",
    "any_infinite",
    "both",
    "load_elements",
    "load_words",
    "store_elements",
    "store_vector",
    "vector_width",
    "widen",
]


def accumulator_of(dtype: DType) -> DType:
    """The type that elements are calculated with."""
    return f64 if dtype is f64 else f32


def vector_width(dtype: DType, *extents: int) -> int:
    """Elements of the widest vector, of 16 bytes at most, that divides all extents."""
    return math.gcd(16 // dtype.bytes, *extents)


@overload
def both(a: Val, b: Val | None) -> Val: ...
@overload
def both(a: Val | None, b: Val | None) -> Val | None: ...
def both(a: Val | None, b: Val | None) -> Val | None:
    """The predicate that both hold; None holds always."""
    return b if a is None else a if b is None else a & b


def load_words(pointer: Pointer, count: int, *, where: Val | None = None) -> tuple[Val, ...]:
    """Reads `count` elements with one instruction, zeros where the predicate is off.

    Returns:
      Registers as they come from memory: two halves in one, unless `count` is 1.
    """
    if count == 1:
        return (pointer.load(where=where),)
    if pointer.dtype.bytes == 2:
        packed = pointer.view(DTYPES[f"{pointer.dtype}x2"])
        return packed.load(0, count // 2, where=where)
    return pointer.load(0, count, where=where)


def widen(k: Kernel, words: Sequence[Val]) -> list[Val]:
    """The elements of `load_words` as f32, or f64 for f64."""
    elements: list[Val] = []
    for word in words:
        if word.dtype.lanes == 2:
            elements += k.unpack(word, f32)
        else:
            elements.append(word if word.dtype in (f32, f64) else k.convert(word, f32))
    return elements


def load_elements(pointer: Pointer, count: int, *, where: Val | None = None) -> list[Val]:
    """Reads `count` neighbours as f32, or f64 for f64, zeros where the predicate is off.

    The pointer is to a multiple of `count` elements.
    """
    width = vector_width(pointer.dtype, count)
    words: list[Val] = []
    for i in range(0, count, width):
        words += load_words(pointer + i, width, where=where)
    return widen(pointer.kernel, words)


def store_elements(pointer: Pointer, values: Sequence[Val], *, where: Val | None = None) -> None:
    """Writes as many neighbours as `load_elements` reads."""
    width = vector_width(pointer.dtype, len(values))
    for i in range(0, len(values), width):
        store_vector(pointer + i, values[i : i + width], where=where)


def store_vector(
    pointer: Pointer, values: Sequence[Val], *, where: Val | None = None, hint: str | None = None
) -> None:
    """Writes f32 or f64 values as neighbouring elements of the pointer's type, rounded to it."""
    k, dtype = pointer.kernel, pointer.dtype
    if dtype.bytes == 2 and len(values) > 1:
        packed = DTYPES[f"{dtype}x2"]
        words = [
            k.pack(low, high, packed) for low, high in zip(values[::2], values[1::2], strict=True)
        ]
        pointer = pointer.view(packed)
    elif dtype.bytes == 2:
        words = [k.convert(value, dtype, "rn") for value in values]
    else:
        words = list(values)
    pointer.store(0, words[0] if len(words) == 1 else words, where=where, hint=hint)


def any_infinite(values: Sequence[Val]) -> Val:
    """The predicate that zero times one of the values is not zero: it is infinite, or NaN."""
    total = values[0] * 0.0
    for value in values[1:]:
        total = total.kernel.fma(value, 0.0, total)
    return total.ne(0.0)


def add_weighted(
    pointer: Pointer,
    weight: Val,
    values: Sequence[Val],
    infinite: Val,
    *,
    where: Val | None,
    together: int = 1,
) -> None:
    """Adds weighted values to neighbouring elements atomically, unless that would change nothing.

    Where samples lie on pixels, as they do when training starts, three of four corners have a
    weight of zero.

    Args:
      pointer: the first element.
      weight: of the pointer's type, as the values are.
      values: the values.
      infinite: `any_infinite` of them: zero times infinity is added, since it is NaN.
      where: a predicate that guards all additions.
      together: elements that one instruction adds to.
    """
    where = both(weight.ne(0.0) | infinite, where)
    for i in range(0, len(values), together):
        added = [weight * value for value in values[i : i + together]]
        pointer.red(i, added[0] if together == 1 else added, where=where)
