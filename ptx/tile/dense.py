"""A source that copies: rows of consecutive elements, from wherever they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import both, load_words

__all__ = ["DenseTile"]


class DenseTile:
    """Copies a rectangle of global memory to a tile; what lies outside becomes zero.

    Args:
      k: the kernel.
      tile: the tile in shared memory.
      locate: (row, column) of the tile -> where that element of the cursor's chunk is in global
        memory, and a predicate: whether it exists, or None where all do. Called for the first of
        `width` elements, of which all exist or none.
      width: elements that are copied together.
      threads: threads of the block.
    """

    def __init__(
        self,
        k: Kernel,
        tile: SharedTile,
        locate: Callable[[Val, Val], tuple[Pointer, Val | None]],
        *,
        width: int,
        threads: int,
    ):
        self.k, self.tile, self.locate, self.width = k, tile, locate, width
        layout = tile.layout
        across = layout.columns // width
        self.column = k.tid() % across * width
        self.row, self.step = k.tid() // across, threads // across
        assert threads % across == 0
        self.ragged = layout.rows % self.step != 0  # there are more threads than rows
        self.asynchronous = k.target.supports("sm_80") and width * layout.dtype.bytes >= 4
        self.loaded: list[tuple[Val, tuple[Val, ...]]] = []

    def begin(self, stage: Stage, where: Val | None) -> None:
        k, layout = self.k, self.tile.layout
        self.loaded = []
        for first in range(0, layout.rows, self.step):
            row = self.row + first
            source, exists = self.locate(row, self.column)
            exists = both(exists, where)
            if self.ragged:
                exists = both(exists, row < layout.rows)
            if not self.asynchronous:
                self.loaded.append((row, load_words(source, self.width, where=exists)))
                continue
            count = self.width * layout.dtype.bytes
            destination = self.tile.at(stage, row, self.column)
            with k.if_(row < layout.rows) if self.ragged else contextlib.nullcontext():
                k.cp_async(destination, source, count, where=exists)

    def finish(self, stage: Stage) -> None:
        rows = self.tile.layout.rows
        for row, words in self.loaded:
            destination = self.tile.at(stage, row, self.column).view(words[0].dtype)
            value = words[0] if len(words) == 1 else words
            destination.store(0, value, where=row < rows if self.ragged else None)
