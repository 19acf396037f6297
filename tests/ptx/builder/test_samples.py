"""Whole kernels written with the builder, right in the emulator and assembled without spills."""

import ml_dtypes
import numpy as np
import pytest

import ptx
from ptx import DType, Kernel, bf16, f16, f32, u32, u64
from ptx.emulator import Buffer, Report, launch

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def assembled(k: Kernel) -> str:
    """The text of a kernel that ptxas takes for its target without spills."""
    (found,) = ptx.assemble(k.text(), k.target).values()
    assert found.spills == found.local_bytes == 0
    return k.text()


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize(("n", "vector"), [(1, 4), (1003, 4), (1000, 2), (77, 1)])
def test_scale_and_add(dtype, n, vector, target):
    """0.75 * x + y, by vectors, and element by element at the end of the arrays."""
    k = Kernel("scale_and_add", target, block=128)
    x, y = (k.pointer(name, dtype, readonly=True) for name in ("x", "y"))
    out, count = k.pointer("out", dtype), k.param("n", u32)

    def scaled_sum(x: ptx.Val, y: ptx.Val) -> ptx.Val:
        return k.convert(k.fma(k.convert(x, f32), 0.75, k.convert(y, f32)), dtype, "rn")

    first = (k.ctaid() * 128 + k.tid()) * vector
    with k.if_(first + vector <= count):
        pairs = zip(x.load(first, vector), y.load(first, vector), strict=True)
        out.store(first, [scaled_sum(a, b) for a, b in pairs])
    with k.else_, k.loop(first, count) as i:
        out.store(i, scaled_sum(x.load(i), y.load(i)))

    a, b = np.random.default_rng(n).standard_normal((2, n)).astype(NUMPY[dtype.name])
    result = Buffer(np.empty_like(a), initialized=False)
    buffers = [Buffer(a, writable=False), Buffer(b, writable=False), result]
    launch(assembled(k), grid=-(-n // (128 * vector)), block=128, arguments=[*buffers, n])
    exact = a.astype(np.float64) * 0.75 + b.astype(np.float64)
    # For numbers this close in size f64 is exact: rounded once, to f32, as by fma.
    expected = exact.astype(np.float32).astype(a.dtype)
    np.testing.assert_array_equal(result.array.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(("n", "blocks", "threads"), [(1, 1, 32), (10_001, 7, 128), (300, 3, 256)])
@pytest.mark.parametrize("schedule", [None, 1])
def test_reduction(n, blocks, threads, schedule):
    """Sums of blocks, by grid-sized steps, then the lanes of a warp, then the warps."""
    k = Kernel("reduction", "sm_75", block=threads)
    x, out, count = k.pointer("x", f32, readonly=True), k.pointer("out", f32), k.param("n", u32)
    warps = threads // 32
    partial, lane, warp = k.shared("partial", f32, warps), k.laneid(), k.tid() >> 5
    total = k.var(f32, 0.0, "total")
    with k.loop(k.ctaid() * threads + k.tid(), count, k.nctaid() * threads) as i:
        total += x.load(i)
    for distance in (16, 8, 4, 2, 1):
        total += k.shuffle("bfly", total, distance)
    with k.if_(lane.eq(0)):
        partial.store(warp, total)
    k.barrier()
    with k.if_(warp.eq(0)):
        sums = k.var(f32, partial.load(lane, where=lane < warps, otherwise=0.0), "sums")
        for distance in (16, 8, 4, 2, 1):
            sums += k.shuffle("down", sums, distance)
        with k.if_(lane.eq(0)):
            out.store(k.ctaid(), sums)

    values = np.random.default_rng(n).integers(-8, 8, n).astype(np.float32)  # sums are exact
    result = Buffer(np.empty(blocks, np.float32), initialized=False)
    arguments = [Buffer(values, writable=False), result, n]
    launch(assembled(k), grid=blocks, block=threads, arguments=arguments, schedule=schedule)
    owner = np.arange(n) // threads % blocks
    np.testing.assert_array_equal(result.array, np.bincount(owner, values, minlength=blocks))


def transpose(x: np.ndarray, dtype: DType, pad: int, schedule: int | None) -> Report:
    """Checks a transposition by squares of 32 x 32 whose rows in shared memory are padded."""
    k = Kernel("transpose", "sm_75", block=(32, 8))
    source, out = k.pointer("x", dtype, readonly=True), k.pointer("out", dtype)
    rows, columns = k.param("rows", u32), k.param("columns", u32)
    pitch = 32 + pad
    square = k.shared("square", dtype, 32 * pitch)
    tx, ty = k.tid("x"), k.tid("y")
    row0, column0 = k.ctaid("y") * 32, k.ctaid("x") * 32
    for step in range(0, 32, 8):
        row, column = row0 + ty + step, column0 + tx
        position = k.mad_wide(row, columns, k.convert(column, u64))
        value = source.load(position, where=(row < rows) & (column < columns))
        square.store((ty + step) * pitch + tx, value)
    k.barrier()
    for step in range(0, 32, 8):
        row, column = column0 + ty + step, row0 + tx
        position = k.mad_wide(row, rows, k.convert(column, u64))
        value = square.load(tx * pitch + ty + step)
        out.store(position, value, where=(row < columns) & (column < rows))

    result = Buffer(np.empty(x.T.shape, x.dtype), initialized=False)
    grid = -(-x.shape[1] // 32), -(-x.shape[0] // 32)
    arguments = [Buffer(x, writable=False), result, *x.shape]
    report = launch(assembled(k), grid, (32, 8), arguments, schedule=schedule)
    np.testing.assert_array_equal(result.array, x.T)
    return report


@pytest.mark.parametrize("shape", [(1, 1), (33, 65), (70, 31)])
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("schedule", [None, 2])
def test_transpose(shape, dtype, schedule):
    x = np.random.default_rng(0).standard_normal(shape).astype(NUMPY[dtype.name])
    transpose(x, dtype, 1, schedule)


@pytest.mark.parametrize(("pad", "worst"), [(1, 1), (0, 32)])
def test_padding_of_the_transpose_avoids_bank_conflicts(pad, worst):
    report = transpose(np.zeros((32, 32), np.float32), f32, pad, None)
    assert max(conflicts.worst for conflicts in report.bank_conflicts.values()) == worst


@pytest.mark.parametrize(("vector", "target"), [(1, "sm_75"), (2, "sm_90"), (4, "sm_90")])
@pytest.mark.parametrize("schedule", [None, 3])
def test_scatter(vector, target, schedule):
    """out[index[i], c] += value[i, c], by atomic additions of vectors."""
    n, channels, rows = 53, 12, 7
    k = Kernel("scatter", target, block=128)
    index, value = k.pointer("index", u32, readonly=True), k.pointer("value", f32, readonly=True)
    out, count = k.pointer("out", f32), k.param("n", u32)
    thread, vectors = k.ctaid() * 128 + k.tid(), channels // vector
    i, channel = thread // vectors, thread % vectors * vector
    with k.if_(i < count):
        added = (value + k.mul_wide(i, channels) + channel).load(0, vector)
        (out + k.mul_wide(index.load(i), channels) + channel).red(0, added)

    rng = np.random.default_rng(vector)
    # Sums of small integers are exact in every order.
    values = rng.integers(-2, 3, (n, channels)).astype(np.float32)
    expected = rng.integers(-2, 3, (rows, channels)).astype(np.float32)
    indices = rng.integers(0, rows, n).astype(np.uint32)
    result = Buffer(expected.copy())
    arguments = [Buffer(indices, writable=False), Buffer(values, writable=False), result, n]
    blocks = -(-n * vectors // 128)
    launch(assembled(k), grid=blocks, block=128, arguments=arguments, schedule=schedule)
    np.add.at(expected, indices, values)
    np.testing.assert_array_equal(result.array, expected)
