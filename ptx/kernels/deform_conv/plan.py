"""Tile shapes and the instruction of a configuration on a target."""

from __future__ import annotations

import dataclasses

from ptx.isa.targets import Target
from ptx.kernels.deform_conv.config import DeformableConvConfig
from ptx.tile.direct import THREADS
from ptx.tile.occupancy import leaves_idle
from ptx.tile.plan import TilePlan, at_least, streams

__all__ = [
    "THREADS",
    "SamplePlan",
    "backward_data_plan",
    "backward_weight_plan",
    "forward_plan",
    "is_direct",
    "is_small_grid",
]

TINY = 4


def is_direct(config: DeformableConvConfig) -> bool:
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
      corners: where a thread that gathers knows them from: "samples", fractions and mask of each
        pixel in shared memory; "table", weights and addresses there (`CornerTable`); "positions",
        each thread calculates those of its own channels, which saves room where offset groups are
        many.
    """

    corners: str = "samples"

    @property
    def narrow(self) -> bool:
        """Whether a tile has channels of several offset groups."""
        return self.corners == "positions"


def forward_plan(config: DeformableConvConfig, target: Target) -> SamplePlan:
    """M are output pixels, N output channels of a group, K input channels of a segment.

    N covers a group's output channels with one tile if it can: each further tile gathers the
    images again.

    Channels that are a multiple of 64 bytes are streamed, where tensor cores take them: a warp
    gathers 32 pixels for all N, so that nothing is gathered twice in a block, and four stages of
    weights hide the latency of L2. Offset groups may be that wide, or of 8 or 16 bytes: a lane
    has 16 bytes, and registers for two positions.

    More than 128 outputs do not fit the registers of a warp that has 32 pixels. There eight warps
    share the sampled images through shared memory, and 256 outputs cost one gather. Where that
    leaves SMs without a block, tiles are small instead.
    """
    slice_, lane = 64 // _bytes(config), 16 // _bytes(config)
    per_offset_group = config.channels_per_offset_group
    whole_slices = config.segment % slice_ == 0
    lanes = config.in_channels_per_group % slice_ == 0 and (
        per_offset_group % lane == 0 or per_offset_group * 2 == lane
    )
    out_group, halves = config.out_channels_per_group, _bytes(config) == 2
    if streams(config, target) and (whole_slices or lanes):
        if halves and whole_slices and not config.small_grid and -(-out_group // 128) % 2 == 0:
            return SamplePlan(128, 256, slice_, (2, 4), corners="table", min_blocks=1)
        n = at_least(out_group, 32, 128 if halves and not config.small_grid else 64)
        if config.small_grid:
            return SamplePlan(
                64, n, slice_, (4, 1), stages=4, streamed=True,
                corners="table" if whole_slices else "positions",
            )  # fmt: skip
        m, corners = 128 if n > 32 else 64, "table" if whole_slices else "positions"
        return SamplePlan(m, n, slice_, (4, 1), stages=4, streamed=True, corners=corners)
    n = at_least(config.out_channels_per_group, 16, {2: 128, 4: 64, 8: 32}[_bytes(config)])
    return SamplePlan(64, n, _depth(config, config.segment), (4, 1) if n == 16 else (2, 2))


def is_small_grid(config: DeformableConvConfig, pixels: int) -> bool:
    """Whether forward blocks of 128 x 128 would be fewer than the SMs of a large GPU.

    Args:
      config: the convolution.
      pixels: of all outputs.
    """
    tiles = config.groups * -(-config.out_channels_per_group // 128)
    return leaves_idle(-(-pixels // 128) * tiles)


def backward_data_plan(config: DeformableConvConfig, target: Target) -> SamplePlan:
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
        corners = "positions" if narrow else "table"
        # Positions of 32-bit channels take the registers of the second half of the pixels.
        m = 64 if n == 32 or (narrow and width == 4) else 128
        return SamplePlan(m, n, 64 // width, (4, 1), stages=4, streamed=True, corners=corners)
    n = at_least(config.segment, 16, {2: 64, 4: 32, 8: 16}[width])
    return SamplePlan(64, n, _depth(config, config.out_channels_per_group), (4, 1))


def backward_weight_plan(config: DeformableConvConfig, target: Target) -> SamplePlan:
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
    corners = "positions" if narrow else "table"
    if width == 2 and channels > 64 and config.out_channels_per_group > 64:
        if config.out_channels_per_group > 128:
            return SamplePlan(128, 256, 32, (2, 4), corners=corners, min_blocks=1)
        return SamplePlan(128, 128, 32, (2, 2), corners=corners)
    m = at_least(channels, 32, largest)
    return SamplePlan(m, n, _depth(config, 64), (2, 2), corners=corners)


def _bytes(config: DeformableConvConfig) -> int:
    return config.float_type.bytes


def _depth(config: DeformableConvConfig, extent: int) -> int:
    """K of a tile: 64 bytes a row, or 32 where there is not more."""
    return at_least(extent, 32 // _bytes(config), 64 // _bytes(config))
