"""GEMM that reads a large operand once: strategies 'shallow_k' and 'cache_persistent'."""

from __future__ import annotations

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32
from ptx.isa.targets import Target
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.operands import Matrix, Sizes, operands, scalar
from ptx.kernels.gemm.plan import StreamPlan, stream_plan
from ptx.kernels.gemm.result import GemmResult
from ptx.kernels.limits import check_grid
from ptx.launch import Launch
from ptx.registry import Shapes
from ptx.tile.dense import DenseTile
from ptx.tile.fma import FusedMultiplyAdd
from ptx.tile.layout import permuted_column
from ptx.tile.loop import Cursor, Loop
from ptx.tile.plan import atom_of
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.tensor_cores import TensorCores
from ptx.tile.vectors import accumulator_of

__all__ = ["stream_dynamic_shared", "stream_launch", "streaming_gemm"]

_BLOCKS = 528  # of a launch: four for each SM of an H100 or H200
_LABELS = {"shallow_k": "shallowk", "cache_persistent": "cachepersist"}


def streaming_gemm(config: GemmConfig, target: Target) -> str:
    """The PTX of a kernel whose blocks go through tiles of rows, and keep the small operand.

    A block has `StreamPlan.n` columns (grid y) of one product. The small operand's part of them is
    loaded once, into shared memory, and of a shallow K from there into registers. The blocks of a
    product (grid x) take turns with its tiles of rows, which pass through a ring of shared memory:
    while one is multiplied the next ones are on their way, those of the next tile too while a
    tile's result is written.

    Parameters: large and small operand, alpha and beta where there are such, result, in which c
    is; and the u32 rows, blocks of a product, and steps: see `Sizes`.
    """
    plan = stream_plan(config, target)
    dtype, wide = config.float_type, accumulator_of(config.float_type)
    name = f"bw_gemm_{dtype}_{plan.m}x{plan.n}x{plan.k}_{_LABELS[config.strategy]}"
    k = Kernel(name, target, block=plan.threads, min_blocks=plan.min_blocks)
    large, small = (k.pointer(name, dtype, readonly=True) for name in ("large", "small"))
    alpha = k.pointer("alpha", wide, readonly=True) if config.use_alpha else None
    beta = k.pointer("beta", wide, readonly=True) if config.use_beta else None
    result = k.pointer("result", dtype)
    rows, blocks = k.param("rows", u32), k.param("blocks", u32)
    batch, block = k.ctaid("x") // blocks, k.ctaid("x") % blocks
    first_column = k.ctaid("y") * plan.n
    k.name(product=batch, first_tile=block, first_column=first_column)
    a_matrix, b_matrix = operands(k, config, large, small, rows, batch)
    written = GemmResult(
        k, config, result + k.mul_wide(batch, rows) * config.columns, rows,
        alpha=None if alpha is None else scalar(k, alpha, "alpha", batch),
        beta=None if beta is None else scalar(k, beta, "beta", batch),
    )  # fmt: skip

    a = SharedTile.make(
        k, "a", dtype, k_extent=plan.k, extent=plan.m, k_axis=config.large_k_axis,
        dynamic=True, stages=plan.stages,
    )  # fmt: skip
    atom = atom_of(config, target)
    b = SharedTile.make(
        k, "b", dtype, k_extent=plan.k, extent=plan.n, k_axis=config.small_k_axis,
        dynamic=True, stages=plan.chunks,
        permuted=atom is not None and dtype.bytes == 2,  # then a lane writes 16 bytes
    )  # fmt: skip
    math = (
        FusedMultiplyAdd(k, a, b, plan.threads)
        if atom is None
        else TensorCores(k, atom, a, b, plan.warps)
    )

    tiles = (rows + (plan.m - 1)) // plan.m
    turns = (tiles - block + (blocks - 1)) // blocks
    cursor = Cursor(k, turn=turns, chunk=plan.chunks)

    def large_at(row: Val, column: Val) -> tuple[Pointer, Val]:
        across, along = (column, row) if a.layout.k_axis == 0 else (row, column)
        tile = block + cursor["turn"] * blocks
        return a_matrix.at(tile * plan.m + across, cursor["chunk"] * plan.k + along)

    source = DenseTile(k, a, large_at, width=min(a_matrix.width, plan.k), threads=plan.threads)
    _begin_small_operand(k, b, b_matrix, first_column, plan)
    loop = Loop(k, cursor, [source], stages=plan.stages, chunks=turns * plan.chunks)
    loop.start()
    if plan.held and isinstance(math, TensorCores):
        loop.arrive()
        math.hold()
    with k.loop(block, tiles, blocks, name="tile") as tile:
        math.clear()
        with k.loop(plan.chunks, name="chunk", label="BW_K_LOOP") as chunk:
            math.multiply(loop.next(), Stage(chunk))
            loop.release()
        k.comment("this tile's result")
        written.store(math, tile * plan.m, first_column)
    loop.end()
    return k.text()


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
        source.begin(Stage(chunk), None)
        source.finish(Stage(chunk))


def stream_launch(config: GemmConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for large and small operand, c, alpha, beta and result."""
    plan, sizes = stream_plan(config, target), Sizes.of(config, shapes)
    tiles, across = -(-sizes.rows // plan.m), -(-config.columns // plan.n)
    most = max(1, _BLOCKS // max(1, sizes.batch * across))
    turns = max(1, -(-tiles // most))
    blocks = -(-tiles // turns)  # whose turns are as many, or one less
    grid = (sizes.batch * blocks, across, 1)
    check_grid(grid)
    arguments = (*sizes.addresses(config), *sizes.numbers(blocks))
    return Launch(grid, (plan.threads, 1, 1), arguments)


def stream_dynamic_shared(config: GemmConfig, target: Target) -> int:
    """Bytes of dynamic shared memory."""
    plan, dtype = stream_plan(config, target), config.float_type
    return SharedTile.shared_bytes(
        dtype, k_extent=plan.k, extent=plan.m, k_axis=config.large_k_axis, stages=plan.stages
    ) + SharedTile.shared_bytes(
        dtype, k_extent=plan.k, extent=plan.n, k_axis=config.small_k_axis, stages=plan.chunks
    )
