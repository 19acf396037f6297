"""Tiles of each strategy on a target, and the strategy of a problem."""

from __future__ import annotations

import dataclasses

from ptx.definition import Sizes
from ptx.isa.dtypes import DType
from ptx.isa.targets import Target
from ptx.kernels.gemm.config import (
    SHALLOW_DEPTH,
    STRATEGIES,
    GemmConfig,
    largest_resident_depth,
)
from ptx.tile.layout import Layout
from ptx.tile.occupancy import leaves_idle, sum_parts
from ptx.tile.plan import TilePlan, at_least, atom_of

__all__ = ["SplitPlan", "StreamPlan", "choose", "gemm_plan"]

_FLIGHT_BYTES = 26 * 1024  # what memory brings to an SM in the time of one access
_DEEPEST = 8  # stages
_LEAST_DEPTH = 512  # of a part of K


@dataclasses.dataclass(frozen=True)
class StreamPlan(TilePlan):
    """Tiles of a kernel that goes through rows and keeps the small operand.

    Attributes:
      large_width: elements of the large operand that are read together.
      chunks: the chunks of `k` along K, all of which the small operand has in shared memory.
      held: the small operand's fragments stay in registers.
    """

    large_width: int = 1
    chunks: int = 1
    held: bool = False


@dataclasses.dataclass(frozen=True)
class SplitPlan(TilePlan):
    """Tiles of a kernel whose warps have parts of K.

    Attributes:
      large_width: elements of the large operand that are read together.
      split: groups of `warps`, each of which has all of the tile.
    """

    large_width: int = 1
    split: int = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.product_threads * self.split


def choose(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    transpose_a: bool = False,
    transpose_b: bool = False,
    float_type: DType,
    exact: bool = False,
    strategy: str = "auto",
    use_alpha: bool = False,
    use_c: bool = False,
    use_beta: bool = False,
) -> GemmConfig:
    """The kernel of a product [m, k] @ [k, n].

    The operand with more rows is streamed, and the other one is kept. K in one pass leaves each
    block no more to do than to copy; a deeper one whose small operand fits shared memory is read
    once as well. Where neither is so, or where there would be too few blocks to keep all of the
    memory busy, K is split.

    Args:
      m: rows of the result.
      n: its columns.
      k: what is summed over.
      batch: products.
      transpose_a: whether a is [k, m].
      transpose_b: whether b is [n, k].
      float_type: the type of the operands.
      exact: f32 is multiplied as f32.
      strategy: "auto", or one of `STRATEGIES`.
      use_alpha: whether the product is multiplied by alpha.
      use_c: whether c is added.
      use_beta: whether c is multiplied by beta.

    Raises:
      ValueError: the strategy cannot take this problem.
    """
    if strategy not in ("auto", *STRATEGIES):
        raise ValueError(f"strategy must be 'auto' or one of {STRATEGIES}, got {strategy!r}")
    swapped = n > m
    rows, columns = (n, m) if swapped else (m, n)
    blocks = batch * -(-rows // 128) * -(-columns // 128)
    if strategy == "auto":
        if k > largest_resident_depth(float_type) or (
            k >= 4 * SHALLOW_DEPTH and leaves_idle(blocks)
        ):
            strategy = "warp_parallel"
        else:
            strategy = "shallow_k" if k <= SHALLOW_DEPTH else "cache_persistent"
    transposed_large, transposed_small = (
        (not transpose_b, not transpose_a) if swapped else (transpose_a, transpose_b)
    )
    parts = None
    if strategy == "warp_parallel":
        tiles = batch * -(-rows // (256 if columns <= 16 else 64)) * -(-columns // 64)
        parts = sum_parts(tiles, k // _LEAST_DEPTH, per_sm=2)
    config = GemmConfig(
        strategy,
        columns=columns,
        depth=k,
        large_k_axis=0 if transposed_large else 1,
        small_k_axis=1 if transposed_small else 0,
        swapped=swapped,
        parts=parts,
        float_type=float_type,
        exact=exact,
        use_alpha=use_alpha and parts is None,
        use_c=use_c and parts is None,
        use_beta=use_beta and parts is None,
    )
    config.validate()
    return config


def gemm_plan(config: GemmConfig, target: Target, sizes: Sizes | None) -> StreamPlan | SplitPlan:
    """Tiles of a product with so many rows r; without sizes, rows that a vector divides."""
    large_width = config.large_width(16 if sizes is None else sizes["r"])
    if config.parts is None:
        return _stream_plan(config, target, large_width)
    return _split_plan(config, target, large_width)


def _stream_plan(config: GemmConfig, target: Target, large_width: int) -> StreamPlan:
    """Tiles for 'shallow_k' and 'cache_persistent'.

    N covers all columns if it can: each further tile reads the large operand again. Stages are as
    many as bring enough bytes on their way.
    """
    atom, width = atom_of(config, target), config.float_type.bytes
    narrowest = 32 if width == 2 and atom else 16
    n = at_least(config.columns, narrowest, 128 if atom or width < 8 else 64)
    # What cannot be copied past the registers takes room there, until its chunk is free.
    single = large_width * width < 4 or not target.supports("sm_80")
    k = at_least(config.depth, 32 // width, (64 if single else 128) // width)
    held = config.strategy == "shallow_k" and atom is not None
    if held:
        k = at_least(config.depth, 32 // width, SHALLOW_DEPTH)
    chunks = -(-config.depth // k)
    while True:
        m, warps = (128, (4, 2)) if n == 128 else (64 if width == 8 or single else 128, (4, 1))
        if atom is None:
            m, warps = 64, (4, 1)
        stage = Layout.padded(
            config.float_type, k_extent=k, extent=m, k_axis=config.large_k_axis
        ).bytes
        stages = 2
        if target.supports("sm_80"):
            stages = max(3, min(_DEEPEST, 1 + -(-_FLIGHT_BYTES // stage)))
        kept = Layout.padded(
            config.float_type, k_extent=k, extent=n, k_axis=config.small_k_axis
        ).bytes
        if stages * stage + chunks * kept <= target.shared_per_block or n == narrowest:
            return StreamPlan(
                m, n, k, warps, stages,
                min_blocks=1, large_width=large_width, chunks=chunks, held=held,
            )  # fmt: skip
        n //= 2


def _split_plan(config: GemmConfig, target: Target, large_width: int) -> SplitPlan:
    """Tiles for 'warp_parallel': each warp, or pair of warps, has its own part of each chunk of K.

    Tiles of few columns have many rows: each tile reads its columns' operand again.
    """
    dtype = config.float_type
    narrow = not target.supports("sm_80") or large_width * dtype.bytes < 4
    doubles = dtype.bytes == 8 and atom_of(config, target) is None
    n = at_least(config.columns, 16, 32 if doubles else 64)
    m = 64 if narrow else min(256, 4096 // n)
    if config.large_k_axis == 0:
        m = min(m, 128 * large_width)  # a copy for each thread
    k = 128 // dtype.bytes
    # Sums in f64 take two registers each, and so much shared memory too when they are added up.
    warps, split = ((2, 1), 2) if dtype.bytes == 8 else ((1, 1), 4)
    stage = sum(
        Layout.padded(dtype, k_extent=k, extent=extent, k_axis=axis).bytes
        for extent, axis in ((m, config.large_k_axis), (n, config.small_k_axis))
    )
    stages = min(4, target.shared_per_block // stage) if target.supports("sm_80") else 2
    return SplitPlan(m, n, k, warps, stages, min_blocks=1, large_width=large_width, split=split)
