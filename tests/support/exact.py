"""Exact arithmetic and correct rounding of binary floating point, on Python integers.

The oracle of the emulator's scalar tests: it shares nothing with numpy's arithmetic. A finite
number is a fraction times a power of two; `Format.round` is the only place where precision is
lost, once per operation, as IEEE 754 and the PTX ISA ask.
"""

import dataclasses
import math
from typing import NamedTuple

__all__ = ["BF16", "F16", "F32", "F64", "FORMATS", "TF32", "Exact", "Format"]


class Exact(NamedTuple):
    """(-1)**sign * numerator / denominator * 2**exponent, or an infinity or a NaN.

    Attributes:
      kind: "finite", "inf" or "nan".
    """

    kind: str
    sign: int = 0
    numerator: int = 0
    exponent: int = 0
    denominator: int = 1


NAN = Exact("nan")


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary floating point format.

    Attributes:
      name: PTX's name of the type.
      bits: width of the encoding.
      precision: bits of the significand, the hidden one included.
      quantum: exponent of the smallest subnormal number.
      padding: zero bits below the significand: 13 for tf32, which lives in an f32.
    """

    name: str
    bits: int
    precision: int
    quantum: int
    padding: int = 0

    @property
    def infinity(self) -> int:
        fraction = self.precision - 1 + self.padding
        return (1 << (self.bits - 1)) - (1 << fraction)

    @property
    def nan(self) -> int:
        """PTX's canonical NaN: all bits set but the sign."""
        return (1 << (self.bits - 1)) - 1

    @property
    def smallest_normal(self) -> int:
        return 1 << (self.precision - 1 + self.padding)

    def is_nan(self, bits: int) -> bool:
        return bits & self.nan > self.infinity

    def is_subnormal(self, bits: int) -> bool:
        return 0 < bits & self.nan < self.smallest_normal

    def flush(self, bits: int) -> int:
        """A subnormal number becomes a zero of its sign, as with .ftz."""
        return bits & ~self.nan if self.is_subnormal(bits) else bits

    def decode(self, bits: int) -> Exact:
        sign, magnitude = bits >> (self.bits - 1), bits & self.nan
        if magnitude > self.infinity:
            return NAN
        if magnitude == self.infinity:
            return Exact("inf", sign)
        magnitude >>= self.padding
        biased, fraction = divmod(magnitude, 1 << (self.precision - 1))
        if biased == 0:
            return Exact("finite", sign, fraction, self.quantum)
        return Exact(
            "finite", sign, fraction + (1 << (self.precision - 1)), self.quantum + biased - 1
        )

    def round(self, value: Exact, mode: str = "rn") -> int:
        """The encoding of `value`, rounded once.

        Args:
          value: any number; a NaN becomes the canonical one.
          mode: "rn" (ties to even), "rna" (ties away from zero), "rz", "rm" (down) or "rp" (up).
        """
        sign = value.sign << (self.bits - 1)
        if value.kind == "nan":
            return self.nan
        if value.kind == "inf":
            return sign | self.infinity
        if value.numerator == 0:
            return sign
        # An estimate of the last place's exponent, at most one too low.
        length = value.numerator.bit_length() - value.denominator.bit_length() + value.exponent
        last = max(length - self.precision, self.quantum)
        quotient, rest, divisor = self._divide(value, last)
        if quotient.bit_length() > self.precision:
            last += 1
            quotient, rest, divisor = self._divide(value, last)
        match mode:
            case "rn":
                up = 2 * rest > divisor or (2 * rest == divisor and quotient & 1 == 1)
            case "rna":
                up = 2 * rest >= divisor
            case "rz":
                up = False
            case "rm":
                up = rest > 0 and value.sign == 1
            case "rp":
                up = rest > 0 and value.sign == 0
            case _:
                raise ValueError(f"{mode=}")
        # A carry out of the significand moves into the exponent's field, where it belongs.
        magnitude = ((last - self.quantum) << (self.precision - 1)) + quotient + up
        magnitude <<= self.padding
        if magnitude >= self.infinity:
            to_infinity = mode in ("rn", "rna") or mode == ("rm" if value.sign else "rp")
            magnitude = self.infinity if to_infinity else self.infinity - (1 << self.padding)
        return sign | magnitude

    @staticmethod
    def _divide(value: Exact, last: int) -> tuple[int, int, int]:
        """Quotient, remainder and divisor of |value| / 2**last."""
        shift = value.exponent - last
        dividend = value.numerator << max(shift, 0)
        divisor = value.denominator << max(-shift, 0)
        return *divmod(dividend, divisor), divisor


F16 = Format("f16", 16, 11, -24)
BF16 = Format("bf16", 16, 8, -133)
F32 = Format("f32", 32, 24, -149)
F64 = Format("f64", 64, 53, -1074)
TF32 = Format("tf32", 32, 11, -136, padding=13)
FORMATS = {format.name: format for format in (F16, BF16, F32, F64, TF32)}


