"""Plans of the sampling kernels: shares of a block's threads, for a configuration and target."""

from __future__ import annotations

import dataclasses

from ptx.definition import Sizes
from ptx.isa.dtypes import bf16, f16, f32
from ptx.isa.targets import Target
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import Across, Window
from ptx.tile.occupancy import enough_blocks
from ptx.tile.vectors import vector_width

__all__ = [
    "SHARED_BYTES",
    "TILE",
    "SamplingPlan",
    "add_plan",
    "chunks",
    "kept_bytes",
    "points_plan",
    "read_plan",
    "without_tiles",
]

_WARP = 32
_CHUNK = 4  # points at most whose positions are in registers at a time
SHARED_BYTES = 48 * 1024  # of a block
TILE = 8  # queries of a tile along each axis


@dataclasses.dataclass(frozen=True)
class SamplingPlan:
    """Who does what in a block: neighbouring lanes have a unit, one head of a query.

    Attributes:
      width: neighbouring channels that a lane has at a time.
      lanes: the lanes of a unit, a power of two.
      vectors: the vectors of `width` channels, of a head.
      threads: the threads of a block.
      slice: channels that are multiplied at a time, of a tile of queries that a block has: see
        `backward_value_tiles`. 0 where blocks have units in order.
      min_blocks: see `ptx.definition.PlanLike`.
    """

    width: int
    lanes: int
    vectors: int
    threads: int = 128
    slice: int = 0
    min_blocks: int | None = None

    @property
    def chunk(self) -> int:
        """Points whose positions are calculated at a time, by as many lanes."""
        return min(self.lanes, _CHUNK)

    @property
    def units(self) -> int:
        """The units of a block."""
        return self.threads // self.lanes

    @property
    def turns(self) -> int:
        """How often the lanes of a unit take channels, until they have had all."""
        return -(-self.vectors // self.lanes)


def read_plan(config: SamplingConfig, target: Target, sizes: Sizes | None) -> SamplingPlan:
    """The plan of a kernel that reads images: a lane has vectors of 16 bytes, if they fit."""
    width = vector_width(config.float_type, config.channels)
    plan = _plan(config.channels // width, width, min_blocks=3)
    if config.sum_type is f32:
        plan = dataclasses.replace(plan, min_blocks=_blocks(plan, config, sizes, 4))
    return plan


def add_plan(config: SamplingConfig, target: Target, sizes: Sizes | None) -> SamplingPlan:
    """The plan of the kernel that adds to images.

    Lanes add to neighbouring memory, so that an instruction fills whole sectors: four sums at once
    where the GPU has such an instruction, else one.
    """
    vectors = config.sum_type is f32 and target.supports("sm_90")
    width = vector_width(f32, config.channels) if vectors else 1
    plan = _plan(config.channels // width, width, 4)
    if not (has_tiles(config, sizes) and target.supports("sm_80")):
        return plan
    return dataclasses.replace(
        plan, lanes=2, threads=2 * TILE * TILE, slice=32 if config.channels % 32 == 0 else 16,
        min_blocks=None,
    )  # fmt: skip


def without_tiles(plan: SamplingPlan) -> SamplingPlan:
    """The plan of `add_plan` for units in order."""
    return _plan(plan.vectors, plan.width, 4)


def has_tiles(config: SamplingConfig, sizes: Sizes | None) -> bool:
    """Whether neighbouring queries read neighbouring pixels, of types that tensor cores multiply.

    Those of a window's outputs do; and of points across an image those that are as many as its
    pixels, which are taken to be these.
    """
    if config.float_type not in (f16, bf16) or config.channels % 16 or config.geometry.nearest:
        return False
    if isinstance(config.geometry, Across):
        return config.dims == 2 and sizes is not None and sizes["q"] == config.pixels
    return isinstance(config.geometry, Window)


def points_plan(config: SamplingConfig, target: Target, sizes: Sizes | None) -> SamplingPlan:
    """The plan of the kernel backward to points.

    With softmax a unit keeps a number of each point in shared memory until it has all of them:
    where points are many, a block has few units, and a unit has more lanes than its channels need.
    """
    plan = read_plan(config, target, sizes)
    blocks = 2
    if config.sum_type is f32 and target.supports("sm_80"):
        # A lane has four channels at a time, of four pixels: of fewer numbers than otherwise.
        few_registers = config.float_type is config.coordinate_type is f32 and config.dims < 3
        blocks = _blocks(plan, config, sizes, 4 if few_registers else 3)
    plan = dataclasses.replace(plan, min_blocks=blocks)
    if not config.normalize:
        return plan
    while kept_bytes(config, plan) > SHARED_BYTES and plan.threads > _WARP:
        plan = dataclasses.replace(plan, threads=plan.threads // 2)
    while kept_bytes(config, plan) > SHARED_BYTES and plan.chunk < _CHUNK:
        plan = dataclasses.replace(plan, lanes=plan.lanes * 2)
    return plan


def _blocks(plan: SamplingPlan, config: SamplingConfig, sizes: Sizes | None, few: int) -> int:
    """The blocks of an SM: `few`, or one more for a launch so large that it always saves a wave.

    One more leaves fewer registers.
    """
    if sizes is None:
        return few + 1
    blocks = -(-sizes["n"] * sizes["q"] * config.heads // plan.units)
    return few + (blocks >= enough_blocks(few * (few + 1)))


def chunks(config: SamplingConfig, plan: SamplingPlan) -> int:
    """Chunks of points of a unit; none has points of two levels."""
    return sum(-(-count // plan.chunk) for count in config.points)


def kept_bytes(config: SamplingConfig, plan: SamplingPlan) -> int:
    """Bytes of shared memory in which each thread keeps a number of each of its points."""
    return chunks(config, plan) * plan.threads * config.sum_type.bytes


def _plan(vectors: int, width: int, min_blocks: int) -> SamplingPlan:
    lanes = 1
    while lanes < min(vectors, _WARP):
        lanes *= 2
    return SamplingPlan(width, lanes, vectors, min_blocks=min_blocks)
