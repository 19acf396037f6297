"""The results of the builder's operations, in the emulator, against numpy."""

import operator
from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import ptx
from ptx import (
    DType,
    Kernel,
    Val,
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    s8,
    s16,
    s32,
    s64,
    u8,
    u16,
    u32,
    u64,
)
from ptx.emulator import Buffer, launch

NUMPY = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32,
    "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32,
}  # fmt: skip
DTYPE = {np.dtype(n): ptx.DTYPES[name] for name, n in NUMPY.items() if name != "b32"}


def elementwise(
    function: Callable[..., Val], *inputs: np.ndarray, dtype: DType, target: str = "sm_80"
) -> np.ndarray:
    """`function(k, x[i], y[i], ...)` for each i, assembled and emulated; the result's type."""
    n = len(inputs[0])
    k = Kernel("elementwise", target, block=64)
    pointers = [k.pointer(f"x{i}_", DTYPE[x.dtype], readonly=True) for i, x in enumerate(inputs)]
    out = k.pointer("out", dtype)
    i = k.ctaid() * 64 + k.tid()
    with k.if_(i < n):
        out.store(i, function(k, *(pointer.load(i) for pointer in pointers)))
    ptx.assemble(k.text(), target)
    result = Buffer(np.empty(n, NUMPY[dtype.name]), initialized=False)
    buffers = [Buffer(x, writable=False) for x in inputs]
    launch(k.text(), grid=-(-n // 64), block=64, arguments=[*buffers, result])
    return result.array


def integers(dtype: DType, seed: int = 0, n: int = 100) -> np.ndarray:
    info = np.iinfo(NUMPY[dtype.name])
    values = np.random.default_rng(seed).integers(info.min, info.max, n, info.dtype, endpoint=True)
    values[:4] = info.min, info.max, 0, 1
    return values


def floats(dtype: DType, seed: int = 0, n: int = 100) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(n) * 10
    values[:5] = 0.0, -0.0, 0.5, 2.5, -1.5
    return values.astype(NUMPY[dtype.name])


def check_operators(function: Callable[..., Any], *inputs: np.ndarray) -> None:
    """A function of operators alone gives the same of registers as of arrays."""
    expected = function(*inputs)
    result = elementwise(lambda k, *values: function(*values), *inputs, dtype=DTYPE[expected.dtype])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [u16, s16, u32, s32, u64, s64], ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "and_", "or_", "xor"])
def test_integers(dtype, name):
    check_operators(getattr(operator, name), integers(dtype, 0), integers(dtype, 1))


@pytest.mark.parametrize("dtype", [u16, s16, u32, s32, u64, s64], ids=str)
def test_least_and_greatest(dtype):
    a, b = integers(dtype, 0), integers(dtype, 1)
    for name, expected in (("min", np.minimum(a, b)), ("max", np.maximum(a, b))):
        result = elementwise(lambda k, a, b, name=name: getattr(k, name)(a, b), a, b, dtype=dtype)
        np.testing.assert_array_equal(result, expected)


