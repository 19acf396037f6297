"""Comparisons. Source: PTX ISA, "Comparison and Selection Instructions"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator import ieee
from ptx.emulator.form import Form, Reader, elementwise
from ptx.emulator.instructions.floats import packed
from ptx.emulator.instructions.table import BITS, INTEGERS, PACKED_HALVES, instruction
from ptx.emulator.lanes import Active, Step, numpy_type
from ptx.isa.dtypes import DType, pred

_ORDER = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_ORDER = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_FLOATS = ("f16", "bf16", "f32", "f64")

Comparison = Callable[[np.ndarray, np.ndarray], np.ndarray]


@instruction("setp")
def _setp(form: Form) -> Step:
    dtype = form.dtype(*INTEGERS, *BITS, *_FLOATS, *PACKED_HALVES)
    compare, combine = _comparison(form, dtype), _combination(form)
    a, b = form.read(1, dtype), form.read(2, dtype)
    first, second = form.write_pair(0, pred, pred)
    half = PACKED_HALVES.get(dtype.name)
    if half is not None and second is None:
        form.unknown("packed halves compare into two predicates")

    def step(active: Active) -> None:
        x, y = a(active), b(active)
        if half is None:
            result = compare(x, y)
            other = ~result if second else result
        else:
            x, y = (np.ascontiguousarray(v).view(half).reshape(-1, 2) for v in (x, y))
            result, other = compare(x, y).T
        combined = combine(active, other) if second else None  # before `first` is written
        first(active, combine(active, result))
        if second and combined is not None:
            second(active, combined)

    return step


@instruction("set")
def _set(form: Form) -> Step:
    dtype = form.dtype(*INTEGERS, *BITS, *_FLOATS, *PACKED_HALVES)
    if dtype.name in PACKED_HALVES:
        return _set_halves(form, dtype)
    result = form.dtype("u32", "s32", "f32", "u16", "s16", "f16", "bf16")
    compare, combine = _comparison(form, dtype), _combination(form)
    a, b, write = form.read(1, dtype), form.read(2, dtype), form.write(0, result)
    kind = numpy_type(result)
    true = kind(1) if result.is_float else np.array(-1).astype(kind)

    def step(active: Active) -> None:
        truth = combine(active, compare(a(active), b(active)))
        write(active, np.where(truth, true, kind(0)).astype(kind))

    return step


def _set_halves(form: Form, dtype: DType) -> Step:
    """Each half of the result is 1.0 or 0, or 0xffff or 0 where it is an integer."""
    result, half = form.dtype(dtype.name, "u32", "s32"), PACKED_HALVES[dtype.name]
    compare = _comparison(form, dtype)
    true = np.ones(1, half).view(np.uint16) if result == dtype else np.uint16(0xFFFF)

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(compare(a, b), true, np.uint16(0))

    return elementwise(form, packed(function, dtype), [dtype] * 2, result)


def _combination(form: Form) -> Callable[[Active, np.ndarray], np.ndarray]:
    """What `.and`, `.or`, `.xor` do to the comparison with the last operand."""
    name = form.choice(*_COMBINE, default="")
    if not name:
        return lambda active, result: result
    function = _COMBINE[name]
    third: Reader = form.read(3, pred)
    return lambda active, result: function(result, third(active))


def _comparison(form: Form, dtype: DType) -> Comparison:
    """The comparison; NaN is unequal to all, and `equ`, `ltu`, ... are true of it."""
    flush = dtype.is_float and form.has("ftz")
    if dtype.kind == "bits":
        return _ORDER[form.choice("eq", "ne")]
    if not dtype.is_float:
        names = tuple(_UNSIGNED_ORDER) if dtype.kind == "unsigned" else ()
        name = form.choice(*_ORDER, *names)
        return _ORDER[_UNSIGNED_ORDER.get(name, name)]
    name = form.choice(*_ORDER, *(f"{name}u" for name in _ORDER), "num", "nan")

    def compare(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if flush:
            a, b = ieee.flush(a), ieee.flush(b)
        unordered = (a != a) | (b != b)
        if name in ("num", "nan"):
            return unordered if name == "nan" else ~unordered
        if name in _ORDER:
            return _ORDER[name](a, b) & ~unordered
        return _ORDER[name[:-1]](a, b) | unordered

    return compare
