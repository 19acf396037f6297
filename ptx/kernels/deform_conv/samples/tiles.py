"""The producer of tiles of sampled images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.kernels.deform_conv.samples.corners import Table
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
      threads: the threads of the block.
      parts: that rows are loaded in, one after the other.
      in_flight: parts that are on their way at a time.
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
        parts: int = 1,
        in_flight: int = 1,
    ):
        self.tile, self.x, self.table, self.locate, self.width = tile, x, table, locate, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, step = k.tid() // across, threads // across
        rows = range(0, tile.layout.rows, step)
        assert threads % across == tile.layout.rows % step == len(rows) % parts == 0
        count = len(rows) // parts
        self.parts, self.in_flight = parts, in_flight
        self._rows = [rows[first : first + count] for first in range(0, len(rows), count)]

    def begin(self, stage: Stage, where: Val | None) -> None:
        # After the last chunk the first comes again: it is there, so `where` need not be heeded.
        entry, self._channel, self._channel_ok = self.locate(self.column)
        self._entries = self.table.entries(entry + self.row)
        self._left = list(self._rows)
        self._loading: list[tuple[range, list[Any]]] = []
        for _ in range(self.in_flight):
            self._load()

    def resume(self, stage: Stage) -> None:
        self._store(stage)
        self._load()

    def finish(self, stage: Stage) -> None:
        while self._loading:
            self.resume(stage)

    def _load(self) -> None:
        """Starts to load the next part, if one is left."""
        if self._left:
            rows = self._left.pop(0)
            entries, x, channel = self._entries, self.x, self._channel
            self._loading.append(
                (rows, [entries.begin(r, x, channel, self.width, self._channel_ok) for r in rows])
            )

    def _store(self, stage: Stage) -> None:
        """Puts the part into the stage whose loads are the oldest."""
        rows, loaded = self._loading.pop(0)
        for row, of_row in zip(rows, loaded, strict=True):
            address = self.tile.at(stage, self.row + row, self.column)
            store_vector(address, self._entries.finish(of_row))