def test_numbers_on_either_side():
    one = cast(Any, np.uint32(1))  # a numpy number leaves the product to Val
    check_operators(
        lambda x: (
            one * (7 + x * 3 - 2)
            ^ (100 - x)
            ^ (5 & x)
            ^ (9 | x)
            ^ (1000 // (x | 1))
            ^ (7 % (x | 1))
        ),
        integers(u32),
    )


def test_division_and_remainder():
    a, b = integers(u32, 0), integers(u32, 1) % 1000 + 1
    check_operators(operator.floordiv, a, b)
    check_operators(operator.mod, a, b)
    check_operators(lambda a: a % 7, a)


def test_signed_division_rounds_toward_zero():
    a = np.array([-7, 7, -8, 0], np.int32)
    quotient = elementwise(lambda k, a: k.div(a, 2), a, dtype=s32)
    remainder = elementwise(lambda k, a: k.rem(a, 4), a, dtype=s32)
    np.testing.assert_array_equal(quotient, [-3, 3, -4, 0])
    np.testing.assert_array_equal(remainder, [-3, 3, 0, 0])


@pytest.mark.parametrize("dtype", [u32, s32, u64, s64], ids=str)
def test_shifts(dtype):
    a = integers(dtype)
    check_operators(lambda a: a >> 5, a)
    check_operators(lambda a: a << 7, a)
    amount = np.arange(100, dtype=np.uint32) % 32
    shifted = elementwise(lambda k, a, n: a << n, a, amount, dtype=dtype)
    np.testing.assert_array_equal(shifted, a << amount.astype(a.dtype))


def test_wide_products():
    a, b = integers(s32, 0), integers(s32, 1)
    wide = a.astype(np.int64) * b
    result = elementwise(lambda k, a, b: k.mul_wide(a, b), a, b, dtype=s64)
    np.testing.assert_array_equal(result, wide)
    result = elementwise(lambda k, a, b: k.mad_wide(a, b, -5), a, b, dtype=s64)
    np.testing.assert_array_equal(result, wide - 5)
    result = elementwise(lambda k, a, b: k.mad(a, b, 3), a, b, dtype=s32)
    np.testing.assert_array_equal(result, (wide + 3).astype(np.int32))


def test_bits():
    check_operators(operator.invert, integers(u32))


@pytest.mark.parametrize("dtype", [f32, f64, f16], ids=str)
def test_floats(dtype):
    a, b = floats(dtype, 0), floats(dtype, 1)
    for function in (operator.add, lambda a, b: a - b * 2, lambda a, b: -a * b):
        check_operators(function, a, b)
    check_operators(abs, a)


def test_division_and_roots_of_floats():
    a, b = floats(f32, 0), floats(f32, 1) + np.float32(30)
    check_operators(operator.truediv, a, b)
    check_operators(lambda b: 1.0 / b, b)
    np.testing.assert_array_equal(elementwise(lambda k, b: k.sqrt(b), b, dtype=f32), np.sqrt(b))


def test_products_and_sums_are_not_contracted():
    """1 + eps squared, minus its rounded value: 0 in two steps, eps^2 in one."""
    a = np.full(4, 1 + 2.0**-12, np.float32)
    two = elementwise(lambda k, a: a * a - (1 + 2.0**-11), a, dtype=f32)
    one = elementwise(lambda k, a: k.fma(a, a, -(1 + 2.0**-11)), a, dtype=f32)
    np.testing.assert_array_equal(two, 0.0)
    np.testing.assert_array_equal(one, 2.0**-24)


@pytest.mark.parametrize("dtype", [s32, u32, f32, f64, f16], ids=str)
@pytest.mark.parametrize("order", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons(dtype, order):
    a = integers(dtype) if dtype.is_integer else floats(dtype)
    b = np.roll(a, 1)
    b[::3] = a[::3]
    if dtype.is_float:
        a[7] = b[8] = a[9] = b[9] = np.nan
    compare = getattr(operator, order)

    def chosen(k: Kernel, a: Val, b: Val) -> Val:
        where = getattr(a, order)(b) if order in ("eq", "ne") else compare(a, b)
        return k.select(where, 1, 0, u32)

    result = elementwise(chosen, a, b, dtype=u32)
    np.testing.assert_array_equal(result, compare(a, b).astype(np.uint32))


def test_predicates():
    a = np.arange(100, dtype=np.uint32)

    def chosen(k: Kernel, x: Val) -> Val:
        where = ((x > 10) & (x < 50)) ^ ~((x < 30) | (x > 90))
        return k.select(where, x, 7)

    where = ((a > 10) & (a < 50)) ^ ~((a < 30) | (a > 90))
    np.testing.assert_array_equal(elementwise(chosen, a, dtype=u32), np.where(where, a, 7))


@pytest.mark.parametrize("source", [s16, u16, s32, u32, s64, u64], ids=str)
@pytest.mark.parametrize("dtype", [s16, u16, s32, u32, s64, u64], ids=str)
def test_integer_conversions(source, dtype):
    a = integers(source)
    result = elementwise(lambda k, a: k.convert(a, dtype), a, dtype=dtype)
    np.testing.assert_array_equal(result, a.astype(NUMPY[dtype.name]))


@pytest.mark.parametrize(
    ("source", "dtype"),
    [(a, b) for a in (f16, bf16, f32, f64) for b in (f16, bf16, f32, f64) if (a, b) != (f64, bf16)],
    ids=str,
)
def test_float_conversions(source, dtype):
    a = floats(source)
    a[5:7] = np.inf, -np.inf
    result = elementwise(lambda k, a: k.convert(a, dtype, "rn"), a, dtype=dtype)
    expected = a.astype(np.float64).astype(NUMPY[dtype.name])
    np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_bf16_rounds_the_same_with_and_without_the_instruction(rounding, target):
    bits = np.random.default_rng(0).integers(0, 2**32, 4000, np.uint32)
    bits[:1000] &= 0xFFFF8000  # halfway cases
    bits[1000:1006] = 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000000, 0x00007FFF, 0x7F800001
    a = bits.view(np.float32)

    def rounded(k: Kernel, x: Val) -> Val:
        return k.convert(x, bf16, rounding)

    result = elementwise(rounded, a, dtype=bf16, target=target).view(np.uint16)
    nan = np.isnan(a)
    if rounding == "rn":
        expected = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        expected = (bits >> 16).astype(np.uint16)
    np.testing.assert_array_equal(result[~nan], expected[~nan])
    assert np.isnan(result[nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()


@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_f64_rounds_to_bf16_once(rounding, target):
    """Near the middle of two bf16, whether f32 is rounded to nearest in between can be seen."""
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**16, 400, np.uint32) << 16
    bits[:100] &= 0x807F0000  # denormals
    low = bits.view(np.float32)
    low = low[np.isfinite(low)]
    middle = (low.view(np.uint32) | 0x8000).view(np.float32).astype(np.float64)
    values, sides = [low.astype(np.float64)], [np.zeros(len(low))]
    for side, step in ((-1, 1 - 2.0**-40), (0, 1.0), (1, 1 + 2.0**-40)):
        values.append(middle * step)
        sides.append(np.full(len(low), side))
    value, side = np.concatenate(values), np.concatenate(sides)
    odd = np.tile(low.view(np.uint32) >> 16 & 1, 4)
    is_middle = np.arange(len(value)) >= len(low)
    up = is_middle & ((side > 0) | ((side == 0) & (odd == 1))) & (rounding == "rn")
    expected = (np.tile(low.view(np.uint32) >> 16, 4) + up).astype(np.uint16)

    result = elementwise(
        lambda k, a: k.convert(a, bf16, rounding), value, dtype=bf16, target=target
    )
    np.testing.assert_array_equal(result.view(np.uint16), expected)
    special = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300, 0.0, -0.0, 1e-300])
    result = elementwise(lambda k, a: k.convert(a, bf16, "rn"), special, dtype=bf16, target=target)
    np.testing.assert_array_equal(
        result.astype(np.float64), [np.inf, -np.inf, np.nan, np.inf, -np.inf, 0.0, -0.0, 0.0]
    )


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [("rn", np.rint), ("rz", np.trunc), ("rm", np.floor), ("rp", np.ceil)],
)
def test_floats_to_integers(rounding, expected):
    a = floats(f32)
    result = elementwise(lambda k, a: k.convert(a, s32, rounding), a, dtype=s32)
    np.testing.assert_array_equal(result, expected(a).astype(np.int32))
    result = elementwise(lambda k, a: k.round(a, rounding), a, dtype=f32)
    np.testing.assert_array_equal(result, expected(a))
    back = elementwise(
        lambda k, a: k.convert(k.convert(k.convert(a, f16, "rn"), s32, rounding), f32, "rn"),
        a, dtype=f32,
    )  # fmt: skip
    np.testing.assert_array_equal(back, expected(a.astype(np.float16)).astype(np.float32))


