"""Rows of sampled images as fragments in registers: from a table of corners, or from positions."""

from __future__ import annotations

from collections.abc import Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DTYPES, f32, tf32
from ptx.kernels.deform_conv.samples.corners import CornerTable, PixelTable, TableRows
from ptx.kernels.deform_conv.samples.positions import Offsets, corner_addresses, interpolate
from ptx.tile.loop import Cursor
from ptx.tile.pixels import OutputPixel, pixel_index
from ptx.tile.stream import LaneRows
from ptx.tile.vectors import both, load_words, widen

__all__ = ["PositionGather", "TableGather", "load_corners"]

Loaded = tuple[Sequence[Val], list[tuple[Val, ...]]]  # weights of the corners, and their words


class TableGather:
    """Rows of A from a table: 16 bytes of each corner a lane.

    Args:
      table: filled for the taps that the cursor counts.
      x: images [N, H, W, C].
      cursor: has `slice`, of 64 bytes, and `tap`.
      rows: the lane's rows of the table.
      channel: the lane's first one in slice 0; may be a variable.
    """

    def __init__(
        self,
        table: CornerTable,
        x: Pointer,
        cursor: Cursor,
        *,
        rows: LaneRows,
        channel: Val,
    ):
        self.k, self.table, self.x, self.cursor = table.k, table, x, cursor
        self.lane_rows, self.channel = rows, channel

    def prepare(self) -> None:
        at = self.cursor["tap"] * self.table.rows + self.lane_rows.first
        self.rows = TableRows(self.table, at, self.lane_rows.offset)
        slice_ = self.cursor["slice"] * (64 // self.x.dtype.bytes)
        self.first = self.x + (self.channel + slice_)

    def begin(self, row: int) -> tuple[int, Val, Sequence[Val], list[tuple[Val, ...]]]:
        steps, addresses = self.rows.addresses(row, self.first)
        words = [load_words(address, 16 // self.x.dtype.bytes) for address in addresses]
        return row, steps, self.rows.weights(row), words

    def finish(
        self, loaded: tuple[int, Val, Sequence[Val], list[tuple[Val, ...]]]
    ) -> Sequence[Val]:
        k = self.k
        row, steps, weights, words = loaded
        # Zeros although their weight is zero: a pixel at the edge may be infinite.
        corners = [widen(k, corner) for corner in self.rows.zeroed(row, steps, words)]
        return packed(k, interpolate(weights, corners), self.x)


class PositionGather:
    """Rows of A from positions that each lane calculates: for narrow offset groups.

    Args:
      offsets: where positions come from.
      pixels: of the rows.
      x: images [N, H, W, C].
      cursor: has `slice`, of 64 bytes, and `tap`.
      rows: the lane's rows of the tile.
      channel: the lane's first one in slice 0; may be a variable.
    """

    def __init__(
        self,
        offsets: Offsets,
        pixels: PixelTable,
        x: Pointer,
        cursor: Cursor,
        *,
        rows: LaneRows,
        channel: Val,
    ):
        self.k, self.offsets, self.pixels = offsets.k, offsets, pixels
        self.x, self.cursor, self.channel = x, cursor, channel
        self.lane_rows = rows
        count = 16 // x.dtype.bytes
        self.width = min(count, offsets.config.channels_per_offset_group)
        self.parts = range(0, count, self.width)

    def prepare(self) -> None:
        slice_ = self.cursor["slice"] * (64 // self.x.dtype.bytes)
        self.first = self.channel + slice_
        self.tap = self.cursor["tap"].value()

    def begin(self, row: int) -> list[Loaded]:
        pixel = self.pixels.read(self.lane_rows.first + self.lane_rows.offset(row))
        return [
            load_corners(self.offsets, self.x, pixel, self.first + part, self.tap, self.width)
            for part in self.parts
        ]

    def finish(self, loaded: list[Loaded]) -> Sequence[Val]:
        k, values = self.k, []
        for weights, words in loaded:
            values += interpolate(weights, [widen(k, corner) for corner in words])
        return packed(k, values, self.x)


def load_corners(
    offsets: Offsets,
    x: Pointer,
    pixel: OutputPixel,
    channel: Val,
    tap: Val,
    width: int,
    where: Val | None = None,
) -> Loaded:
    """Calculates where a tap samples, and loads the corners there.

    Args:
      offsets: where positions come from.
      x: images [N, H, W, C].
      pixel: of the output, from a `PixelTable`.
      channel: the first of `width` in one offset group.
      tap: the tap.
      width: channels, of 16 bytes at most.
      where: a predicate; nothing is read where it is off.

    Returns:
      The weights of the corners, with the mask, and the words of each, zeros for what is outside.
    """
    k, config, sizes = offsets.k, offsets.config, offsets.geometry
    group = channel // config.channels_per_offset_group
    position = offsets.position(pixel, group, tap, both(pixel.exists, where))
    corner = pixel_index(pixel.image, position.y, position.x, sizes.in_h, sizes.in_w)
    addresses = corner_addresses(x, corner, channel, config.in_channels, sizes.in_w)
    words = [
        load_words(address, width, where=both(inside, where))
        for address, inside in zip(addresses, position.inside(), strict=True)
    ]
    weights = [k.convert(weight, f32, "rn") for weight in position.weights()]
    return weights, words


def packed(k: Kernel, values: Sequence[Val], x: Pointer) -> list[Val]:
    """f32 values as registers of A: tf32, or two halves each."""
    if x.dtype is f32:
        return [k.convert(value, tf32, "rna") for value in values]
    pair = DTYPES[f"{x.dtype}x2"]
    return [k.pack(a, b, pair) for a, b in zip(values[::2], values[1::2], strict=True)]
