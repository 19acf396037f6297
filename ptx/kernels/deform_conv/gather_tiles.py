"""Producers of tiles of sampled images: from a table of corners, or from positions."""

from __future__ import annotations

from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.kernels.deform_conv.corners import CornerTable, PixelTable, TableRows
from ptx.kernels.deform_conv.gather_rows import Loaded, load_corners
from ptx.kernels.deform_conv.sampling import Offsets, interpolate
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import load_words, store_vector, widen

__all__ = ["PositionGatherTile", "TableGatherTile"]


class _VectorTile:
    """A tile that threads fill with vectors of channels: rows are pixels, columns channels.

    Attributes:
      row, column: where the thread's first vector is.
      rows: from there to the thread's vectors.
    """

    def __init__(self, k: Kernel, tile: SharedTile, width: int, threads: int):
        self.k, self.tile, self.width = k, tile, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, step = k.tid() // across, threads // across
        self.rows = range(0, tile.layout.rows, step)
        assert threads % across == tile.layout.rows % step == 0

    def store(self, stage: Stage, row: int, values: list[Val]) -> None:
        store_vector(self.tile.at(stage, self.row + row, self.column), values)


class TableGatherTile(_VectorTile):
    """Fills a tile with sampled channels; a table has the corners of its rows.

    Args:
      k: the kernel.
      tile: its rows are pixels.
      x: images [N, H, W, C].
      table: has the corners of the cursor's chunk when `begin` is called.
      locate: column of the tile -> first entry of the chunk in the table, channel, and a predicate:
        whether there is such a channel, or None where all are.
      width: channels that are loaded together.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        tile: SharedTile,
        x: Pointer,
        table: CornerTable,
        locate: Callable[[Val], tuple[Val, Val, Val | None]],
        *,
        width: int,
        threads: int,
    ):
        super().__init__(k, tile, width, threads)
        self.x, self.table, self.locate = x, table, locate

    def begin(self, stage: Stage, where: Val | None) -> None:
        # After the last chunk the first comes again: it is there, so `where` need not be heeded.
        entry, channel, channel_ok = self.locate(self.column)
        self.entries = TableRows(self.table, entry + self.row, lambda row: row)
        self.loaded = []
        for row in self.rows:
            steps, addresses = self.entries.addresses(row, self.x + channel)
            words = [load_words(address, self.width, where=channel_ok) for address in addresses]
            self.loaded.append((row, steps, words))

    def finish(self, stage: Stage) -> None:
        for row, steps, words in self.loaded:
            corners = [widen(self.k, c) for c in self.entries.zeroed(row, steps, words)]
            self.store(stage, row, interpolate(self.entries.weights(row), corners))


class PositionGatherTile(_VectorTile):
    """Fills a tile with sampled channels; each thread calculates where its own are sampled.

    Args:
      k: the kernel.
      tile: its rows are pixels.
      x: images [N, H, W, C].
      offsets: where positions come from.
      pixels: has the pixels of the cursor's chunk when `begin` is called.
      locate: column of the tile -> first pixel of the chunk in `pixels`, channel, tap, and a
        predicate: whether there is such a channel, or None where all are.
      width: channels that are loaded together: of one offset group.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        tile: SharedTile,
        x: Pointer,
        offsets: Offsets,
        pixels: PixelTable,
        locate: Callable[[Val], tuple[Val, Val, Val, Val | None]],
        *,
        width: int,
        threads: int,
    ):
        super().__init__(k, tile, width, threads)
        self.x, self.offsets, self.pixels, self.locate = x, offsets, pixels, locate

    def begin(self, stage: Stage, where: Val | None) -> None:
        # After the last chunk the first comes again: it is there, so `where` need not be heeded.
        first, channel, tap, channel_ok = self.locate(self.column)
        self.loaded: list[tuple[int, Loaded]] = []
        for row in self.rows:
            pixel = self.pixels.read(first + self.row + row)
            loaded = load_corners(self.offsets, self.x, pixel, channel, tap, self.width, channel_ok)
            self.loaded.append((row, loaded))

    def finish(self, stage: Stage) -> None:
        for row, (weights, words) in self.loaded:
            corners = [widen(self.k, corner) for corner in words]
            self.store(stage, row, interpolate(weights, corners))