def test_floats_saturate_into_integers():
    a = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9], np.float32)
    result = elementwise(lambda k, a: k.convert(a, s32, "rz"), a, dtype=s32)
    np.testing.assert_array_equal(result, [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31)])


@pytest.mark.parametrize(("half", "packed"), [(f16, f16x2), (bf16, bf16x2)])
@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_packed_halves(half, packed, target):
    a, b = floats(f32, 0), floats(f32, 1)

    def swapped(k: Kernel, x: Val, y: Val) -> Val:
        low, high = k.unpack(k.pack(x, y, packed))
        low, high = k.unpack(k.pack(high, low), f32)
        return low * 4.0 + high

    def as_half(x: np.ndarray) -> np.ndarray:
        return x.astype(NUMPY[half.name]).astype(np.float32)

    result = elementwise(swapped, a, b, dtype=f32, target=target)
    np.testing.assert_array_equal(result, as_half(b) * 4 + as_half(a))


def test_halves_of_64_bits():
    a = integers(u64)

    def swapped(k: Kernel, x: Val) -> Val:
        low, high = k.unpack(x, u32)
        return k.bitcast(k.pack(high, low), u64)

    np.testing.assert_array_equal(elementwise(swapped, a, dtype=u64), a << 32 | a >> 32)


def test_literals_of_halves():
    check_operators(lambda a: a * 1.5 + 0.25, floats(f16))


