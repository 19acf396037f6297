"""cvt in the emulator: between all number types, every rounding, bit for bit.

Each runs over 4,096 inputs. Floating point sources have the integers' limits, halves and their
neighbours among them; the expected values come from exact arithmetic rounded once.
"""

from collections.abc import Callable

import numpy as np
import pytest
from support import exact
from support.elementwise import COUNT, check, float_inputs, integer_inputs
from support.exact import BF16, F16, F32, F64, FORMATS, TF32, Exact, Format

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
ROUNDINGS = ("rn", "rz", "rm", "rp")
# bf16 has no conversions from and to 8 bits.
PAIRS = [
    (floating, integer)
    for floating in ("f32", "f64", "f16", "bf16")
    for integer in INTEGERS
    if (floating, integer[1:]) != ("bf16", "8")
]


def limits(dtype: str) -> tuple[int, int]:
    width = int(dtype[1:])
    return (0, (1 << width) - 1) if dtype[0] == "u" else (-1 << (width - 1), (1 << (width - 1)) - 1)


def value(bits: int, dtype: str) -> int:
    """The number in the low bits of a register."""
    width = int(dtype[1:])
    bits &= (1 << width) - 1
    return bits - (1 << width) if dtype[0] == "s" and bits >> (width - 1) else bits


def register_width(dtype: str) -> int:
    """8-bit types live in registers of 32 bits here: sign- or zero-extended."""
    return 32 if dtype[1:] == "8" else int(dtype[1:])


def near_integers(format: Format, name: str) -> list[np.ndarray]:
    """Floating point inputs, a third of them near halves, small integers and integers' limits."""
    (bits,) = float_inputs(format, 1)
    random = np.random.default_rng(len(name))
    edges = [k for width in (8, 16, 32, 64) for dtype in "us" for k in limits(f"{dtype}{width}")]
    edges += list(range(-9, 10))
    for i in range(0, COUNT, 3):
        edge = edges[int(random.integers(len(edges)))]
        quarters = 4 * edge + int(random.integers(-9, 10))
        number = Exact("finite", int(quarters < 0), abs(quarters), -2)
        bits[i] = format.round(number, ("rn", "rz", "rm", "rp")[i % 4])
    return [bits]


