"""Rows of sampled images as fragments in registers: from a table of corners, or from positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DTYPES, f32, tf32
from ptx.kernels.deform_conv.samples.corners import CornerTable, PixelTable, TableRows
from ptx.kernels.deform_conv.samples.positions import Offsets, interpolate
from ptx.tile.loop import Cursor
from ptx.tile.pixels import OutputPixel
from ptx.tile.stream import LaneRows
from ptx.tile.vectors import both, load_words, widen

__all__ = ["PositionGather", "TableGather", "load_corners"]

Loaded = tuple[Sequence[Val], list[tuple[Val, ...]]]  # weights of the corners, and their words


@dataclasses.dataclass(eq=False)
class _Gather:
    """Rows of A that are sampled: 16 bytes of each corner a lane.

    Attributes:
      x: images [N, H, W, C].
      cursor: has `slice`, of 64 bytes, and `tap`.
      lane_rows: the lane's rows of the tile.
      channel: the lane's first one in slice 0; may be a variable.
    """

    x: Pointer
    cursor: Cursor
    lane_rows: LaneRows
    channel: Val

    def _first_channel(self) -> Val:
        """The lane's first channel in the cursor's slice."""
        return self.channel + self.cursor["slice"] * (64 // self.x.dtype.bytes)


@dataclasses.dataclass(eq=False)
class TableGather(_Gather):
    """Rows of A from a table that is filled for the taps that the cursor counts."""

    table: CornerTable

    def prepare(self) -> None:
        at = self.cursor["tap"] * self.table.rows + self.lane_rows.first
        self.rows = TableRows(self.table, at, self.lane_rows.offset)
        self.first = self.x + self._first_channel()

    def begin(self, row: int) -> tuple[int, Val, Sequence[Val], list[tuple[Val, ...]]]:
        steps, addresses = self.rows.addresses(row, self.first)
        words = [load_words(address, 16 // self.x.dtype.bytes) for address in addresses]
        return row, steps, self.rows.weights(row), words

    def finish(
        self, loaded: tuple[int, Val, Sequence[Val], list[tuple[Val, ...]]]
    ) -> Sequence[Val]:
        row, steps, weights, words = loaded
        # Zeros although their weight is zero: a pixel at the edge may be infinite.
        corners = [widen(self.table.k, c) for c in self.rows.zeroed(row, steps, words)]
        return _packed(self.table.k, interpolate(weights, corners), self.x)


@dataclasses.dataclass(eq=False)
class PositionGather(_Gather):
    """Rows of A from positions that each lane calculates: for narrow offset groups.

    Attributes:
      offsets: the source of the positions.
      pixels: the pixels of the rows.
    """

    offsets: Offsets
    pixels: PixelTable

    def prepare(self) -> None:
        self.first = self._first_channel()
        self.tap = self.cursor["tap"].value()

    def begin(self, row: int) -> list[Loaded]:
        pixel = self.pixels.load(self.lane_rows.first + self.lane_rows.offset(row))
        count = 16 // self.x.dtype.bytes
        width = min(count, self.offsets.config.channels_per_offset_group)
        return [
            load_corners(self.offsets, self.x, pixel, self.first + start, self.tap, width)
            for start in range(0, count, width)
        ]

    def finish(self, loaded: list[Loaded]) -> Sequence[Val]:
        k, values = self.offsets.k, []
        for weights, words in loaded:
            values += interpolate(weights, [widen(k, corner) for corner in words])
        return _packed(k, values, self.x)


def load_corners(
    offsets: Offsets,
    x: Pointer,
    pixel: OutputPixel,
    channel: Val,
    tap: Val,
    width: int,
    where: Val | None = None,
) -> Loaded:
    """Calculates the position of a tap, and loads the corners there.

    Args:
      offsets: the source of the positions.
      x: images [N, H, W, C].
      pixel: the pixel of the output, from a `PixelTable`.
      channel: the first of `width` in one offset group.
      tap: the tap.
      width: channels, of 16 bytes at most.
      where: a predicate; nothing is read where it is off.

    Returns:
      The weights of the corners, with the mask, and the words of each, zeros for what is outside.
    """
    k = offsets.k
    group = channel // offsets.config.channels_per_offset_group
    position = offsets.position(pixel, group, tap, both(pixel.exists, where))
    addresses = offsets.corner_addresses(x, offsets.corner(pixel, position), channel)
    words = [
        load_words(address, width, where=both(inside, where))
        for address, inside in zip(addresses, position.inside(), strict=True)
    ]
    weights = [k.convert(weight, f32, "rn") for weight in position.weights()]
    return weights, words


def _packed(k: Kernel, values: Sequence[Val], x: Pointer) -> list[Val]:
    """f32 values as registers of A: tf32, or two halves each."""
    if x.dtype is f32:
        return [k.convert(value, tf32, "rna") for value in values]
    pair = DTYPES[f"{x.dtype}x2"]
    return [k.pack(a, b, pair) for a, b in zip(values[::2], values[1::2], strict=True)]