@pytest.mark.parametrize("dtype", [u8, s8], ids=str)
def test_bytes_arrive_in_wider_registers(dtype):
    check_operators(lambda a: a + 1, integers(dtype))


def test_loops():
    """Sums of ranges, bounds and steps known or not."""
    a = np.arange(40, dtype=np.int32) - 10

    def sums(k: Kernel, x: Val) -> Val:
        total = k.var(s32, 0, "total")
        for bounds in ((0, x, 1), (x, 20, 3), (x, -5, -2), (-3, 4, 2), (5, -5, -3), (3, 3, 1)):
            with k.loop(*bounds, dtype=s32) as i:
                total += i * 3 + 1
        with k.loop(k.convert(k.max(x, 0), u32), 0, -7) as i:
            total += k.convert(i, s32)
        return total

    def expected(x: int) -> int:
        ranges = [range(x), range(x, 20, 3), range(x, -5, -2), range(-3, 4, 2), range(5, -5, -3)]
        return sum(3 * i + 1 for r in ranges for i in r) + sum(range(max(x, 0), 0, -7))

    result = elementwise(sums, a, dtype=s32)
    np.testing.assert_array_equal(result, [expected(int(x)) for x in a])


def test_branches():
    a = np.arange(20, dtype=np.uint32)

    def branched(k: Kernel, x: Val) -> Val:
        out = k.var(u32, 0)
        with k.if_(x < 5):
            out.set(x)
        with k.else_:
            with k.if_(x < 10):
                out.set(x * 2)
            with k.else_:
                out.set(x * 3)
            out += 1
        with k.if_(x.eq(7)):
            out += 100
        return out

    result = elementwise(branched, a, dtype=u32)
    expected = np.where(a < 5, a, np.where(a < 10, a * 2, a * 3) + 1) + 100 * (a == 7)
    np.testing.assert_array_equal(result, expected)


def test_snapshots_of_variables():
    a = np.arange(8, dtype=np.uint32)

    def difference(k: Kernel, x: Val) -> Val:
        var = k.var(u32, x)
        before = var.value()
        var += 5
        var <<= 1
        var ^= 3
        var *= 20
        var //= 3
        var %= 50
        return var - before

    expected = (((a + 5) << 1) ^ 3) * 20 // 3 % 50 - a
    np.testing.assert_array_equal(elementwise(difference, a, dtype=u32), expected)
