"""The sample kernels: right in the emulator, and assembled for every target without spills."""

import ml_dtypes
import numpy as np
import pytest
from support.samples import (
    Reduction,
    ScaleAndAdd,
    Scatter,
    Transpose,
    reduction,
    scale_and_add,
    scatter,
    transpose,
)

import ptx
from ptx import bf16, f16, f32
from ptx.emulator import Buffer, launch

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

# Each with the first target that has its instructions.
SAMPLES = {
    "scale_and_add f32": (scale_and_add, ScaleAndAdd(), "sm_75"),
    "scale_and_add f16": (scale_and_add, ScaleAndAdd(f16), "sm_75"),
    "scale_and_add bf16": (scale_and_add, ScaleAndAdd(bf16), "sm_75"),
    "reduction": (reduction, Reduction(), "sm_75"),
    "transpose": (transpose, Transpose(), "sm_75"),
    "transpose f16": (transpose, Transpose(f16, rows=16), "sm_75"),
    "scatter f32": (scatter, Scatter(12), "sm_75"),
    "scatter f32 v4": (scatter, Scatter(12, vector=4), "sm_90"),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_assembles_for_every_target_that_has_it(sample):
    function, config, lowest = SAMPLES[sample]
    for target in ptx.TARGETS.values():
        if target < ptx.TARGETS[lowest]:
            with pytest.raises(ptx.UnsupportedError, match=rf"needs {lowest}.*target is {target}"):
                function(config, target)
            continue
        (assembled,) = ptx.assemble(function(config, target), target).values()
        assert (assembled.spill_stores, assembled.spill_loads) == (0, 0), target
        assert assembled.local_bytes == 0, target


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize(("n", "vector"), [(1, 4), (1003, 4), (1000, 2), (77, 1)])
def test_scale_and_add(dtype, n, vector, target):
    config = ScaleAndAdd(dtype, vector)
    rng = np.random.default_rng(n)
    x, y = (rng.standard_normal(n).astype(NUMPY[dtype.name]) for _ in range(2))
    out = Buffer(np.empty_like(x), initialized=False)
    arguments = [Buffer(x, writable=False), Buffer(y, writable=False), out, np.float32(0.75), n]
    blocks = -(-n // (config.block * vector))
    launch(scale_and_add(config, target), grid=blocks, block=config.block, arguments=arguments)
    exact = x.astype(np.float64) * 0.75 + y.astype(np.float64)
    # For numbers this close in size f64 is exact: rounded once, to f32, as by fma.
    expected = exact.astype(np.float32).astype(x.dtype)
    np.testing.assert_array_equal(out.array.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(("n", "blocks", "threads"), [(1, 1, 32), (10_001, 7, 128), (300, 3, 256)])
@pytest.mark.parametrize("schedule", [None, 1])
def test_reduction(n, blocks, threads, schedule):
    x = np.random.default_rng(n).integers(-8, 8, n).astype(np.float32)  # sums are exact
    out = Buffer(np.empty(blocks, np.float32), initialized=False)
    text = reduction(Reduction(threads), "sm_75")
    arguments = [Buffer(x, writable=False), out, n]
    launch(text, grid=blocks, block=threads, arguments=arguments, schedule=schedule)
    owner = np.arange(n) // threads % blocks
    np.testing.assert_array_equal(out.array, np.bincount(owner, x, minlength=blocks))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (33, 65), (70, 31)])
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("schedule", [None, 2])
def test_transpose(rows, columns, dtype, schedule):
    shape = rows, columns
    x = np.random.default_rng(0).standard_normal(shape).astype(NUMPY[dtype.name])
    out = Buffer(np.empty((columns, rows), x.dtype), initialized=False)
    config = Transpose(dtype)
    grid = -(-columns // config.tile), -(-rows // config.tile)
    arguments = [Buffer(x, writable=False), out, rows, columns]
    block = config.tile, config.rows
    text = transpose(config, "sm_75")
    launch(text, grid=grid, block=block, arguments=arguments, schedule=schedule)
    np.testing.assert_array_equal(out.array, x.T)


def test_padding_of_the_transpose_avoids_bank_conflicts():
    def worst(pad: int) -> int:
        x = np.zeros((32, 32), np.float32)
        out = Buffer(np.empty_like(x), initialized=False)
        text = transpose(Transpose(pad=pad), "sm_80")
        arguments = [Buffer(x, writable=False), out, 32, 32]
        report = launch(text, grid=1, block=(32, 8), arguments=arguments)
        return max(conflicts.worst for conflicts in report.bank_conflicts.values())

    assert worst(pad=1) == 1
    assert worst(pad=0) == 32


@pytest.mark.parametrize(("vector", "target"), [(1, "sm_75"), (2, "sm_90"), (4, "sm_90")])
@pytest.mark.parametrize("schedule", [None, 3])
def test_scatter(vector, target, schedule):
    n, channels, rows = 53, 12, 7
    rng = np.random.default_rng(vector)
    # Sums of small integers are exact in every type and order.
    value = rng.integers(-2, 3, (n, channels)).astype(np.float32)
    start = rng.integers(-2, 3, (rows, channels)).astype(value.dtype)
    index = rng.integers(0, rows, n).astype(np.uint32)
    out = Buffer(start)
    config = Scatter(channels, vector)
    arguments = [Buffer(index, writable=False), Buffer(value, writable=False), out, n]
    blocks = -(-n * channels // (config.block * vector))
    text = scatter(config, target)
    launch(text, grid=blocks, block=config.block, arguments=arguments, schedule=schedule)
    expected = start.astype(np.float64)
    np.add.at(expected, index, value.astype(np.float64))
    np.testing.assert_array_equal(out.array.astype(np.float64), expected)
