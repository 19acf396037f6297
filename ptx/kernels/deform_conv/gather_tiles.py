"""The producer of tiles of sampled images."""

from __future__ import annotations

from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.kernels.deform_conv.corners import Table
from ptx.tile.dense import DenseTile
from ptx.tile.loop import Cursor, multiply_all, multiply_in_parts
from ptx.tile.math import TileMath
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.tensor_cores import TensorCores
from ptx.tile.vectors import store_vector

__all__ = ["GatherTile", "multiply_gathered"]


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
      parts: that rows are loaded in, one after the other.
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
    ):
        self.tile, self.x, self.table, self.locate, self.width = tile, x, table, locate, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, step = k.tid() // across, threads // across
        rows = range(0, tile.layout.rows, step)
        assert threads % across == tile.layout.rows % step == len(rows) % parts == 0
        count = len(rows) // parts
        self.parts = parts
        self._rows = [rows[first : first + count] for first in range(0, len(rows), count)]

    def begin(self, stage: Stage, where: Val | None) -> None:
        # After the last chunk the first comes again: it is there, so `where` need not be heeded.
        entry, self._channel, self._channel_ok = self.locate(self.column)
        self._entries = self.table.entries(entry + self.row)
        self._part = 0
        self._load()

    def resume(self, stage: Stage) -> None:
        self._store(stage)
        self._part += 1
        self._load()

    def finish(self, stage: Stage) -> None:
        while self._part < self.parts - 1:
            self.resume(stage)
        self._store(stage)

    def _load(self) -> None:
        self._loaded = [
            self._entries.begin(row, self.x, self._channel, self.width, self._channel_ok)
            for row in self._rows[self._part]
        ]

    def _store(self, stage: Stage) -> None:
        for row, loaded in zip(self._rows[self._part], self._loaded, strict=True):
            address = self.tile.at(stage, self.row + row, self.column)
            store_vector(address, self._entries.finish(loaded))


def multiply_gathered(
    k: Kernel, cursor: Cursor, gather: GatherTile, copy: DenseTile, math: TileMath
) -> None:
    """C += A @ B over all chunks of the cursor, one of which is gathered and the other copied."""
    if gather.parts == 1:
        multiply_all(k, cursor, [gather, copy], math)
        return
    assert isinstance(math, TensorCores)
    multiply_in_parts(k, cursor, gather, [copy], math)
