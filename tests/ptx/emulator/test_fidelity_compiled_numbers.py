"""Arithmetic that nvcc compiled gives right results in the emulator, to the last bit.

Integers are compared with Python's, floating point numbers with exact arithmetic rounded once;
see test_ptx_fidelity_compiled.py.
"""

import math

import ml_dtypes
import numpy as np
from support import exact
from support.compiled import Scalar, output, pairs, run, same_bits, schedules, signed
from support.elementwise import float_inputs, integer_inputs
from support.exact import BF16, F16, F32, F64


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - b * quotient(a, b)


@schedules
def test_divide(schedule):
    count = 700
    a, b, p, q = (x[-count:] for x in integer_inputs([32, 32, 64, 64]))
    b[(b == 0) | (b == 2**32 - 1)] = 9  # INT_MIN / -1 is undefined in C++
    q[(q == 0) | (q == 2**64 - 1)] = 9
    expected32, expected64 = [], []
    for x, y, v, w in zip(a.tolist(), b.tolist(), p.tolist(), q.tolist(), strict=True):
        sx, sy, sv, sw = signed(x, 32), signed(y, 32), signed(v, 64), signed(w, 64)
        narrow = [quotient(sx, sy), remainder(sx, sy), x // y, x % y]
        narrow += [quotient(sx, 7), remainder(sx, 10), x // 641, quotient(sx, 16)]
        wide = [quotient(sv, sw), remainder(sv, sw), v // w, v % w]
        wide += [quotient(sv, 1000000007), v % 97, v * w >> 64, sv * sw >> 64]
        expected32.append([x % 2**32 for x in narrow])
        expected64.append([x % 2**64 for x in wide])
    out32, out64 = output(count, 8, dtype=np.uint32), output(count, 8, dtype=np.uint64)
    run("integers", "divide", [a, b, p, q, out32, out64, count], count, schedule)
    np.testing.assert_array_equal(out32.array, np.array(expected32, np.uint32))
    np.testing.assert_array_equal(out64.array, np.array(expected64, np.uint64))


@schedules
def test_bits(schedule):
    count = 700
    a, b, p = (x[-count:] for x in integer_inputs([32, 32, 64]))
    out = output(count, 16, dtype=np.uint32)
    run("integers", "bits", [a, b, p, out, count], count, schedule)
    expected = []
    for x, y, v in zip(a.tolist(), b.tolist(), p.tolist(), strict=True):
        both, shift = y << 32 | x, y & 31
        source = both.to_bytes(8, "little")
        sx, sy = signed(x, 32), signed(y, 32)
        row = [
            int(f"{x:032b}"[::-1], 2),
            32 - x.bit_length(),
            x.bit_count(),
            (x & -x).bit_length(),
            v.bit_count(),
            64 - v.bit_length(),
            int.from_bytes(bytes(source[i] for i in (2, 5, 1, 6)), "little"),
            both << shift >> 32,
            both >> min(y & 63, 32),
            (x & y) ^ (~x | 0x5A5A5A5A),
            x << shift | x >> (-shift % 32),
            sx >> shift,
            abs(sx - sy) + 17,
            x * y >> 32,
            sx * sy >> 32,
            (x & 255) + signed(y & 255, 8) + signed(x >> 8 & 0xFFFF, 16) * (y >> 8 & 0xFFFF),
        ]
        expected.append([value % 2**32 for value in row])
    np.testing.assert_array_equal(out.array, np.array(expected, np.uint32))


@schedules
def test_wide_index(schedule):
    count, stride = 300, 7919
    x = np.random.default_rng(7).integers(-1000, 1000, count).astype(np.float64)
    y = output(count, dtype=np.float64)
    run("integers", "wide_index", [x, y, stride, count], count, schedule)
    expected = [
        sum(x[(i + step * 3_000_000_000) * stride % count] * (step + 1) for step in range(4))
        for i in range(count)
    ]
    np.testing.assert_array_equal(y.array, expected)


@schedules
def test_half_math(schedule):
    count = 700
    f16 = Scalar(F16)
    a, b, c = pairs(F16, count)
    out, flags = output(count, 8, 2, dtype=np.float16), output(count, dtype=np.int32)
    arguments = [x.view(np.float16) for x in (a, b, c)]
    run("halves", "half_math", [*arguments, out, flags, count], count, schedule)
    expected, expected_flags = [], []
    for (x0, x1), (y0, y1), (z0, z1) in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        x, y, z = (x0, x1), (y0, y1), (z0, z1)
        negated = [bits ^ 0x8000 for bits in y]
        expected.append(
            [
                [f16(exact.add, x[i], y[i]) for i in (0, 1)],
                [f16(exact.add, x[i], negated[i]) for i in (0, 1)],
                [f16(exact.mul, x[i], y[i]) for i in (0, 1)],
                [f16(exact.fma, x[i], y[i], z[i]) for i in (0, 1)],
                [f16.min(x[i], y[i]) for i in (0, 1)],
                [f16.max_nan(x[i], y[i]) for i in (0, 1)],
                [x[i] | 0x8000 for i in (0, 1)],
                [f16(exact.fma, x0, y1, z0), f16(exact.add, x1, y0)],
            ]
        )
        expected_flags.append(
            f16.less(x0, y0)
            | f16.not_less(x0, y0) << 1
            | f16.equal(x1, y1) << 2
            | F16.is_nan(x1) << 3
            | (f16.equal(x0, y0) and f16.equal(x1, y1)) << 4
        )
    same_bits(out.array, np.array(expected, np.uint16).view(np.float16))
    np.testing.assert_array_equal(flags.array, expected_flags)


@schedules
def test_bf16_math(schedule):
    count = 700
    bf16 = Scalar(BF16)
    a, b, c = pairs(BF16, count)
    out, flags = output(count, 6, 2, dtype=ml_dtypes.bfloat16), output(count, dtype=np.int32)
    arguments = [x.view(ml_dtypes.bfloat16) for x in (a, b, c)]
    run("halves", "bf16_math", [*arguments, out, flags, count], count, schedule)
    expected, expected_flags = [], []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        expected.append(
            [
                [bf16(exact.add, x[i], y[i]) for i in (0, 1)],
                [bf16(exact.mul, x[i], y[i]) for i in (0, 1)],
                [bf16(exact.fma, x[i], y[i], z[i]) for i in (0, 1)],
                [bf16.min(x[i], y[i]) for i in (0, 1)],
                [bf16.max_nan(x[i], y[i]) for i in (0, 1)],
                [x[i] | 0x8000 for i in (0, 1)],
            ]
        )
        flag = bf16.less(x[0], y[0]) | bf16.not_less(x[0], y[0]) << 1
        expected_flags.append(flag | bf16.equal(x[1], y[1]) << 2)
    same_bits(out.array, np.array(expected, np.uint16).view(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(flags.array, expected_flags)


@schedules
def test_convert(schedule):
    count = 700
    (bits,) = (x[-count:] for x in float_inputs(F32, 1))
    small = np.random.default_rng(8).normal(0, 300, count // 2).astype(np.float32)
    bits[: count // 2] = small.view(np.uint32)
    halves, brains = output(count, 4, dtype=np.float16), output(count, 2, dtype=ml_dtypes.bfloat16)
    integers, back = output(count, 6, dtype=np.uint32), output(count, 6)
    arguments = [bits.view(np.float32), halves, brains, integers, back, count]
    run("halves", "convert", arguments, count, schedule)
    int32, uint32 = (-(2**31), 2**31 - 1), (0, 2**32 - 1)
    expected: list[list[list[int]]] = [[], [], [], []]
    for pattern in bits.tolist():
        x = F32.decode(pattern)
        nearest, brain = F16.round(x), BF16.round(x)
        half = F16.decode(nearest)
        twice = F32.decode(F32.round(exact.mul(x, exact.from_int(2))))
        expected[0].append(
            [
                nearest,
                F16.round(x, "rz"),
                F16.round(x, "rp"),
                F16.round(exact.from_int(exact.to_int(x, "rzi", *int32))),
            ]
        )
        expected[1].append([brain, BF16.round(x, "rz")])
        whole = [
            exact.to_int(x, "rni", *int32),
            exact.to_int(x, "rmi", *int32),
            exact.to_int(x, "rpi", *uint32),
            exact.to_int(half, "rzi", *int32),
            exact.to_int(half, "rni", -(2**15), 2**15 - 1),
            exact.to_int(x, "rni", -(2**63), 2**63 - 1) >> 8,
        ]
        expected[2].append([value % 2**32 for value in whole])
        floats = [half, BF16.decode(brain), half, exact.neg(half), BF16.decode(brain)]
        floats.append(BF16.decode(BF16.round(twice)))
        expected[3].append([F32.round(value) for value in floats])
    same_bits(halves.array, np.array(expected[0], np.uint16).view(np.float16))
    same_bits(brains.array, np.array(expected[1], np.uint16).view(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(integers.array, np.array(expected[2], np.uint32))
    same_bits(back.array, np.array(expected[3], np.uint32).view(np.float32))


@schedules
def test_functions_of_doubles(schedule):
    count = 300
    x = np.random.default_rng(12).normal(0, 5, count)
    out = output(count, 10, dtype=np.float64)
    run("doubles", "functions", [x, out, count], count, schedule)
    exact_columns = {
        2: np.sqrt(np.abs(x)),
        3: 1 / x,
        6: np.floor(x) + np.ceil(x * 0.5) * 1024,
        7: np.rint(x) - np.trunc(x),
    }
    for column, expected in exact_columns.items():
        same_bits(out.array[:, column].copy(), expected)
    close = {0: np.exp(x), 1: np.log(np.abs(x)), 4: np.cbrt(x), 5: np.tanh(x)}
    close[9] = np.arctan2(x, 3.0)
    for column, expected in close.items():
        np.testing.assert_allclose(out.array[:, column], expected, rtol=1e-15 * 4, atol=0)
    minus_two = exact.neg(exact.from_int(2))
    numbers = [F64.decode(bits) for bits in x.view(np.uint64).tolist()]
    fused = [F64.round(exact.fma(number, number, minus_two)) for number in numbers]
    same_bits(out.array[:, 8].copy(), np.array(fused, np.uint64).view(np.float64))


@schedules
def test_rounded_doubles(schedule):
    count = 700
    f64 = Scalar(F64)
    a, b = (x[-count:] for x in float_inputs(F64, 2))
    small = np.random.default_rng(13).normal(0, 1e5, count // 2)
    a[: count // 2] = small.view(np.uint64)
    out, narrow = output(count, 4, dtype=np.float64), output(count, 2)
    integers = output(count, 3, dtype=np.uint64)
    arguments = [a.view(np.float64), b.view(np.float64), out, narrow, integers, count]
    run("doubles", "rounded", arguments, count, schedule)
    expected: list[list[list[int]]] = [[], [], []]
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        number = F64.decode(x)
        low = f64.min(x, y)
        high = f64.min(x ^ 1 << 63, y ^ 1 << 63) ^ 1 << 63
        expected[0].append(
            [
                f64(exact.add, x, y),
                f64(exact.mul, x, y),
                f64(exact.div, x, y),
                f64(exact.add, low, high),
            ]
        )
        expected[1].append([F32.round(number), F32.round(number, "rz")])
        whole = [
            exact.to_int(number, "rni", -(2**63), 2**63 - 1),
            exact.to_int(number, "rzi", -(2**31), 2**31 - 1),
            x ^ signed(y >> 32, 32),
        ]
        expected[2].append([value % 2**64 for value in whole])
    same_bits(out.array, np.array(expected[0], np.uint64).view(np.float64))
    same_bits(narrow.array, np.array(expected[1], np.uint32).view(np.float32))
    np.testing.assert_array_equal(integers.array, np.array(expected[2], np.uint64))


@schedules
def test_newton(schedule):
    x = np.random.default_rng(14).normal(0, 10, 100)
    root = output(100, dtype=np.float64)
    run("doubles", "newton", [x, root, 100], 100, schedule)
    expected = []
    for value in x.tolist():
        t = 3.0 + abs(value)
        for _ in range(200):
            following = t - (t * t * t - 3.0 * t - value) / (3.0 * t * t - 3.0)
            if math.fabs(following - t) <= 1e-15 * math.fabs(t):
                break
            t = following
        expected.append(t)
    np.testing.assert_array_equal(root.array, expected)


@schedules
def test_bf16_native(schedule):
    count = 700
    bf16 = Scalar(BF16)
    a, b, _ = pairs(BF16, count)
    out = output(count, 3, 2, dtype=ml_dtypes.bfloat16)
    arguments = [a.view(ml_dtypes.bfloat16), b.view(ml_dtypes.bfloat16), out, count]
    run("hopper", "bf16_native", arguments, count, schedule)
    expected = [
        [
            [bf16(exact.add, x[i], y[i]) for i in (0, 1)],
            [bf16(exact.add, x[i], y[i] ^ 0x8000) for i in (0, 1)],
            [bf16(exact.mul, x[i], y[i]) for i in (0, 1)],
        ]
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    same_bits(out.array, np.array(expected, np.uint16).view(ml_dtypes.bfloat16))
