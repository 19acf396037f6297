"""Conversions between types. Source: PTX ISA, "cvt"."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ptx.emulator import ieee
from ptx.emulator.form import Form, elementwise
from ptx.emulator.instructions.table import PACKED_HALVES, ROUNDINGS, instruction
from ptx.emulator.lanes import Step, numpy_type
from ptx.isa.dtypes import DType, b16, b32, f32, f64

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_EXACT = {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64")}
_BYTE_PAIRS = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
_BYTE_NAN = np.uint8(0x7F)

Conversion = Callable[[np.ndarray], np.ndarray]


@instruction("cvt")
def _cvt(form: Form) -> Step:
    if set(_BYTE_PAIRS) & set(form.instruction.modifiers):
        return _byte_pair(form)
    source = form.dtype(*_INTEGERS, *_FLOATS)
    result = form.dtype(*_INTEGERS, *_FLOATS, *PACKED_HALVES, "tf32")
    if result.name in PACKED_HALVES:
        return _pack_halves(form, result, source)
    if result.name == "tf32":
        return _to_tf32(form, source)
    if source.is_float and result.is_float:
        convert = _float_to_float(form, source, result)
    elif source.is_float:
        convert = _float_to_integer(form, source, result)
    elif result.is_float:
        convert = _integer_to_float(form, result)
    else:
        convert = _integer_to_integer(form, source, result)
    read, write = form.read(1, source, wider=True), form.write(0, result, wider=True)
    return lambda active: write(active, convert(read(active)))


def _float_to_float(form: Form, source: DType, result: DType) -> Conversion:
    flush = form.has("ftz")
    clamp, relu = form.has("sat"), form.has("relu")
    kind = numpy_type(result)
    integral, mode = form.choice(*_INTEGRAL, default=""), form.choice(*ROUNDINGS, default="")
    exact = source == result or (source.name, result.name) in _EXACT
    if integral and source != result:
        form.unknown(f"modifier .{integral}")
    if not exact and not mode:
        form.unknown("a rounding is expected")
    if flush and f32 not in (source, result):
        form.unknown("modifier .ftz")

    def convert(a: np.ndarray) -> np.ndarray:
        if flush and source == f32:
            a = ieee.flush(a)
        if integral:
            value = ieee.round_integral(a, integral)
        elif source == result:
            value = a
        else:
            value = ieee.narrow(a.astype(np.float64), kind, mode or "rn")
        value = ieee.canonical(value)
        if clamp:
            value = ieee.saturate(value)
        if relu:
            value = ieee.relu(value)
        return ieee.flush(value) if flush and result == f32 else value

    return convert


def _float_to_integer(form: Form, source: DType, result: DType) -> Conversion:
    mode = form.choice(*_INTEGRAL)
    flush = form.has("ftz")
    form.has("sat")  # integers are clamped in any case
    kind = numpy_type(result)
    least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    # The manual, "cvt": of a NaN, 0 in narrow conversions, and else the highest bit alone.
    wide = source == f64 or result.bytes == 8
    of_nan = kind(least or most // 2 + 1) if wide else kind(0)  # the highest bit

    def convert(a: np.ndarray) -> np.ndarray:
        if flush:
            a = ieee.flush(a)
        value = ieee.round_integral(a.astype(np.float64), mode)
        above, below = value >= most, value <= least
        inside = ~(above | below | (value != value))
        integer = np.where(inside, value, 0).astype(kind)
        integer = np.where(value != value, of_nan, integer)
        integer = np.where(above, kind(most), integer)
        return np.where(below, kind(least), integer)

    return convert


def _integer_to_float(form: Form, result: DType) -> Conversion:
    mode, kind = form.choice(*ROUNDINGS), numpy_type(result)
    clamp = form.has("sat")
    form.has("ftz")  # no integer becomes a denormal

    def convert(a: np.ndarray) -> np.ndarray:
        value = ieee.from_integer(a, kind, mode)
        return ieee.saturate(value) if clamp else value

    return convert


def _integer_to_integer(form: Form, source: DType, result: DType) -> Conversion:
    kind = numpy_type(result)
    if not form.has("sat"):
        return lambda a: a.astype(kind)
    have, want = np.iinfo(numpy_type(source)), np.iinfo(kind)
    low, high = max(int(have.min), int(want.min)), min(int(have.max), int(want.max))
    return lambda a: np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(kind)


def _pack_halves(form: Form, result: DType, source: DType) -> Step:
    """Two float32 to one register; the first goes to the upper half."""
    if source != f32:
        form.unknown(f"source .{source}")
    mode, half = form.choice("rn", "rz"), PACKED_HALVES[result.name]
    relu = form.has("relu")

    def convert(a: np.ndarray) -> np.ndarray:
        value = ieee.canonical(ieee.narrow(a.astype(np.float64), half, mode))
        if relu:
            value = ieee.relu(value)
        return value.view(np.uint16).astype(np.uint32)

    def pack(high: np.ndarray, low: np.ndarray) -> np.ndarray:
        return (convert(high) << np.uint32(16)) | convert(low)

    return elementwise(form, pack, [f32, f32], b32)


def _to_tf32(form: Form, source: DType) -> Step:
    """Rounds off the 13 bits that TF32 lacks; "rna": halfway cases away from zero."""
    if source != f32:
        form.unknown(f"source .{source}")
    mode = form.choice("rna", "rn", "rz")
    relu = form.has("relu")
    if relu and mode == "rna":
        form.unknown("modifier .relu")

    def convert(a: np.ndarray) -> np.ndarray:
        bits = a.view(np.uint32)
        if mode == "rna":
            bits = bits + np.uint32(0x1000)
        elif mode == "rn":
            bits = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        bits = np.where(np.isfinite(a), bits & np.uint32(0xFFFFE000), a.view(np.uint32))
        value = ieee.canonical(bits.view(np.float32))
        if relu:
            value = ieee.relu(value)
        return value.view(np.uint32)

    return elementwise(form, convert, [f32], b32)


def _byte_pair(form: Form) -> Step:
    """From or to two 8-bit floating point numbers, the second one in the lower byte."""
    from_pair = form.instruction.modifiers[-1] in _BYTE_PAIRS
    kind = _BYTE_PAIRS[form.choice(*_BYTE_PAIRS)]
    form.choice("rn")
    relu = form.has("relu")
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
    return np.where(np.isnan(a), _BYTE_NAN, bits).astype(np.uint16)


def _decode(pair: np.ndarray, kind: type, relu: bool) -> np.ndarray:
    value = np.ascontiguousarray(pair).view(kind).astype(np.float16)
    if relu:
        value = np.where(value <= 0, np.float16(0), value)
    return np.ascontiguousarray(ieee.canonical(value)).view(np.uint32)
