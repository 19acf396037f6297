"""Changes of type: conversions, reinterpretation, packed halves."""

from __future__ import annotations

from ptx.builder.emitter import Emitter
from ptx.builder.text import check_dtype
from ptx.builder.values import Val
from ptx.isa.dtypes import (
    DTYPES,
    DType,
    b32,
    b64,
    bf16,
    bf16x2,
    f16,
    f32,
    f64,
    pred,
    tf32,
    u16,
    u32,
)

__all__ = ["Conversion"]

_ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


class Conversion(Emitter):
    """The methods of a kernel that change types.

    Source: PTX ISA, "Data Movement and Conversion Instructions: cvt" and ": mov".
    """

    def convert(self, value: Val, dtype: DType, rounding: str | None = None) -> Val:
        """The number `value` as another type.

        Args:
          value: any number type.
          dtype: the type wanted. Integers wrap into narrower ones; floats saturate into integers,
            and NaN becomes 0. bf16 is rounded with integer arithmetic on targets without the
            instruction; NaN stays NaN everywhere.
          rounding: needed where the result may be rounded: "rn" (nearest even), "rz" (toward
            zero), "rm" (down), "rp" (up), "rna" (nearest, ties away; only to tf32).

        Raises:
          TypeError: a conversion that may round without `rounding`, or none that exists.
          UnsupportedError: the target lacks it.
        """
        check_dtype(dtype)
        source = value.dtype
        if source is dtype:
            return value
        if source.kind in ("bits", "predicate") or dtype.kind in ("bits", "predicate"):
            raise TypeError(f"{source} to {dtype} is not a conversion of numbers: use k.bitcast")
        if source.lanes == 2 or dtype.lanes == 2:
            raise TypeError(f"{source} to {dtype}: use k.pack and k.unpack for packed halves")
        if source is tf32:
            return self.convert(self.bitcast(value, f32), dtype, rounding)
        if source in (f16, bf16) and dtype in (f16, bf16, tf32):
            return self.convert(self.convert(value, f32), dtype, rounding)
        if source is bf16 and dtype.is_integer:
            return self.convert(self.convert(value, f32), dtype, rounding)
        if rounding not in (None, *_ROUNDINGS):
            raise TypeError(f"rounding {rounding!r} is none of {', '.join(_ROUNDINGS)}")
        if source.is_integer and dtype.is_integer:
            if source.bits == dtype.bits:
                return self.bitcast(value, dtype)
            return self.op(f"cvt.{dtype}.{source}", dtype, value)
        if not _may_round(source, dtype):
            return self._widened(value, dtype)
        if rounding is None:
            raise TypeError(
                f'{source} to {dtype} may round: say how, as in k.convert(value, {dtype}, "rn")'
            )
        if dtype.is_integer:
            return self.op(f"cvt.{rounding}i.{dtype}.{source}", dtype, value)
        if dtype is bf16 and source is f64:
            return self.convert(self._rounded_to_odd(value), bf16, rounding)
        if dtype is bf16 and source is f32 and not self.target.supports("sm_80"):
            return self._rounded_to_bf16(value, rounding)
        return self.op(f"cvt.{rounding}.{dtype}.{source}", dtype, value)

    def _rounded_to_odd(self, value: Val) -> Val:
        """An f64 as an f32 whose last bit says that there was more: so it can be rounded again.

        Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms
        using rounding to odd" (2008).
        """
        cut = self.convert(value, f32, "rz")
        more = self._kernel.select(self.convert(cut, f64).ne(value), 1, 0, u32)
        return self.bitcast(self.bitcast(cut, u32) | more, f32)

    def round(self, value: Val, rounding: str) -> Val:
        """A float rounded to an integer that stays a float: "rn", "rz", "rm" or "rp"."""
        return self.op(f"cvt.{rounding}i.{value.dtype}.{value.dtype}", value.dtype, value)

    def floor(self, value: Val) -> Val:
        return self.round(value, "rm")

    def bitcast(self, value: Val, dtype: DType) -> Val:
        """The same bits as another type of the same width."""
        check_dtype(dtype)
        if value.dtype is dtype:
            return value
        if value.dtype.bits != dtype.bits or pred in (value.dtype, dtype):
            raise TypeError(f"{value!r} has {value.dtype.bits} bits, and {dtype} {dtype.bits}")
        return self.op(f"mov.b{dtype.bits}", dtype, value)

    # ---- packed halves

    def pack(self, low: Val, high: Val, dtype: DType | None = None, rounding: str = "rn") -> Val:
        """Two values in one register, `low` in the lower half.

        Args:
          low: f16, bf16, or with `dtype` f32, which is rounded; other 16-bit types make a b32,
            32-bit types a b64.
          high: the same type.
          dtype: f16x2 or bf16x2 for two f32.
          rounding: the rounding of f32, "rn" or "rz".
        """
        source = low.dtype
        if high.dtype is not source:
            raise TypeError(f"k.pack takes two of one type, not {low!r} and {high!r}")
        if source is f32 and dtype is not None and dtype.lanes == 2:
            if self.target.supports("sm_80"):
                # cvt puts its first source into the upper half.
                return self.op(f"cvt.{rounding}.{dtype}.f32", dtype, high, low)
            half = DTYPES[dtype.name[:-2]]
            low, high = (self.convert(value, half, rounding) for value in (low, high))
            return self.op("mov.b32", dtype, [low, high])
        if dtype is not None and dtype.name != f"{source}x2":
            raise TypeError(f"k.pack makes no {dtype} of two {source}")
        if source.bits not in (16, 32):
            raise TypeError(f"k.pack takes 16- and 32-bit values, not {source}")
        packed = DTYPES.get(f"{source}x2", b32 if source.bits == 16 else b64)
        return self.op(f"mov.b{packed.bits}", packed, [low, high])

    def unpack(self, value: Val, dtype: DType | None = None) -> tuple[Val, Val]:
        """The lower and upper half of a register.

        Args:
          value: f16x2, bf16x2, or any 32- or 64-bit type with `dtype`.
          dtype: type of the halves; f32 for f16x2 and bf16x2 converts them, which is exact.
        """
        source = value.dtype
        if source.lanes == 2 and dtype in (None, f32):
            if source is bf16x2 and dtype is f32:
                # A bf16 is the upper half of the f32 of the same value.
                bits = self.bitcast(value, b32)
                return self.bitcast(bits << 16, f32), self.bitcast(bits & 0xFFFF0000, f32)
            low, high = self._halves(value, DTYPES[source.name[:-2]])
            return (
                (low, high) if dtype is None else (self.convert(low, f32), self.convert(high, f32))
            )
        if dtype is None or dtype.bits * 2 != source.bits:
            raise TypeError(f"{value!r} has no halves of type {dtype}")
        return self._halves(value, dtype)

    # ---- the machinery

    def _halves(self, value: Val, dtype: DType) -> tuple[Val, Val]:
        low, high = (self._kernel.fresh(dtype, "k.unpack") for _ in range(2))
        self.emit(f"mov.b{value.dtype.bits}", [low, high], value)
        return low, high

    def _widened(self, value: Val, dtype: DType) -> Val:
        """A conversion that is exact."""
        if value.dtype is bf16:
            wide = self.op("mov.b32", f32, [self.op("mov.b16", u16, 0), value])
            return self.convert(wide, dtype)
        rounding = ".rn" if value.dtype.is_integer else ""
        return self.op(f"cvt{rounding}.{dtype}.{value.dtype}", dtype, value)

    def _rounded_to_bf16(self, value: Val, rounding: str) -> Val:
        """f32 to bf16 in integer arithmetic: keeps the upper 16 bits, which the carry rounds."""
        bits = self.bitcast(value, u32)
        if rounding == "rn":
            carry = self.op("bfe.u32", u32, bits, 16, 1)
            kept = bits + carry + 0x7FFF
        elif rounding == "rz":
            kept = bits
        else:
            raise TypeError(f'f32 to bf16 rounds with "rn" or "rz", not {rounding!r}')
        # The instruction's own NaN. A carry or a cut could turn a NaN into an infinity.
        nan = self.op("setp.nan.f32", pred, value, value)
        kept = self.op("selp.u32", u32, 0x7FFF0000, kept, nan)
        low, high = (self._kernel.fresh(dtype, "k.convert") for dtype in (u16, bf16))
        self.emit("mov.b32", [low, high], kept)
        return high


def _may_round(source: DType, dtype: DType) -> bool:
    """Whether a number of type `source` may have no equal of type `dtype`."""
    if source.is_float and dtype.is_float:
        return dtype.bits <= source.bits or dtype is tf32
    if source.is_float:
        return True
    mantissa = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "tf32": 11}[dtype.name]
    return source.bits - (source.kind == "signed") > mantissa