@pytest.mark.spread(30)
@pytest.mark.parametrize(("source", "integer"), PAIRS)
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_float_to_integer_clamps(mode, source, integer):
    """A NaN is 0, but from 64 bits or to 64 bits the highest bit of the integer alone."""
    format = FORMATS[source]
    low, high = limits(integer)
    width = register_width(integer)
    wide = source == "f64" or integer[1:] == "64"
    of_nan = (low or (high + 1) // 2) if wide else 0

    def expected(bits: int) -> int:
        if format.is_nan(bits):
            return of_nan & ((1 << width) - 1)
        return exact.to_int(format.decode(bits), mode, low, high) & ((1 << width) - 1)

    check(f"cvt.{mode}.{integer}.{source}", near_integers(format, mode + integer), width, expected)


@pytest.mark.spread(30)
@pytest.mark.parametrize(("target", "integer"), PAIRS)
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_integer_to_float(mode, target, integer):
    format = FORMATS[target]
    width = max(16, int(integer[1:]))
    check(
        f"cvt.{mode}.{target}.{integer}",
        ties_among_integers(width, integer, format),
        format.bits,
        lambda bits: format.round(exact.from_int(value(bits, integer)), mode),
    )


def ties_among_integers(width: int, dtype: str, format: Format) -> list[np.ndarray]:
    """Integers, a quarter of them in the middle between two floats or one beside it."""
    (bits,) = integer_inputs([width])
    random = np.random.default_rng(width)
    free = int(dtype[1:]) - format.precision - 2
    if free > 0:
        for i in range(0, COUNT, 4):
            shift = int(random.integers(free))
            tie = (int(random.integers(1 << format.precision)) << 1 | 1) << shift
            number = tie + int(random.integers(-1, 2))
            bits[i] = (-number if dtype[0] == "s" and i % 8 else number) % (1 << width)
    return [bits]


WIDENING = ["f32.f16", "f64.f16", "f64.f32", "f32.bf16", "f64.bf16"]
NARROWING = [
    *(f"{mode}.f32.f64" for mode in ROUNDINGS),
    *(f"{mode}.f16.{source}" for mode in ROUNDINGS for source in ("f32", "f64")),
    *(f"{mode}.bf16.f32" for mode in ("rn", "rz")),
    *(f"{mode}.bf16.{source}" for mode in ROUNDINGS for source in ("f64", "f16")),
    "rn.f16.bf16",
]


@pytest.mark.parametrize("instruction", WIDENING + NARROWING)
def test_float_to_float(instruction):
    *mode, target, source = instruction.split(".")
    wide, narrow = FORMATS[source], FORMATS[target]
    check(
        f"cvt.{instruction}",
        between(wide, narrow, instruction),
        narrow.bits,
        lambda bits: narrow.round(wide.decode(bits), *mode),
        nan_of=narrow,
    )


def between(wide: Format, narrow: Format, name: str) -> list[np.ndarray]:
    """Inputs, half of them in the target's range: ties, and one step of the source beside them."""
    (bits,) = float_inputs(wide, 1)
    random = np.random.default_rng(len(name))
    for i in range(0, COUNT, 2):
        pattern = int(random.integers(narrow.infinity >> narrow.padding)) << narrow.padding
        number = narrow.decode(pattern)
        tie = Exact("finite", i >> 1 & 1, 2 * number.numerator + 1, number.exponent - 1)
        bits[i] = max(wide.round(tie) + int(random.integers(-1, 2)), 0)
    return [bits]


@pytest.mark.parametrize("instruction", ["cvt.rna.tf32.f32", "cvt.rn.tf32.f32", "cvt.rz.tf32.f32"])
def test_float_to_tf32(instruction):
    mode = instruction.split(".")[1]
    check(
        instruction,
        between(F32, TF32, "tf32"),
        32,
        lambda bits: TF32.round(F32.decode(bits), mode),
        nan_of=F32,
    )


@pytest.mark.parametrize("dtype", ["f16x2", "bf16x2"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_two_floats_are_packed_the_first_one_high(mode, dtype):
    format = FORMATS[dtype.removesuffix("x2")]
    (a,) = between(F32, format, f"{dtype} a")
    b = np.roll(a, 1001)
    check(
        f"cvt.{mode}.{dtype}.f32",
        [a, b],
        32,
        lambda x, y: format.round(F32.decode(x), mode) << 16 | format.round(F32.decode(y), mode),
        nan_of=format,
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_rounding_to_an_integral_float_keeps_the_sign(mode, dtype):
    format = FORMATS[dtype]
    check(
        f"cvt.{mode}.{dtype}.{dtype}",
        near_integers(format, f"integral {mode}"),
        format.bits,
        lambda bits: format.round(exact.to_integral(format.decode(bits), mode)),
        nan_of=format,
    )


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(source, target):
    """Cut to the target's width, then extended to the register by the target's sign."""
    width = register_width(target)
    mask = (1 << width) - 1
    check(
        f"cvt.{target}.{source}",
        integer_inputs([max(16, int(source[1:]))]),
        width,
        lambda bits: value(value(bits, source) & mask, target) & mask,
    )


SATURATED = {
    "s8": ("s32", "u16"),
    "u8": ("s32", "u32", "s16"),
    "s16": ("s32", "u64"),
    "u16": ("s32", "u32", "s64"),
    "s32": ("u32", "s64"),
    "u32": ("s32", "s64", "u64"),
    "s64": ("u64",),
    "u64": ("s64", "s32"),
}


@pytest.mark.parametrize(("target", "source"), [(t, s) for t in SATURATED for s in SATURATED[t]])
def test_saturated_integer_to_integer(target, source):
    low, high = limits(target)
    width = register_width(target)
    check(
        f"cvt.sat.{target}.{source}",
        integer_inputs([int(source[1:])]),
        width,
        lambda bits: min(max(value(bits, source), low), high) & ((1 << width) - 1),
    )


@pytest.mark.parametrize(
    "instruction", ["sat.f32.f32", "rn.sat.f32.f64", "rn.sat.f16.f32", "sat.f64.f64", "sat.f32.f16"]
)
def test_saturated_float_lies_between_zero_and_one(instruction):
    *_, target, source = instruction.split(".")
    wide, narrow = FORMATS[source], FORMATS[target]
    one = narrow.round(exact.from_int(1))

    def expected(bits: int) -> int:
        result = narrow.round(wide.decode(bits))
        negative = result >> (narrow.bits - 1)
        return 0 if negative or narrow.is_nan(result) else min(result, one)

    check(f"cvt.{instruction}", near_integers(wide, instruction), narrow.bits, expected)


@pytest.mark.parametrize("instruction", ["rn.relu.f16.f32", "rz.relu.bf16.f32"])
def test_relu_makes_negative_numbers_zero_and_nans_canonical(instruction):
    mode, _, target, source = instruction.split(".")
    wide, narrow = FORMATS[source], FORMATS[target]

    def expected(bits: int) -> int:
        result = narrow.round(wide.decode(bits), mode)
        return 0 if result >> (narrow.bits - 1) else result

    check(f"cvt.{instruction}", between(wide, narrow, instruction), narrow.bits, expected)


FLUSHING: list[tuple[str, Callable[[int], int]]] = [
    ("cvt.rn.ftz.f16.f32", lambda bits: F16.round(F32.decode(F32.flush(bits)))),
    ("cvt.rn.ftz.f32.f64", lambda bits: F32.flush(F32.round(F64.decode(bits)))),
    ("cvt.ftz.f64.f32", lambda bits: F64.round(F32.decode(F32.flush(bits)))),
    ("cvt.ftz.f32.f16", lambda bits: F32.round(F16.decode(bits))),
    (
        "cvt.rpi.ftz.f32.f32",
        lambda bits: F32.round(exact.to_integral(F32.decode(F32.flush(bits)), "rpi")),
    ),
    (
        "cvt.rpi.ftz.s32.f32",
        lambda bits: exact.to_int(F32.decode(F32.flush(bits)), "rpi", *limits("s32")) & 0xFFFFFFFF,
    ),
]


@pytest.mark.parametrize(("instruction", "expected"), FLUSHING, ids=[i for i, _ in FLUSHING])
def test_flushing_subnormals(instruction, expected):
    target, source = instruction.split(".")[-2:]
    inputs = float_inputs(FORMATS[source], 1)
    result = FORMATS.get(target)
    check(instruction, inputs, result.bits if result else 32, expected, nan_of=result)


def test_the_tested_formats_have_their_published_limits():
    """The largest and smallest numbers of each format, as literals (IEEE 754, table 3.5)."""
    for format, largest, smallest in (
        (F16, 65504.0, 2.0**-24),
        (BF16, 255 * 2.0**120, 2.0**-133),
        (F32, (2 - 2.0**-23) * 2.0**127, 2.0**-149),
        (F64, 1.7976931348623157e308, 5e-324),
        (TF32, (2 - 2.0**-10) * 2.0**127, 2.0**-136),
    ):
        top = format.decode(format.infinity - (1 << format.padding))
        assert top.numerator * 2.0**top.exponent == largest
        assert format.decode(1 << format.padding).exponent == np.log2(smallest)
