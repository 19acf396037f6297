"""GEMM of few rows and columns and a deep K: strategy 'warp_parallel'."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import Instance
from ptx.isa.dtypes import u64
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.operands import operands
from ptx.kernels.gemm.plan import SplitPlan
from ptx.tile.dense import DenseTile
from ptx.tile.loop import Cursor, Loop
from ptx.tile.plan import make_math
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import store_vector, vector_width

__all__ = ["split_blocks", "split_gemm"]


def split_gemm(k: Kernel, config: GemmConfig, plan: SplitPlan, p: Any) -> None:
    """Writes a kernel whose blocks have parts of K, and whose warps have parts of those.

    A block has a tile of one product (grid x: products, parts and tiles of rows; grid y: tiles of
    columns) and a part of K. Both operands pass through a ring of shared memory; of each chunk
    there, each warp (or pair of warps) multiplies its own slice along K, for the whole tile. At the
    end their sums are added up in shared memory, always in the same order, and written as they
    are: another pass adds up the parts.
    """
    assert config.parts is not None
    dtype, wide = config.float_type, p.y.dtype
    product, block = k.ctaid("x") // p.blocks, k.ctaid("x") % p.blocks
    tiles = p.blocks // config.parts
    part, first_row = block // tiles, block % tiles * plan.m
    first_column = k.ctaid("y") * plan.n
    depth = part_depth(config, plan)
    first_k = part * depth
    k.name(product=product, part=part, first_row=first_row, first_k=first_k)
    a_matrix, b_matrix = operands(k, config, plan, p, product)

    a = SharedTile.make(
        k, "a", dtype, k_extent=plan.k, extent=plan.m, k_axis=config.large_k_axis,
        dynamic=True, stages=plan.stages,
    )  # fmt: skip
    b = SharedTile.make(
        k, "b", dtype, k_extent=plan.k, extent=plan.n, k_axis=config.small_k_axis,
        dynamic=True, stages=plan.stages,
    )  # fmt: skip
    math = make_math(k, config, a, b, plan, split=plan.split)
    cursor = Cursor(k, chunk=-(-depth // plan.k))

    def at(tile: SharedTile, matrix, first: Val):
        def locate(row: Val, column: Val) -> tuple[Pointer, Val]:
            across, along = (column, row) if tile.layout.k_axis == 0 else (row, column)
            return matrix.at(first + across, first_k + cursor["chunk"] * plan.k + along)

        return locate

    sources = [
        DenseTile(
            k, tile, at(tile, matrix, first), width=min(matrix.width, plan.k), threads=plan.threads
        )
        for tile, matrix, first in ((a, a_matrix, first_row), (b, b_matrix, first_column))
    ]
    here = k.min(depth, config.depth - first_k)  # of this part
    chunks = (here + (plan.k - 1)) // plan.k
    loop = Loop(k, cursor, sources, stages=plan.stages, chunks=chunks)
    loop.start()
    with k.loop(0, chunks, name="chunk", label="BW_K_LOOP"):
        math.multiply(loop.next())
        loop.release()
    loop.end()

    k.comment("the sum over the warps")
    sums = k.dynamic_shared(wide, plan.split * plan.m * plan.n, over=a.first)
    pitch = plan.n
    own = sums + k.tid() // plan.product_threads * (plan.m * pitch)
    for row in math.rows():
        for column, values in row.parts:
            place = own + k.mad(row.row, pitch, column)
            place.store(0, values if len(values) > 1 else values[0])
    k.barrier()
    width = vector_width(wide, config.columns, plan.n)
    first = p.y + k.mul_wide(product * config.parts + part, p.rows) * config.columns
    with k.loop(k.tid() * width, plan.m * plan.n, plan.threads * width, name="sum") as index:
        total: list[Val] = []
        for warp in range(plan.split):
            loaded = (sums + warp * (plan.m * pitch)).load(index, width)
            total = [x + y for x, y in zip(total, loaded, strict=True)] if total else list(loaded)
        row, column = first_row + index // plan.n, first_column + index % plan.n
        where = (row < p.rows) & (column < config.columns)
        place = first + k.mad_wide(row, config.columns, k.convert(column, u64))
        store_vector(place, total, where=where)


def part_depth(config: GemmConfig, plan: SplitPlan) -> int:
    """The depth of each part of K, in whole chunks."""
    assert config.parts is not None
    return -(-config.depth // (config.parts * plan.k)) * plan.k


def split_blocks(instance: Instance) -> int:
    """Blocks of a product: its parts of each tile of rows."""
    return instance.config.parts * -(-instance.sizes["r"] // instance.plan.m)
