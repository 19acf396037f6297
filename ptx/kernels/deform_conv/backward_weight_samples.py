"""Sampled images for the kernel backward to the weights."""

from __future__ import annotations

import dataclasses

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.gather_tiles import GatherTile
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.sampling import Offsets
from ptx.tile.loop import Cursor
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import vector_width

__all__ = ["Block", "Samples"]


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """What a block of the kernel knows.

    Attributes:
      k: the kernel.
      config: the convolution.
      plan: tiles.
      x: images [N, H, W, C].
      offsets: where positions come from.
      tap: the block's only one.
      channel: the block's first one, of all input channels.
      first_in: the same one in its run, which has `run` channels.
      run: neighbouring channels that tiles may share.
      end_pixel: the first one after those of the block's part.
      slices: of pixels that are multiplied before the next ones are sampled.
      cursor: has `slice`.
    """

    k: Kernel
    config: DeformConvConfig
    plan: SamplePlan
    x: Pointer
    offsets: Offsets
    tap: Val
    channel: Val
    first_in: Val
    run: int
    end_pixel: Val
    slices: Var
    cursor: Cursor

    def channel_ok(self, column: Val) -> Val | None:
        """Whether a column of the tile is a channel; None where all are."""
        return self.first_in + column < self.run if self.run % self.plan.m else None


class Samples:
    """Fills a tile with sampled images, of pixels whose samples are in a table.

    Args:
      block: the block.
      tile: that is filled: its rows are pixels.
      count: pixels that are sampled together.

    Attributes:
      gather: the source of the tile.
    """

    def __init__(self, block: Block, tile: SharedTile, count: int):
        config, plan = block.config, block.plan
        self.block, self.table = block, plan.table(block.offsets, rows=count)
        width = vector_width(config.float_type, config.segment, plan.m)
        self.gather = GatherTile(
            block.k, tile, block.x, self.table, self._locate, width=width, threads=plan.threads
        )

    def fill(self, first: Val) -> None:
        """Samples the pixels from a first one on; a barrier has to follow."""
        block, k, plan = self.block, self.block.k, self.block.plan
        group = 0 if plan.narrow else block.channel // block.config.channels_per_offset_group
        with k.loop(k.tid(), block.slices * plan.k, plan.threads, name="sample") as index:
            pixel = block.offsets.geometry.pixel(first + index)
            self.table.store(index, pixel, group, block.tap, pixel.index < block.end_pixel)

    def _locate(self, column: Val) -> tuple[Val, Val, Val | None]:
        block = self.block
        first_row = block.cursor["slice"] * block.plan.k
        return first_row, block.channel + column, block.channel_ok(column)
