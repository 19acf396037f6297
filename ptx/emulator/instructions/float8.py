"""Conversions of pairs of 8-bit floating point numbers. Source: PTX ISA, "cvt"."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ptx.emulator import ieee
from ptx.emulator.form import Form, elementwise
from ptx.emulator.lanes import Step
from ptx.isa.dtypes import DTYPES, f32

__all__ = ["PAIRS", "convert_pair"]

PAIRS = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
_NAN = np.uint8(0x7F)


def convert_pair(form: Form) -> Step:
    """Compiles a `cvt` from or to a pair, whose second number is in the lower byte."""
    from_pair = form.instruction.modifiers[-1] in PAIRS
    kind = PAIRS[form.choice(*PAIRS)]
    form.choice("rn")
    relu = form.has("relu")
    b16, b32 = DTYPES["b16"], DTYPES["b32"]
    if from_pair:
        form.dtype("f16x2")
        return elementwise(form, lambda pair: _decode(pair, kind, relu), [b16], b32)
    form.choice("satfinite")
    if form.dtype("f32", "f16x2") == f32:
        return elementwise(
            form,
            lambda upper, lower: _encode(upper, kind, relu) << 8 | _encode(lower, kind, relu),
            [f32, f32],
            b16,
        )

    def of_halves(halves: np.ndarray) -> np.ndarray:
        numbers = np.ascontiguousarray(halves).view(np.float16).astype(np.float32)
        return _encode(numbers[1::2], kind, relu) << 8 | _encode(numbers[::2], kind, relu)

    return elementwise(form, of_halves, [b32], b16)


def _encode(a: np.ndarray, kind: type, relu: bool) -> np.ndarray:
    """float32 to the nearest number, the largest one where it is beyond; as uint16."""
    largest = float(ml_dtypes.finfo(kind).max)
    least = 0.0 if relu else -largest
    value = np.clip(a, least, largest)
    bits = np.where(relu & (value == 0), np.float32(0), value).astype(kind).view(np.uint8)
    return np.where(np.isnan(a), _NAN, bits).astype(np.uint16)


def _decode(pair: np.ndarray, kind: type, relu: bool) -> np.ndarray:
    value = np.ascontiguousarray(pair).view(kind).astype(np.float16)
    if relu:
        value = np.where(value <= 0, np.float16(0), value)
    return np.ascontiguousarray(ieee.canonical(value)).view(np.uint32)
