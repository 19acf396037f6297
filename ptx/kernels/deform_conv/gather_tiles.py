"""The producer of tiles of sampled images."""

from __future__ import annotations

from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.kernels.deform_conv.corners import Table
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import store_vector

__all__ = ["GatherTile"]


class GatherTile:
    """Fills a tile with sampled channels; a table has the samples of its rows.

    Args:
      k: the kernel.
      tile: its rows are pixels, its columns channels.
      x: images [N, H, W, C].
      table: has the samples of the cursor's chunk when `begin` is called.
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
        table: Table,
        locate: Callable[[Val], tuple[Val, Val, Val | None]],
        *,
        width: int,
        threads: int,
    ):
        self.tile, self.x, self.table, self.locate, self.width = tile, x, table, locate, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, step = k.tid() // across, threads // across
        self.rows = range(0, tile.layout.rows, step)
        assert threads % across == tile.layout.rows % step == 0

    def begin(self, stage: Stage, where: Val | None) -> None:
        # After the last chunk the first comes again: it is there, so `where` need not be heeded.
        entry, channel, channel_ok = self.locate(self.column)
        self.entries = self.table.entries(entry + self.row)
        self.loaded = [
            self.entries.begin(row, self.x, channel, self.width, channel_ok) for row in self.rows
        ]

    def finish(self, stage: Stage) -> None:
        for row, loaded in zip(self.rows, self.loaded, strict=True):
            address = self.tile.at(stage, self.row + row, self.column)
            store_vector(address, self.entries.finish(loaded))
