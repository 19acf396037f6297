"""The shares of the work that blocks have, by configuration, target and sizes."""

from __future__ import annotations

import dataclasses
import math

from ptx.definition import Sizes
from ptx.isa.targets import Target
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.samples.corners import CornerTable, Table
from ptx.kernels.deform_conv.samples.tables import PositionTable, SampleTable
from ptx.tile.direct import DirectPlan
from ptx.tile.occupancy import leaves_idle
from ptx.tile.plan import TilePlan, at_least, streams
from ptx.tile.vectors import vector_width

__all__ = [
    "SamplePlan",
    "backward_data_tiles",
    "backward_input_plan",
    "backward_offset_plan",
    "backward_weight_plan",
    "backward_weight_tiles",
    "channels_per_position",
    "forward_plan",
    "forward_tiles",
    "grouped_plan",
    "is_direct",
    "segmented_plan",
    "shuffled_plan",
]

TINY = 4
# Instructions of a tap, in SASS of sm_90: a position, and the four loads of a vector with what
# they need. A thread's pixel is found once for all taps.
_POSITION, _LOADS, _PIXEL = 70, 16, 90


def is_direct(config: DeformConvConfig) -> bool:
    """Whether the kernels for layers of tiny groups are chosen, which have no tiles.

    A tile has 16 channels of one group at least, and gathers and multiplies them all, be they
    there or not; a thread of the direct kernels has channels of several groups, but multiplies
    without tensor cores. Instructions of bf16 on sm_80 for each input channel, tap and output
    pixel, counted by the emulator, direct against tiled:

    | C/G x Co/G | forward | to input | to offset | to weights |
    |---|---|---|---|---|
    | 1 x 1 | 33 : 1636 | 23 : 1351 | 43 : 1644 | 41 : 4854 |
    | 1 x 4 | 42 : 1634 | 35 : 788 | 55 : 1081 | 63 : 4125 |
    | 4 x 4 | 48 : 207 | 35 : 200 | 56 : 236 | 46 : 528 |
    | 8 x 8 | 90 : 88 | 50 : 92 | 72 : 109 | 54 : 210 |

    At 8 x 8 forward gains nothing. Of f32 at 4 x 4 it is 54 : 116, and of f64 56 : 141.
    """
    return config.in_channels_per_group <= TINY and config.out_channels_per_group <= TINY


@dataclasses.dataclass(frozen=True)
class SamplePlan(TilePlan):
    """A block's share of a product with samples.

    Attributes:
      table: what a block keeps of its samples in shared memory.
      table_bytes: the bytes of shared memory that are left to it.
      parts: that a chunk of the samples is gathered in, where they lie in shared memory.
      in_flight: how many of these parts are loaded at a time.
    """

    table: type[Table] = SampleTable
    table_bytes: int = 24 * 1024  # nine taps of 128 pixels
    parts: int = 1
    in_flight: int = 1

    def table_taps(self, config: DeformConvConfig) -> int:
        """How many taps the table has room for."""
        return self.table.taps_that_fit(config, self.m, self.table_bytes)

    @property
    def narrow(self) -> bool:
        """Whether a tile has channels of several offset groups."""
        return self.table is PositionTable

    def channel_extent(self, config: DeformConvConfig) -> int:
        """Neighbouring input channels that a tile may have.

        They are of one group and, unless each vector's corners are calculated by itself, of one
        offset group.
        """
        return config.in_channels_per_group if self.narrow else config.segment

    @property
    def has_strips(self) -> bool:
        """Whether the output pixels of a block are neighbours in a strip: see `PixelRows`."""
        return self.table is not SampleTable


def forward_plan(
    config: DeformConvConfig, target: Target, sizes: Sizes | None
) -> SamplePlan | DirectPlan:
    """The plan of the forward kernel; large tiles without sizes."""
    if is_direct(config):
        return grouped_plan(config)
    small = sizes is not None and is_small_grid(config, sizes["n"] * sizes["p"] * sizes["q"])
    return forward_tiles(config, target, small=small)


def backward_input_plan(
    config: DeformConvConfig, target: Target, sizes: Sizes | None
) -> SamplePlan | DirectPlan:
    """The plan of the kernel backward to input, for launches of all sizes."""
    if is_direct(config):
        return segmented_plan(config)
    return backward_data_tiles(config, target)


def backward_offset_plan(
    config: DeformConvConfig, target: Target, sizes: Sizes | None
) -> SamplePlan | DirectPlan:
    """The plan of the kernel backward to offset and mask, for launches of all sizes."""
    if is_direct(config):
        return shuffled_plan(config)
    plan = backward_data_tiles(config, target)
    if plan.narrow and plan.n >= 64 and _bytes(config) == 2:
        min_blocks = 4 if config.channels_per_offset_group == 4 else 3
        return dataclasses.replace(plan, n=64, min_blocks=min_blocks)
    return plan


