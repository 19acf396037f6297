"""Floating-point arithmetic. Source: PTX ISA, "Floating-Point Instructions" and the chapters on
half and mixed precision.

The approximate functions (`.approx`, `.full`) give the float64 value rounded once: hardware may
differ by as much as the PTX ISA says for each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator import ieee
from ptx.emulator.form import Form, elementwise
from ptx.emulator.instructions.table import FLOATS, PACKED_HALVES, ROUNDINGS, instruction
from ptx.emulator.lanes import UNSIGNED, Step, numpy_type
from ptx.isa.dtypes import DTYPES, DType

__all__ = ["maximum", "minimum", "packed"]

_WIDE = ("f32", "f64")


_ROUNDED = {"add": ieee.add, "sub": lambda a, b, mode: ieee.add(a, -b, mode), "mul": ieee.multiply}


@instruction(*_ROUNDED, kind="float")
def _rounded(form: Form) -> Step:
    dtype, mode = form.dtype(*FLOATS), form.choice(*ROUNDINGS, default="rn")
    function = _ROUNDED[form.instruction.opcode]
    return _float(form, lambda a, b: function(a, b, mode), 2, dtype)


@instruction("fma", kind="float")
@instruction("mad", kind="float")
def _fma(form: Form) -> Step:
    dtype, mode = form.dtype(*FLOATS), form.choice(*ROUNDINGS)
    relu = form.has("relu")

    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        result = ieee.fma(a, b, c, mode)
        return ieee.relu(result) if relu else result

    return _float(form, function, 3, dtype)


_DIVISIONS: dict[str, tuple[Callable[..., np.ndarray], int, tuple[str, ...]]] = {
    "div": (ieee.divide, 2, ("approx", "full")),
    "rcp": (lambda a, mode: ieee.divide(np.ones(1, a.dtype), a, mode), 1, ("approx",)),
    "sqrt": (ieee.square_root, 1, ("approx",)),
}


@instruction("div", kind="float")
@instruction("rcp", "sqrt")
def _division(form: Form) -> Step:
    function, sources, approximations = _DIVISIONS[form.instruction.opcode]
    dtype, choice = form.dtype(*_WIDE), form.choice(*ROUNDINGS, *approximations)
    mode = "rn" if choice in approximations else choice
    return _float(form, lambda *values: function(*values, mode), sources, dtype)


_HALVES_TOO = ("f32", "f16", "f16x2", "bf16", "bf16x2")
_APPROXIMATIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[str, ...]]] = {
    "rsqrt": (lambda a: 1 / np.sqrt(a), _WIDE),
    "ex2": (np.exp2, _HALVES_TOO),
    "lg2": (np.log2, ("f32",)),
    "sin": (np.sin, ("f32",)),
    "cos": (np.cos, ("f32",)),
    "tanh": (np.tanh, _HALVES_TOO),
}


@instruction(*_APPROXIMATIONS)
def _approximation(form: Form) -> Step:
    """A function that is computed in float64 and rounded once."""
    form.choice("approx")
    function, dtypes = _APPROXIMATIONS[form.instruction.opcode]

    def rounded(a: np.ndarray) -> np.ndarray:
        return ieee.canonical(ieee.narrow(function(a.astype(np.float64)), a.dtype))

    return _float(form, rounded, 1, form.dtype(*dtypes))


@instruction("min", "max", kind="float")
def _extreme(form: Form) -> Step:
    dtype, propagate = form.dtype(*FLOATS), form.has("NaN")
    function = minimum if form.instruction.opcode == "min" else maximum
    return _float(form, lambda a, b: function(a, b, propagate), 2, dtype)


@instruction("copysign")
def _copysign(form: Form) -> Step:
    dtype = form.dtype(*_WIDE)
    return _float(form, lambda a, b: np.copysign(b, a), 2, dtype, exact=True)


@instruction("testp")
def _testp(form: Form) -> Step:
    dtype = form.dtype(*_WIDE)
    tiny = np.finfo(numpy_type(dtype)).tiny
    test = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= tiny) | (a == 0)),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < tiny),
    }
    name = form.choice(*test)
    return elementwise(form, test[name], [dtype], DTYPES["pred"])


def minimum(a: np.ndarray, b: np.ndarray, propagate: bool) -> np.ndarray:
    """The lesser number; -0 < +0. A NaN counts for nothing, or wins with `propagate`."""
    lesser = np.where((a < b) | (b != b) | ((a == b) & np.signbit(a)), a, b)
    return _or_nan(lesser, a, b, propagate)


def maximum(a: np.ndarray, b: np.ndarray, propagate: bool) -> np.ndarray:
    """The greater number; see `minimum`."""
    greater = np.where((a > b) | (b != b) | ((a == b) & ~np.signbit(a)), a, b)
    return _or_nan(greater, a, b, propagate)


def packed(function: Callable[..., np.ndarray], dtype: DType) -> Callable[..., np.ndarray]:
    """A function of floats, made one of registers of `dtype`, which may be packed halves."""
    half = PACKED_HALVES.get(dtype.name)
    if half is None:
        return function

    def on_registers(*registers: np.ndarray) -> np.ndarray:
        halves = [np.ascontiguousarray(r).view(half).reshape(-1, 2) for r in registers]
        return np.ascontiguousarray(function(*halves)).view(np.uint32).reshape(-1)

    return on_registers


def _or_nan(value: np.ndarray, a: np.ndarray, b: np.ndarray, propagate: bool) -> np.ndarray:
    if propagate:
        value = np.where(a != a, a, np.where(b != b, b, value))
    return ieee.canonical(value)


def _float(
    form: Form,
    function: Callable[..., np.ndarray],
    sources: int,
    dtype: DType,
    *,
    exact: bool = False,
) -> Step:
    """An instruction of floats, with `.ftz` and `.sat` where it has them."""
    flush = not exact and dtype.name in ("f32", "f16", "f16x2", "f64") and form.has("ftz")
    clamp = not exact and dtype.name in ("f32", "f16", "f16x2") and form.has("sat")

    def whole(*values: np.ndarray) -> np.ndarray:
        if flush:
            values = tuple(ieee.flush(value) for value in values)
        result = function(*values)
        if clamp:
            result = ieee.saturate(result)
        return ieee.flush(result) if flush else result

    plain = whole if flush or clamp else function
    return elementwise(form, packed(plain, dtype), [dtype] * sources, dtype)


@instruction("abs", "neg", kind="float")
def _sign(form: Form) -> Step:
    dtype, negate = form.dtype(*FLOATS), form.instruction.opcode == "neg"

    def on_bits(a: np.ndarray) -> np.ndarray:
        kind = UNSIGNED[a.dtype.itemsize * 8]
        sign = kind(1 << (a.dtype.itemsize * 8 - 1))
        bits = a.view(kind)
        return (bits ^ sign if negate else bits & ~sign).view(a.dtype)

    return _float(form, on_bits, 1, dtype)
