"""Conversions between types. Source: PTX ISA, "cvt"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator import ieee
from ptx.emulator.form import Form, elementwise
from ptx.emulator.instructions.float8 import PAIRS, convert_pair
from ptx.emulator.instructions.table import PACKED_HALVES, instruction
from ptx.emulator.lanes import Step, numpy_type
from ptx.isa.dtypes import DTYPES, DType, b32, f32, f64

__all__: list[str] = []

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_EXACT = {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64")}

Conversion = Callable[[np.ndarray], np.ndarray]


@instruction("cvt")
def _cvt(form: Form) -> Step:
    if set(PAIRS) & set(form.instruction.modifiers):
        return convert_pair(form)
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
    integral, mode = form.choice(*_INTEGRAL, default=""), form.choice(*_ROUNDINGS, default="")
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
    of_nan = np.array([1 << (8 * result.bytes - 1) if wide else 0], f"u{result.bytes}").view(kind)[
        0
    ]

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
    mode, kind = form.choice(*_ROUNDINGS), numpy_type(result)
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

    return elementwise(form, convert, [f32], DTYPES["b32"])
