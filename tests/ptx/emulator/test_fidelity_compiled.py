"""PTX that another compiler wrote gives right results in the emulator.

The sources are in cuda/*.cu, the PTX that nvcc made of them beside each (cuda/regenerate.sh).
They are compiled without contraction of products and sums, so that most results can be compared
with numpy's bit for bit. Each runs in lockstep and under one random schedule of the warps.
"""

import pathlib
import struct
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from support.compiled import FOLDER, output, run, same_bits, schedules, signed

from ptx.emulator import Buffer, launch


def test_every_source_is_compiled_and_every_kernel_is_tested():
    sources = sorted(path.stem for path in FOLDER.glob("*.cu"))
    assert sources == sorted(path.stem for path in FOLDER.glob("*.ptx"))
    tests = "".join(
        path.read_text()
        for path in pathlib.Path(__file__).parent.glob("test_fidelity_compiled*.py")
    )
    for source in sources:
        for line in (FOLDER / f"{source}.ptx").read_text().splitlines():
            if ".entry" in line:
                name = line.split(".entry")[1].strip(" (")
                assert f'"{name}"' in tests, f"{source}.ptx: {name}"


@schedules
def test_deformable_gather(schedule):
    random = np.random.default_rng(0)
    batch, height, width, channels, taps, kernel_width = 2, 7, 9, 4, 6, 3
    stride, padding, dilation, out_height, out_width = 2, 2, 2, 4, 4
    x = random.normal(size=(batch, height, width, channels)).astype(np.float32)
    offset = random.normal(0, 2.5, (batch, out_height, out_width, taps, 2)).astype(np.float32)
    offset[0, 0] = np.round(offset[0, 0])
    offset[1, 1, 1] = (-100.0, 100.0)
    mask = random.uniform(size=(batch, out_height, out_width, taps)).astype(np.float32)

    n, oy, ox, tap = np.indices(mask.shape)
    floor = np.floor(offset)
    fraction = offset - floor
    y = oy * stride - padding + tap // kernel_width * dilation + floor[..., 0].astype(int)
    x0 = ox * stride - padding + tap % kernel_width * dilation + floor[..., 1].astype(int)
    ly, lx = fraction[..., :1], fraction[..., 1:]

    def corner(dy: int, dx: int) -> np.ndarray:
        row, column = y + dy, x0 + dx
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        picked = x[n, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
        return np.where(inside[..., None], picked, np.float32(0))

    one = np.float32(1)
    top = corner(0, 0) * (one - lx) + corner(0, 1) * lx
    bottom = corner(1, 0) * (one - lx) + corner(1, 1) * lx
    expected = (top * (one - ly) + bottom * ly) * mask[..., None]

    out = output(*expected.shape)
    sizes = [batch, height, width, channels, out_height, out_width]
    sizes += [kernel_width, taps, stride, padding, dilation]
    # A third of the threads it takes: each goes round its loop three times.
    run("deform_gather", "deform_gather", [x, offset, mask, out, *sizes], 256, schedule)
    same_bits(out.array, expected)


@schedules
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 32), (70, 72, 104), (3, 136, 8)])
def test_tile_gemm(m, n, k, schedule):
    random = np.random.default_rng(m)
    a = random.integers(-8, 9, (m, k)).astype(np.float16)
    b = random.integers(-8, 9, (k, n)).astype(np.float16)
    c = output(m, n)
    inputs = [Buffer(a, writable=False), Buffer(b, writable=False)]
    text = (FOLDER / "tile_gemm.ptx").read_text()
    launch(
        text,
        grid=(-(-n // 64), -(-m // 64)),
        block=128,
        arguments=[*inputs, c, m, n, k],
        kernel="tile_gemm",
        schedule=schedule,
    )
    np.testing.assert_array_equal(c.array, a.astype(np.float32) @ b.astype(np.float32))


@schedules
def test_softmax(schedule):
    x = np.random.default_rng(1).normal(0, 4, (5, 75)).astype(np.float32)
    x[2, 3] = -np.inf
    y = output(*x.shape)
    run("reduction", "softmax", [x, y, 75], 5 * 96, schedule, block=96, dynamic_shared=12)
    exponentials = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y.array, expected, rtol=2e-6, atol=0)


@schedules
def test_scan(schedule):
    x = np.random.default_rng(2).integers(-1000, 1000, (3, 96)).astype(np.int32)
    y = output(3, 96, dtype=np.int32)
    run("reduction", "scan", [x, y], x.size, schedule, block=96)
    np.testing.assert_array_equal(y.array, np.cumsum(x, axis=1))


@schedules
def test_compact(schedule):
    x = np.random.default_rng(3).normal(0, 5, (8, 32)).astype(np.float32)
    x[3] = -1
    y = output(8, 32)
    counts, sums = output(8, dtype=np.int32), output(8, dtype=np.int32)
    run("reduction", "compact", [x, y, counts, sums], x.size, schedule)
    kept = [row[row > 0] for row in x]
    expected = np.stack([np.pad(row, (0, 32 - len(row))) for row in kept])
    np.testing.assert_array_equal(y.array, expected)
    np.testing.assert_array_equal(counts.array, [len(row) for row in kept])
    np.testing.assert_array_equal(sums.array, [row.astype(int).sum() for row in kept])


@schedules
@pytest.mark.parametrize(
    ("file", "kernel", "dtype", "width"),
    [
        ("atomics", "scatter_add_f32", np.float32, 1),
        ("atomics", "scatter_add_f64", np.float64, 1),
        ("atomics", "scatter_add_f16x2", np.float16, 2),
        ("atomics", "scatter_add_bf16x2", ml_dtypes.bfloat16, 2),
        ("hopper", "scatter_add_bf16x2_native", ml_dtypes.bfloat16, 2),
        ("hopper", "scatter_add_f32x4", np.float32, 4),
    ],
)
def test_scatter_add(file, kernel, dtype, width, schedule):
    """Small integers, whose sums are exact in any order."""
    random = np.random.default_rng(4)
    count, places = 300, 16
    x = random.integers(-4, 5, (count, width))
    index = random.integers(0, places, count).astype(np.int32)
    index[:32] = 5  # one warp, one place
    start = random.integers(-4, 5, (places, width))
    expected = start.copy()
    np.add.at(expected, index, x)
    sums = Buffer(start.astype(dtype))
    run(file, kernel, [x.astype(dtype), index, sums, count], count, schedule)
    np.testing.assert_array_equal(sums.array.astype(np.int64), expected)


@schedules
def test_scatter_max(schedule):
    random = np.random.default_rng(5)
    count, places = 300, 7
    x = random.permutation(count).astype(np.float32)
    index = random.integers(0, places - 1, count).astype(np.int32)
    (nothing,) = struct.unpack("<I", struct.pack("<f", -np.inf))
    best = Buffer(np.full(places, nothing << 32, np.uint64))
    run("atomics", "scatter_max", [x, index, best, count], count, schedule)
    for place in range(places - 1):
        mine = np.flatnonzero(index == place)
        winner = mine[np.argmax(x[mine])]
        (bits,) = struct.unpack("<I", x[winner].tobytes())
        assert best.array[place] == bits << 32 | winner
    assert best.array[places - 1] == nothing << 32


@schedules
def test_histogram(schedule):
    count = 300
    x = np.random.default_rng(6).integers(-(2**31), 2**31, count).astype(np.int32)
    counts = Buffer(np.zeros(64, np.uint32))
    low, high = Buffer(np.array([0], np.int32)), Buffer(np.array([0], np.int32))
    bits, total = Buffer(np.array([0], np.uint32)), Buffer(np.array([5], np.uint64))
    arguments = [x, counts, low, high, bits, total, count]
    run("atomics", "histogram", arguments, count, schedule)
    np.testing.assert_array_equal(counts.array, np.bincount(x & 63, minlength=64))
    assert low.array == x.min()
    assert high.array == x.max()
    assert bits.array == np.bitwise_or.reduce(np.uint32(1) << (x & 31).astype(np.uint32))
    assert int(total.array[0]) == (int(x.astype(np.int64).sum()) + 5) % 2**64


@schedules
def test_collatz(schedule):
    count, limit = 300, 100
    x = np.arange(count, dtype=np.uint32)
    steps = output(count, dtype=np.int32)
    run("control", "collatz", [x, steps, limit, count], count, schedule)
    for start, got in zip(x.tolist(), steps.array.tolist(), strict=True):
        value, taken = start, 0
        while value > 1 and taken < limit:
            value, taken = (3 * value + 1 if value % 2 else value // 2), taken + 1
        assert got == (-2 if start == 0 else taken if value == 1 else -1)


@schedules
def test_primes(schedule):
    x = np.random.default_rng(9).permutation(70).astype(np.int32)
    found = output(70, dtype=np.int32)
    run("control", "primes", [x, found, 70], 70, schedule)
    primes = [p for p in range(2, 70) if all(p % d for d in range(2, p))]
    expected = [sum(1 for p in primes if p < y and y % p) for y in x.tolist()]
    np.testing.assert_array_equal(found.array, expected)


def interpret(program: Sequence[int], a: int) -> int:
    def wrap(value: int) -> int:
        return signed(value % 2**32, 32)

    b = 1
    for step, code in enumerate(program):
        match code % 11:
            case 0:
                a += b
            case 1:
                a -= 3 * b
            case 2:
                a ^= wrap(b << 2)
            case 3:
                b = a & 0xFF
            case 4:
                b += step
            case 5:
                a = -a
            case 6:
                a, b = (wrap(b + 1), b) if a < b else (a, a - 1)
            case 7:
                a = a * 31 + 7
            case 8:
                b = max(a, b)
            case 9:
                return wrap(a * 2 + b)
        a, b = wrap(a), wrap(b)
    return wrap(a + b)


@schedules
def test_interpret(schedule):
    count = 300
    programs = np.random.default_rng(10).integers(0, 256, (count, 8)).astype(np.uint8)
    results = output(count, dtype=np.int32)
    run("control", "interpret", [programs, results, count], count, schedule)
    expected = [interpret(program, i) for i, program in enumerate(programs.tolist())]
    np.testing.assert_array_equal(results.array, expected)


@schedules
def test_sort_block(schedule):
    x = np.random.default_rng(11).integers(-99, 99, (3, 64)).astype(np.int32)
    keys = Buffer(x)
    run("control", "sort_block", [keys], x.size, schedule, block=64, dynamic_shared=256)
    np.testing.assert_array_equal(keys.array, np.sort(x, axis=1))


@schedules
def test_matrix_f64(schedule):
    random = np.random.default_rng(15)
    a = random.integers(-1000, 1000, (16, 16)).astype(np.float64)
    b = random.integers(-1000, 1000, (16, 8)).astype(np.float64)
    d = output(16, 8, dtype=np.float64)
    run("hopper", "matrix_f64", [a, b, d], 32, schedule, block=32)
    np.testing.assert_array_equal(d.array, a @ b)
