"""Atomic operations on memory. Source: PTX ISA, "atom", "red"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptx.builder.text import register_type
from ptx.builder.values import Scalar, Val
from ptx.isa.dtypes import DType, b32, bf16, f16, f32, pred, s64

if TYPE_CHECKING:
    from ptx.builder.pointers import Pointer

__all__ = ["atom", "compare_and_swap", "red", "red_by_cas"]


def red(
    pointer: Pointer,
    index: Val | int,
    value: Scalar | Sequence[Scalar],
    operation: str = "add",
    where: Val | None = None,
) -> None:
    """Changes memory atomically without an answer.

    Args:
      pointer: global or shared memory. On shared memory f32 adds are compare-and-swap loops.
      index: in elements.
      value: one value, or 2 or 4 f32 that are added with one instruction (sm_90; not one
        transaction: each element is atomic by itself. Denormals are flushed).
      operation: "add"; "min" and "max" of integers.
      where: a predicate that guards it.

    Raises:
      UnsupportedError: the target lacks it, for example bf16 below sm_90: see `red_by_cas`.
    """
    place = pointer + index
    source = pointer.stored(value)
    count = len(value) if isinstance(value, Sequence) else 1
    vector = f".v{count}" if count > 1 else ""
    name = f"red.{pointer.space}.{_operation(pointer, operation)}{vector}"
    name += f".{_spelled(pointer.dtype, operation)}"
    pointer.kernel.emit(name, place.address(), source, where=where)


def atom(
    pointer: Pointer,
    index: Val | int,
    value: Scalar,
    operation: str = "add",
    where: Val | None = None,
) -> Val:
    """Changes memory atomically and returns what was there before.

    Args:
      pointer: global or shared memory.
      index: in elements.
      value: the operand.
      operation: "add", "min" and "max" of integers, "exch" of any 32- or 64-bit type.
      where: a predicate that guards it; where it is off, the result is 0.
    """
    kernel, dtype = pointer.kernel, pointer.dtype
    name = f"atom.{pointer.space}.{_operation(pointer, operation)}.{_spelled(dtype, operation)}"
    place = pointer + index
    source = kernel.literal(value, dtype)
    old = kernel.fresh(dtype, name)
    if where is not None:
        kernel.emit(f"mov.{register_type(dtype)}", old, kernel.literal(0, dtype))
    kernel.emit(name, old, place.address(), source, where=where)
    return old


def compare_and_swap(pointer: Pointer, index: Val | int, expected: Scalar, value: Scalar) -> Val:
    """Writes `value` where memory holds the bits of `expected`; returns what was there."""
    kernel, dtype = pointer.kernel, pointer.dtype
    place = pointer + index
    old, new = (kernel.literal(v, dtype) for v in (expected, value))
    name = f"atom.{pointer.space}.cas.b{dtype.bits}"
    return kernel.op(name, dtype, place.address(), old, new)


def red_by_cas(pointer: Pointer, index: Val | int, value: Val) -> None:
    """Adds to an f16 or bf16 in memory with a compare-and-swap loop, on every target.

    The sum is formed in f32 and rounded to nearest even. The first guess is zero rather than a
    load: a load beside atomic writes would be a race, and a wrong guess costs no more.
    """
    if pointer.dtype not in (f16, bf16) or value.dtype is not pointer.dtype:
        raise TypeError(f"red_by_cas adds f16 or bf16, not {value!r} to {pointer.dtype}")
    kernel = pointer.kernel
    place = pointer + index
    addend = kernel.convert(value, f32)
    seen = kernel.var(pointer.dtype, 0.0)
    swapped = kernel.var(b32, 0)
    with kernel.while_(lambda: swapped.eq(0)):
        total = kernel.convert(kernel.convert(seen, f32) + addend, pointer.dtype, "rn")
        old = compare_and_swap(place, 0, seen, total)
        same = kernel.op("setp.eq.b16", pred, old, seen)
        swapped.set(kernel.select(same, 1, 0, b32))
        seen.set(old)


def _operation(pointer: Pointer, operation: str) -> str:
    halves = pointer.dtype.lanes == 2 or pointer.dtype in (f16, bf16)
    return f"{operation}.noftz" if halves and operation == "add" else operation


def _spelled(dtype: DType, operation: str) -> str:
    """The type in an instruction's name: PTX adds 64-bit integers as u64 and swaps bits."""
    if operation == "exch":
        return f"b{dtype.bits}"
    return "u64" if dtype is s64 and operation == "add" else dtype.name