def from_int(value: int) -> Exact:
    return Exact("finite", int(value < 0), abs(value), 0)


def neg(a: Exact) -> Exact:
    return a._replace(sign=1 - a.sign)


def _zero_sum_sign(signs: tuple[int, int], mode: str) -> int:
    """The sign of x + y = 0 (IEEE 754, 6.3)."""
    return signs[0] if signs[0] == signs[1] else int(mode == "rm")


def add(a: Exact, b: Exact, mode: str = "rn") -> Exact:
    """A + b of numbers without denominators; `mode` decides the sign of an exact zero."""
    if a.kind == "nan" or b.kind == "nan":
        return NAN
    if a.kind == "inf" or b.kind == "inf":
        if a.kind == b.kind and a.sign != b.sign:
            return NAN
        return a if a.kind == "inf" else b
    exponent = min(a.exponent, b.exponent)
    left = (-a.numerator if a.sign else a.numerator) << (a.exponent - exponent)
    right = (-b.numerator if b.sign else b.numerator) << (b.exponent - exponent)
    total = left + right
    if total == 0:
        both_zero = a.numerator == 0 and b.numerator == 0
        signs = (a.sign, b.sign) if both_zero else (0, 1)
        return Exact("finite", _zero_sum_sign(signs, mode))
    return Exact("finite", int(total < 0), abs(total), exponent)


def mul(a: Exact, b: Exact) -> Exact:
    sign = a.sign ^ b.sign
    if a.kind == "nan" or b.kind == "nan":
        return NAN
    if a.kind == "inf" or b.kind == "inf":
        other = b if a.kind == "inf" else a
        return NAN if other.kind == "finite" and other.numerator == 0 else Exact("inf", sign)
    return Exact("finite", sign, a.numerator * b.numerator, a.exponent + b.exponent)


def fma(a: Exact, b: Exact, c: Exact, mode: str = "rn") -> Exact:
    return add(mul(a, b), c, mode)


def div(a: Exact, b: Exact) -> Exact:
    sign = a.sign ^ b.sign
    if a.kind == "nan" or b.kind == "nan" or (a.kind == b.kind == "inf"):
        return NAN
    if a.kind == "inf":
        return Exact("inf", sign)
    if b.kind == "inf":
        return Exact("finite", sign)
    if b.numerator == 0:
        return NAN if a.numerator == 0 else Exact("inf", sign)
    return Exact("finite", sign, a.numerator, a.exponent - b.exponent, b.numerator)


def sqrt(a: Exact) -> Exact:
    """The square root, exact enough: 128 bits, and a sticky bit where it goes on."""
    if a.kind == "nan" or (a.sign and (a.kind == "inf" or a.numerator)):
        return NAN
    if a.kind == "inf" or a.numerator == 0:
        return a
    shift = 256 + (a.exponent & 1)
    radicand = a.numerator << shift
    root = math.isqrt(radicand)
    sticky = int(root * root != radicand)
    return Exact("finite", 0, 2 * root + sticky, (a.exponent - shift) // 2 - 1)


def less(a: Exact, b: Exact) -> bool:
    """A < b by value; False where one is a NaN, and for zeros of either sign."""
    return _order(a, b) == -1


def equal(a: Exact, b: Exact) -> bool:
    return _order(a, b) == 0


def _order(a: Exact, b: Exact) -> int | None:
    if a.kind == "nan" or b.kind == "nan":
        return None
    if a.kind == "inf" or b.kind == "inf":
        left, right = ((0 if x.kind == "finite" else (-1 if x.sign else 1)) for x in (a, b))
        return (left > right) - (left < right)
    difference = add(a, neg(b))
    return 0 if difference.numerator == 0 else (-1 if difference.sign else 1)


def to_integral(a: Exact, mode: str) -> Exact:
    """Rounded to an integer, the sign kept: "rni" (ties to even), "rzi", "rmi" or "rpi"."""
    if a.kind != "finite" or a.exponent >= 0:
        return a
    whole, rest = divmod(a.numerator, 1 << -a.exponent)
    half = 1 << (-a.exponent - 1)
    up = {
        "rni": rest > half or (rest == half and whole & 1 == 1),
        "rzi": False,
        "rmi": rest > 0 and a.sign == 1,
        "rpi": rest > 0 and a.sign == 0,
    }[mode]
    return Exact("finite", a.sign, whole + up, 0)


def to_int(a: Exact, mode: str, low: int, high: int) -> int:
    """Rounded to an integer and clamped to low..high; a NaN becomes 0 (PTX ISA, cvt)."""
    if a.kind == "nan":
        return 0
    if a.kind == "inf":
        return low if a.sign else high
    whole = to_integral(a, mode)
    value = whole.numerator << whole.exponent
    return min(max(-value if a.sign else value, low), high)
