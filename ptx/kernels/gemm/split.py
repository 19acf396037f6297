"""GEMM of few rows and columns and a deep K: strategy 'warp_parallel'."""

from __future__ import annotations

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.isa.targets import Target
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.operands import Sizes, operands
from ptx.kernels.gemm.plan import SplitPlan, split_plan
from ptx.kernels.limits import check_grid
from ptx.launch import Launch
from ptx.registry import Shapes
from ptx.tile.dense import DenseTile
from ptx.tile.loop import Cursor, Loop
from ptx.tile.plan import make_math
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import accumulator_of, store_vector, vector_width

__all__ = ["split_dynamic_shared", "split_gemm", "split_launch"]


def split_gemm(config: GemmConfig, target: Target) -> str:
    """The PTX of a kernel whose blocks have parts of K, and whose warps have parts of those.

    A block has a tile of one product (grid x: products, parts and tiles of rows; grid y: tiles of
    columns) and a part of K. Both operands pass through a ring of shared memory; of each chunk
    there, each warp (or pair of warps) multiplies its own slice along K, for the whole tile. At the
    end their sums are added up in shared memory, always in the same order, and written as they
    are: another pass adds up the parts.

    Parameters: large and small operand, result [batch, parts, rows, columns] in f32 (f64 for f64),
    and the u32 rows, blocks of a product, and steps: see `Sizes`.
    """
    assert config.parts is not None
    plan = split_plan(config, target)
    threads = plan.threads * plan.split
    dtype, wide = config.float_type, accumulator_of(config.float_type)
    name = f"bw_gemm_{dtype}_{plan.m}x{plan.n}x{plan.k}_warppar"
    k = Kernel(name, target, block=threads, min_blocks=plan.min_blocks)
    large, small = (k.pointer(name, dtype, readonly=True) for name in ("large", "small"))
    result = k.pointer("result", wide)
    rows, blocks = k.param("rows", u32), k.param("blocks", u32)
    batch, block = k.ctaid("x") // blocks, k.ctaid("x") % blocks
    tiles = blocks // config.parts
    part, first_row = block // tiles, block % tiles * plan.m
    first_column = k.ctaid("y") * plan.n
    depth = part_depth(config, plan)
    first_k = part * depth
    k.name(product=batch, part=part, first_row=first_row, first_k=first_k)
    a_matrix, b_matrix = operands(k, config, large, small, rows, batch)

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
            k, tile, at(tile, matrix, first), width=min(matrix.width, plan.k), threads=threads
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
    sums = Pointer(k, wide, "shared", a.first.base, a.first.offset)
    pitch = plan.n
    own = sums + k.tid() // plan.threads * (plan.m * pitch)
    for row in math.rows():
        for column, values in row.parts:
            place = own + k.mad(row.row, pitch, column)
            place.store(0, values if len(values) > 1 else values[0])
    k.barrier()
    width = vector_width(wide, config.columns, plan.n)
    first = result + k.mul_wide(batch * config.parts + part, rows) * config.columns
    with k.loop(k.tid() * width, plan.m * plan.n, threads * width, name="sum") as index:
        total: list[Val] = []
        for warp in range(plan.split):
            loaded = (sums + warp * (plan.m * pitch)).load(index, width)
            total = [x + y for x, y in zip(total, loaded, strict=True)] if total else list(loaded)
        row, column = first_row + index // plan.n, first_column + index % plan.n
        where = (row < rows) & (column < config.columns)
        place = first + k.mad_wide(row, config.columns, k.convert(column, u64))
        store_vector(place, total, where=where)
    return k.text()


def part_depth(config: GemmConfig, plan: SplitPlan) -> int:
    """Of K for each part: whole chunks."""
    assert config.parts is not None
    return -(-config.depth // (config.parts * plan.k)) * plan.k


def split_launch(config: GemmConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for large and small operand, and the parts."""
    assert config.parts is not None
    plan, sizes = split_plan(config, target), Sizes.of(config, shapes)
    blocks = config.parts * -(-sizes.rows // plan.m)
    grid = (sizes.batch * blocks, -(-config.columns // plan.n), 1)
    check_grid(grid)
    arguments = (*sizes.addresses(config), *sizes.numbers(blocks))
    return Launch(grid, (plan.threads * plan.split, 1, 1), arguments)


def split_dynamic_shared(config: GemmConfig, target: Target) -> int:
    """Bytes of dynamic shared memory: of the ring, or of the warps' sums after it."""
    plan, dtype = split_plan(config, target), config.float_type
    ring = sum(
        SharedTile.shared_bytes(
            dtype, k_extent=plan.k, extent=extent, k_axis=axis, stages=plan.stages
        )
        for extent, axis in ((plan.m, config.large_k_axis), (plan.n, config.small_k_axis))
    )
    return max(ring, plan.split * plan.m * plan.n * accumulator_of(dtype).bytes)
