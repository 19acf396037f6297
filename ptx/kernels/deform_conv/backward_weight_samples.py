"""Sampled images for the kernel backward to the weights: from where a block knows the corners."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import u32
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.corners import CornerTable, PixelTable
from ptx.kernels.deform_conv.gather import GatherTile
from ptx.kernels.deform_conv.gather_tiles import PositionGatherTile, TableGatherTile
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.sampling import Offsets, Sampler
from ptx.tile.loop import Cursor
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import vector_width

__all__ = ["Block", "Samples", "samples_of"]


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

    @property
    def offset_group(self) -> Val:
        return self.channel // self.config.channels_per_offset_group

    @property
    def first_row(self) -> Val:
        """The first pixel of the cursor's slice, among those that are sampled together."""
        return self.cursor["slice"] * self.plan.k

    def channel_ok(self, column: Val) -> Val | None:
        """Whether a column of the tile is a channel; None where all are."""
        return self.first_in + column < self.run if self.run % self.plan.m else None


class Samples(Protocol):
    """Fills tiles with sampled images.

    Attributes:
      gather: the source of the tile.
    """

    @property
    def gather(self) -> GatherTile | TableGatherTile | PositionGatherTile: ...

    def fill(self, first: Val) -> None:
        """Finds out where the pixels from a first one on are sampled; a barrier has to follow."""


def samples_of(block: Block, tile: SharedTile, count: int) -> Samples:
    """The samples of a block as its plan has them.

    Args:
      block: the block.
      tile: that is filled: its rows are pixels.
      count: pixels that are sampled together.
    """
    classes = {"table": _TableSamples, "positions": _PositionSamples, "samples": _KeptSamples}
    return classes[block.plan.corners](block, tile, count)


class _TableSamples:
    """Corners of all pixels in a table: the block's channels are in one offset group."""

    def __init__(self, block: Block, tile: SharedTile, count: int):
        self.block, self.table = block, CornerTable(block.offsets, rows=count)
        self.gather = TableGatherTile(
            block.k, tile, block.x, self.table, self._locate,
            width=16 // block.x.dtype.bytes, threads=block.plan.threads,
        )  # fmt: skip

    def _locate(self, column: Val) -> tuple[Val, Val, Val | None]:
        return self.block.first_row, self.block.channel + column, self.block.channel_ok(column)

    def fill(self, first: Val) -> None:
        block, k, plan = self.block, self.block.k, self.block.plan
        group = block.offset_group
        with k.loop(k.tid(), block.slices * plan.k, plan.threads, name="sample") as index:
            pixel = block.offsets.geometry.pixel(first + index)
            self.table.store(index, pixel, group, block.tap, pixel.index < block.end_pixel)


class _PositionSamples:
    """Pixels in a table; each thread calculates the positions of its own channels."""

    def __init__(self, block: Block, tile: SharedTile, count: int):
        config = block.config
        self.block, self.pixels = block, PixelTable(block.k, config, count)
        self.gather = PositionGatherTile(
            block.k, tile, block.x, block.offsets, self.pixels, self._locate,
            width=vector_width(config.float_type, config.channels_per_offset_group),
            threads=block.plan.threads,
        )  # fmt: skip

    def _locate(self, column: Val) -> tuple[Val, Val, Val, Val | None]:
        block = self.block
        return block.first_row, block.channel + column, block.tap, block.channel_ok(column)

    def fill(self, first: Val) -> None:
        block, k, plan = self.block, self.block.k, self.block.plan
        with k.loop(k.tid(), block.slices * plan.k, plan.threads, name="sample") as index:
            pixel = block.offsets.geometry.pixel(first + index)
            pixel_ok = pixel.index < block.end_pixel
            self.pixels.store(index, dataclasses.replace(pixel, there=pixel_ok))


class _KeptSamples:
    """Samples of all pixels as a `Sampler` keeps them: for channels of any number."""

    def __init__(self, block: Block, tile: SharedTile, count: int):
        config, threads = block.config, block.plan.threads
        self.block = block
        self.sampler = Sampler(block.offsets, rows=count, taps=1, threads=threads)
        self.only_tap = block.k.var(u32, 0)
        self.gather = GatherTile(
            block.k, tile, block.x, self.sampler, self._locate,
            channels=config.in_channels, in_w=block.offsets.geometry.in_w,
            width=vector_width(config.float_type, config.segment, block.plan.m), threads=threads,
        )  # fmt: skip

    def _locate(self, row: Val, column: Val) -> tuple[Val, Val, Val, Val]:
        block = self.block
        channel_ok = block.first_in + column < block.run
        return block.first_row + row, self.only_tap, block.channel + column, channel_ok

    def fill(self, first: Val) -> None:
        self.sampler.fill(first, self.block.offset_group, self.block.tap)
