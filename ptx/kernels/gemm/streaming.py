"""GEMM that reads a large operand once: strategies 'shallow_k' and 'cache_persistent'."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import Instance
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.operands import Matrix, operands, scalar
from ptx.kernels.gemm.plan import StreamPlan
from ptx.kernels.gemm.result import GemmResult
from ptx.tile.dense import DenseTile
from ptx.tile.layout import permuted_column
from ptx.tile.loop import Cursor, Loop
from ptx.tile.occupancy import enough_blocks
from ptx.tile.plan import atom_of, make_math
from ptx.tile.shared import SharedTile
from ptx.tile.tensor_cores import TensorCores

__all__ = ["streaming_blocks", "streaming_gemm"]

_BLOCKS = enough_blocks(4)  # of a launch


def streaming_gemm(k: Kernel, config: GemmConfig, plan: StreamPlan, p: Any) -> None:
    """Writes a kernel whose blocks go through tiles of rows, and keep the small operand.

    A block has `StreamPlan.n` columns (grid y) of one product. The small operand's part of them is
    loaded once, into shared memory, and of a shallow K from there into registers. The blocks of a
    product (grid x) take turns with its tiles of rows, which pass through a ring of shared memory:
    while one is multiplied the next ones are on their way, those of the next tile too while a
    tile's result is written.
    """
    dtype = config.float_type
    product, block = k.ctaid("x") // p.blocks, k.ctaid("x") % p.blocks
    first_column = k.ctaid("y") * plan.n
    k.name(product=product, first_tile=block, first_column=first_column)
    a_matrix, b_matrix = operands(k, config, plan, p, product)
    written = GemmResult(
        k, config, p.y + k.mul_wide(product, p.rows) * config.columns, p.rows,
        alpha=scalar(p.alpha, p.alpha_step, product),
        beta=scalar(p.beta, p.beta_step, product),
    )  # fmt: skip

    a = SharedTile.make(
        k, "a", dtype, k_extent=plan.k, extent=plan.m, k_axis=config.large_k_axis,
        dynamic=True, stages=plan.stages,
    )  # fmt: skip
    atom = atom_of(config, k.target)
    b = SharedTile.make(
        k, "b", dtype, k_extent=plan.k, extent=plan.n, k_axis=config.small_k_axis,
        dynamic=True, stages=plan.chunks,
        permuted=atom is not None and dtype.bytes == 2,  # then a lane writes 16 bytes
    )  # fmt: skip
    math = make_math(k, config, a, b, plan)

    tiles = (p.rows + (plan.m - 1)) // plan.m
    turns = (tiles - block + (p.blocks - 1)) // p.blocks
    cursor = Cursor(k, turn=turns, chunk=plan.chunks)

    def large_at(row: Val, column: Val) -> tuple[Pointer, Val]:
        across, along = (column, row) if a.layout.k_axis == 0 else (row, column)
        tile = block + cursor["turn"] * p.blocks
        return a_matrix.at(tile * plan.m + across, cursor["chunk"] * plan.k + along)

    source = DenseTile(k, a, large_at, width=min(a_matrix.width, plan.k), threads=plan.threads)
    _begin_small_operand(k, b, b_matrix, first_column, plan)
    loop = Loop(k, cursor, [source], stages=plan.stages, chunks=turns * plan.chunks)
    loop.start()
    if plan.held and isinstance(math, TensorCores):
        loop.arrive()
        math.hold()
    with k.loop(block, tiles, p.blocks, name="tile") as tile:
        math.clear()
        with k.loop(plan.chunks, name="chunk", label="BW_K_LOOP") as chunk:
            math.multiply(loop.next(), chunk)
            loop.release()
        k.comment("this tile's result")
        written.store(math, tile * plan.m, first_column)
    loop.end()


def _begin_small_operand(
    k: Kernel, tile: SharedTile, matrix: Matrix, first_column: Val, plan: StreamPlan
) -> None:
    """Begins to load the small operand's columns of a block, with all of K.

    They arrive together with the first chunk of the large operand.

    Args:
      k: the kernel.
      tile: a stage for each chunk of K.
      matrix: where the columns are.
      first_column: the block's.
      plan: tiles.
    """
    k.comment("the small operand")
    layout, width = tile.layout, min(matrix.width, plan.k)
    if layout.permuted and layout.k_axis == 0:
        width = min(width, 2)  # so many neighbours stay neighbours
    with k.loop(plan.chunks, name="kept_chunk") as chunk:

        def at(row: Val, column: Val) -> tuple[Pointer, Val]:
            across, along = (column, row) if layout.k_axis == 0 else (row, column)
            across = permuted_column(across) if layout.permuted else across
            return matrix.at(first_column + across, chunk * plan.k + along)

        source = DenseTile(k, tile, at, width=width, threads=plan.threads)
        source.begin(chunk, None)
        source.finish(chunk)


def streaming_blocks(instance: Instance) -> int:
    """Blocks that take turns with the tiles of rows of a product."""
    plan, sizes = instance.plan, instance.sizes
    tiles, across = -(-sizes["r"] // plan.m), -(-sizes["n"] // plan.n)
    most = max(1, _BLOCKS // max(1, sizes["g"] * across))
    turns = max(1, -(-tiles // most))
    return -(-tiles // turns)  # whose turns are as many, or one less
