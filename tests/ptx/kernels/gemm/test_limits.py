"""Products of more than 2^32 elements, and those that are larger than kernels can count."""

import dataclasses

import numpy as np
import pytest
from support.far import window

from ptx.emulator import Buffer, launch
from ptx.isa.dtypes import f32
from ptx.isa.targets import TARGETS
from ptx.kernels.gemm import GEMM, GemmConfig, choose
from ptx.kernels.gemm.plan import gemm_plan
from ptx.launch import BufferAddress

pytestmark = pytest.mark.proof

TARGET = TARGETS["sm_80"]


def run_last_block(config: GemmConfig, shapes, blocks: int, buffers: list[Buffer]):
    """Runs the last of so many blocks of a product."""
    how = GEMM.launch(config, TARGET, shapes)
    arguments = [buffers[v.buffer] if isinstance(v, BufferAddress) else v for v in how.arguments]
    arguments[4] = np.uint32(blocks)
    launch(
        how.text, (blocks, 1, 1), how.block, arguments, blocks=[blocks - 1],
        dynamic_shared=how.dynamic_shared, statistics=False,
    )  # fmt: skip


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize(("strategy", "k"), [("shallow_k", 32), ("cache_persistent", 64)])
def test_the_last_rows(strategy, k):
    rows, columns = 1 << 27, 64
    config = choose(rows, columns, k, float_type=f32, exact=True, strategy=strategy)
    few = gemm_plan(config, TARGET, {"r": rows}).m
    a, b = integers(few, k), integers(k, columns)
    large = window(a, (rows, k), writable=False)
    y = window(np.zeros((few, columns), np.float32), (rows, columns), writable=True)
    shapes = [(rows, k), (k, columns), (rows, columns)]
    run_last_block(config, shapes, rows // few, [large, Buffer(b, False), y])
    np.testing.assert_array_equal(y.array.ravel()[-few * columns :].reshape(few, columns), a @ b)


def test_the_last_part():
    depth, rows, columns = 1 << 26, 64, 63
    config = choose(rows, columns, depth, transpose_a=True, float_type=f32, exact=True)
    plan = gemm_plan(config, TARGET, {"r": rows})
    few = 4 * plan.k
    parts = depth // few
    config = dataclasses.replace(config, parts=parts)
    a, b = integers(few, rows), integers(few, columns)
    large = window(a, (depth, rows), writable=False)
    small = window(b, (depth, columns), writable=False)
    shapes = [(depth, rows), (depth, columns), (1, parts, rows, columns)]
    y = window(np.zeros((rows, columns), np.float32), shapes[-1], writable=True)
    run_last_block(config, shapes, parts, [large, small, y])
    np.testing.assert_array_equal(
        y.array.ravel()[-rows * columns :].reshape(rows, columns), a.T @ b
    )


def test_rows_beyond_32_bits():
    config = choose(1 << 20, 16, 16, float_type=f32)
    with pytest.raises(ValueError, match=r"rows .* below 2\*\*31, got 2147483648"):
        GEMM.launch(config, TARGET, [(1 << 31, 16), (16, 16), (1 << 31, 16)])


@pytest.mark.parametrize(("columns", "depth"), [(1 << 31, 1), (1 << 16, 1 << 16)])
def test_columns_and_depth_beyond_32_bits(columns, depth):
    config = GemmConfig("warp_parallel", columns, depth, parts=1)
    with pytest.raises(ValueError, match="columns and depth must be below"):
        config.validate()


def test_more_blocks_than_a_grid_has():
    config = choose(1 << 24, 1 << 24, 8, float_type=f32)
    with pytest.raises(ValueError, match="131072 blocks in y, and a launch takes 65535"):
        GEMM.launch(config, TARGET, [(1 << 24, 8), (8, 1 << 24), (1 << 24, 1 << 24)])