def backward_weight_plan(
    config: DeformConvConfig, target: Target, sizes: Sizes | None
) -> SamplePlan | DirectPlan:
    """The plan of the kernel backward to the weights, for launches of all sizes."""
    return segmented_plan(config) if is_direct(config) else backward_weight_tiles(config, target)


def forward_tiles(config: DeformConvConfig, target: Target, *, small: bool = False) -> SamplePlan:
    """M are output pixels, N output channels of a group, K input channels of a segment.

    N covers a group's output channels with one tile if it can: each further tile gathers the
    images again.

    Channels that are a multiple of 64 bytes are streamed, where tensor cores take them: a warp
    gathers 32 pixels for all N, so that nothing is gathered twice in a block, and four stages of
    weights hide the latency of L2. Offset groups may be that wide, or of 8 or 16 bytes: a lane
    has 16 bytes, and registers for two positions.

    More than 128 outputs do not fit the registers of a warp that has 32 pixels. There eight warps
    share the sampled images through shared memory, and 256 outputs cost one gather. So do four
    warps for 128 outputs, where an SM has shared memory for three such blocks.

    Args:
      config: the convolution.
      target: the GPU.
      small: whether tiles are small, because large ones would leave SMs without a block.
    """
    slice_, lane = 64 // _bytes(config), 16 // _bytes(config)
    per_offset_group = config.channels_per_offset_group
    whole_slices = config.segment % slice_ == 0
    lanes = config.in_channels_per_group % slice_ == 0 and (
        per_offset_group % lane == 0 or per_offset_group * 2 == lane
    )
    out_group, halves = config.out_channels_per_group, _bytes(config) == 2
    if streams(config, target) and (whole_slices or lanes):
        if whole_slices and not small:
            # The 128 bytes of a pixel lie in banks of their own; of 64, those of two pixels do not.
            deep, room = config.segment % (2 * slice_) == 0, target.shared_per_sm
            if -(-out_group // 128) % 2 == 0:
                wide = SamplePlan(128, 256, slice_, (2, 4), table=CornerTable, min_blocks=1)
                if deep and room > 100 * 1024:
                    return dataclasses.replace(wide, k=2 * slice_, parts=4, in_flight=2)
                return wide
            if deep and room > 200 * 1024 and out_group > 64:
                return SamplePlan(
                    64, 128, 2 * slice_, (2, 2), table=CornerTable, min_blocks=3, parts=2
                )
        n = at_least(out_group, 32, 128 if (halves or whole_slices) and not small else 64)
        table = CornerTable if whole_slices else PositionTable
        # Positions are calculated anew for each tap: more warps hide that better than larger tiles.
        narrow = halves and n == 64 and not whole_slices
        m = 64 if small or n == 32 or narrow else 128
        return SamplePlan(
            m, n, slice_, (4, 1), streamed=True, table=table, **_shared_for_two(target),
            min_blocks=_blocks_per_sm(config, target, m * n),
        )  # fmt: skip
    n = at_least(config.out_channels_per_group, 16, {2: 128, 4: 64, 8: 32}[_bytes(config)])
    depth = _depth(config, config.segment)
    if target.shared_per_sm <= 64 * 1024 and n > 64 and depth == 64 // _bytes(config):
        depth //= 2  # so that an SM has room for two blocks
    return SamplePlan(
        64, n, depth, (4, 1) if n == 16 else (2, 2),
        min_blocks=_blocks_per_sm(config, target, 64 * n),
    )  # fmt: skip


def is_small_grid(config: DeformConvConfig, pixels: int) -> bool:
    """Whether forward blocks of 128 x 128 would be fewer than the SMs of a large GPU.

    Args:
      config: the convolution.
      pixels: the pixels of all outputs.
    """
    tiles = config.groups * -(-config.out_channels_per_group // 128)
    return leaves_idle(-(-pixels // 128) * tiles)


def backward_data_tiles(config: DeformConvConfig, target: Target) -> SamplePlan:
    """M are output pixels, N input channels, K output channels of a group.

    A warp has whole rows, so that a row's dots are summed within it.

    Output channels that are a multiple of 64 bytes are streamed, where tensor cores take them. A
    lane has 8 neighbouring sums: offset groups are of so many channels or half of them, or have
    several lanes' channels.
    """
    width, per_offset_group = _bytes(config), config.channels_per_offset_group
    narrow = per_offset_group in (4, 8) and config.in_channels_per_group % 8 == 0
    columns = config.in_channels_per_group if narrow else config.segment
    whole_slices = config.out_channels_per_group % (64 // width) == 0
    if streams(config, target) and whole_slices and columns % 8 == 0:
        n = at_least(columns, 32, 128 if width == 2 else 64)
        table = PositionTable if narrow else CornerTable
        # Positions take the registers of the second half of the pixels.
        m = 64 if n == 32 or narrow else 128
        return SamplePlan(
            m, n, 64 // width, (4, 1), streamed=True, table=table, **_shared_for_two(target)
        )
    n = at_least(config.segment, 16, {2: 64, 4: 32, 8: 16}[width])
    return SamplePlan(64, n, _depth(config, config.out_channels_per_group), (4, 1))


def backward_weight_tiles(config: DeformConvConfig, target: Target) -> SamplePlan:
    """M are input channels, N output channels of a group, K output pixels.

    Each further tile along N gathers the images again, so that N is large for halves.
    """
    width, per_offset_group = _bytes(config), config.channels_per_offset_group
    largest = 64 if width < 8 else 32
    n = at_least(config.out_channels_per_group, 32, largest)
    narrow = per_offset_group in (4, 8) and config.in_channels_per_group % per_offset_group == 0
    vectors = config.segment % (16 // width) == 0 and config.segment >= 32
    if not (streams(config, target) and (narrow or vectors)):
        m = at_least(config.segment, 32, largest)
        return SamplePlan(m, n, _depth(config, 64), (2, 2))
    channels = config.in_channels_per_group if narrow else config.segment
    table = PositionTable if narrow else CornerTable
    little = target.shared_per_sm <= 100 * 1024
    if channels > 64 and config.out_channels_per_group > 64:
        if config.out_channels_per_group <= 128 and channels > 96 and not little:
            return SamplePlan(128, 128, 64 // width, (2, 4), table=table)
        if config.out_channels_per_group <= 128 or width == 4:
            blocks = 2 if little else 4
            return SamplePlan(64, 128, 64 // width, (1, 4), table=table, min_blocks=blocks)
        if little:  # room for one block: of eight warps
            return SamplePlan(128, 256, 32, (2, 4), table=table, min_blocks=1)
        return SamplePlan(64, 256, 32, (1, 4), table=table)
    m = at_least(channels, 32, largest)
    blocks = 4 if narrow and not little else 2  # positions take time, which more warps hide
    return SamplePlan(m, n, _depth(config, 64), (2, 2), table=table, min_blocks=blocks)


def _shared_for_two(target: Target) -> dict[str, int]:
    """Stages of weights, and bytes of the table, with which an SM has room for two blocks.

    Of 100 KiB, which GPUs have that are made for graphics, a block gets 49.
    """
    if target.shared_per_sm <= 100 * 1024:
        return {"stages": 3, "table_bytes": 16 * 1024}
    return {"stages": 4}


def _blocks_per_sm(config: DeformConvConfig, target: Target, sums: int) -> int:
    """Blocks of 128 threads that shall fit an SM: some multiply while others wait for samples.

    A thread needs 80 registers beside its sums. On sm_75 shared memory has room for two blocks.

    Args:
      config: the convolution.
      target: the GPU.
      sums: the sums of a block.
    """
    registers = sums * max(_bytes(config), 4) // (4 * 128)
    if registers > 32 or not target.supports("sm_80"):
        return 2
    return 4 if registers > 16 else 5


def grouped_plan(config: DeformConvConfig) -> DirectPlan:
    """A thread has whole groups, whose outputs it can finish, of any offset groups."""
    channels = _cheapest(config, config.in_channels_per_group, config.in_channels)
    return DirectPlan(channels, config.in_channels // channels)


def segmented_plan(config: DeformConvConfig) -> DirectPlan:
    """A thread has channels of one offset group, of any groups."""
    channels = _cheapest(config, 1, config.channels_per_offset_group)
    return DirectPlan(channels, config.in_channels // channels)


def shuffled_plan(config: DeformConvConfig) -> DirectPlan:
    """Some neighbouring threads have an offset group, whose dots they sum by shuffles."""
    channels = segmented_plan(config).channels
    vectors, lanes = config.channels_per_offset_group // channels, 1
    while lanes < min(vectors, 32):
        lanes *= 2
    return DirectPlan(channels, config.offset_groups, lanes)


def _cheapest(config: DeformConvConfig, step: int, extent: int) -> int:
    """Channels of a thread, a multiple of `step` that divides `extent`: 16 bytes at most, unless a
    step has more, and with the fewest instructions for each.
    """
    dtype = config.float_type

    def cost(channels: int) -> float:
        width = vector_width(dtype, channels, config.channels_per_offset_group)
        positions = channels // channels_per_position(config, channels)
        tap = positions * _POSITION + channels // width * _LOADS + _PIXEL / config.taps
        return tap / channels

    largest = max(step, 16 // dtype.bytes)
    return min((c for c in range(step, largest + 1, step) if extent % c == 0), key=cost)


def channels_per_position(config: DeformConvConfig, channels: int) -> int:
    """Neighbours that share an offset group, wherever a thread's channels begin."""
    return math.gcd(channels, config.channels_per_offset_group)


def _bytes(config: DeformConvConfig) -> int:
    return config.float_type.bytes


def _depth(config: DeformConvConfig, extent: int) -> int:
    """K of a tile: 64 bytes a row, or 32 where there is not more."""
    return at_least(extent, 32 // _bytes(config), 64 // _bytes(config))
