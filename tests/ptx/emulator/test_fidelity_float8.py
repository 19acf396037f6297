"""Conversions of 8-bit floating point numbers in the emulator, against their definition.

OCP 8-bit Floating Point Specification, revision 1.0: e4m3 has a bias of 7, no infinities and one
NaN of each sign; e5m2 has a bias of 15 and is otherwise as IEEE's formats are.
"""

from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from support import exact
from support.elementwise import COUNT, check, float_inputs
from support.exact import F16, F32, Format

FORMATS = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}  # fraction bits, bias, largest number
NAN = 0x7F


def value(code: int, name: str) -> Fraction:
    """The number of a positive code."""
    bits, bias, _ = FORMATS[name]
    exponent, fraction = code >> bits, code & ((1 << bits) - 1)
    significand = fraction + ((1 << bits) if exponent else 0)
    return significand * Fraction(2) ** (max(exponent, 1) - bias - bits)


VALUES = {name: [value(code, name) for code in range(FORMATS[name][2] + 1)] for name in FORMATS}


def nearest(number: exact.Exact, name: str, relu: bool) -> int:
    """The code of the nearest number, of two the even one; of too large ones the largest."""
    if number.kind == "nan":
        return NAN
    if relu and number.sign:
        return 0
    largest = FORMATS[name][2]
    if number.kind == "inf":
        return number.sign << 7 | largest
    size = Fraction(number.numerator, number.denominator) * Fraction(2) ** number.exponent
    above = bisect_left(VALUES[name], size)
    if above > largest:
        code = largest
    else:
        code = min(
            (c for c in (above - 1, above) if c >= 0),
            key=lambda c: (abs(VALUES[name][c] - size), c & 1),
        )
    return number.sign << 7 | code


def inputs(format: Format, name: str) -> np.ndarray:
    """Of all magnitudes, and every number of the 8-bit format with its neighbours and middles."""
    (bits,) = float_inputs(format, 1)
    ends = [*VALUES[name], *((a + b) / 2 for a, b in pairwise(VALUES[name]))]
    for i, number in enumerate(ends):
        exponent = -40
        scaled = exact.Exact("finite", i & 1, int(number / Fraction(2) ** exponent), exponent)
        bits[4 * i] = format.round(scaled)
        bits[4 * i + 1] = bits[4 * i] + 1
        bits[4 * i + 2] = max(int(bits[4 * i]) - 1, 0)
    return bits


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", FORMATS)
def test_from_f32(name, relu):
    upper = inputs(F32, name)
    lower = np.roll(upper, 777)

    def expected(a: int, b: int) -> int:
        a, b = (nearest(F32.decode(x), name, bool(relu)) for x in (a, b))
        return a << 8 | b

    check(f"cvt.rn.satfinite{relu}.{name}x2.f32", [upper, lower], 16, expected)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", FORMATS)
def test_from_halves(name, relu):
    lower = inputs(F16, name)
    both = lower.astype(np.uint32) | np.roll(lower, 777).astype(np.uint32) << 16

    def expected(bits: int) -> int:
        a, b = (nearest(F16.decode(x), name, bool(relu)) for x in (bits >> 16, bits & 0xFFFF))
        return a << 8 | b

    check(f"cvt.rn.satfinite{relu}.{name}x2.f16x2", [both], 16, expected)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", FORMATS)
def test_to_halves(name, relu):
    """Every code, which a half holds exactly."""
    lower = np.arange(COUNT, dtype=np.uint16) % 256
    both = lower | np.roll(lower, 100) << 8

    def half(code: int) -> int:
        sign, magnitude = code >> 7, code & 0x7F
        if relu and sign and magnitude <= FORMATS[name][2] + (name == "e5m2"):
            return 0
        if magnitude > FORMATS[name][2]:
            infinite = name == "e5m2" and magnitude == 0x7C
            return sign << 15 | F16.infinity if infinite else F16.nan
        number = value(magnitude, name)
        return F16.round(exact.Exact("finite", sign, int(number * 2**30), -30))

    check(
        f"cvt.rn{relu}.f16x2.{name}x2",
        [both],
        32,
        lambda bits: half(bits >> 8) << 16 | half(bits & 0xFF),
    )
