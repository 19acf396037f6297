"""A producer that copies: rows of consecutive elements, from wherever they are."""

from __future__ import annotations

from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import load_words

__all__ = ["DenseTile"]


class DenseTile:
    """Copies a rectangle of global memory to a tile; what lies outside becomes zero.

    Args:
      k: the kernel.
      tile: in shared memory.
      locate: (row, column) of the tile -> where that element of the cursor's chunk is in global
        memory, and a predicate: whether it is there at all, or None where all are. Called for the
        first of `width` elements, which are all there or all not.
      width: elements that are copied together.
      threads: of the block.
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
        across = tile.columns // width
        self.column = k.tid() % across * width
        self.row, self.step = k.tid() // across, threads // across
        assert threads % across == 0
        self.asynchronous = k.target.supports("sm_80") and width * tile.dtype.bytes >= 4
        self.loaded: list[tuple[Val, tuple[Val, ...]]] = []

    def begin(self, stage: Val, where: Val | None) -> None:
        self.loaded = []
        for first in range(0, self.tile.rows, self.step):
            row = self.row + first
            source, there = self.locate(row, self.column)
            if where is not None:
                there = where if there is None else there & where
            if self.tile.rows % self.step:  # more threads than rows
                inside = row < self.tile.rows
                there = inside if there is None else there & inside
            if not self.asynchronous:
                self.loaded.append((row, load_words(source, self.width, where=there)))
                continue
            count = self.width * self.tile.dtype.bytes
            destination = self.tile.at(stage, row, self.column)
            if self.tile.rows % self.step:
                with self.k.if_(row < self.tile.rows):
                    self.k.cp_async(destination, source, count, where=there)
            else:
                self.k.cp_async(destination, source, count, where=there)

    def finish(self, stage: Val) -> None:
        for row, words in self.loaded:
            place = self.tile.at(stage, row, self.column).view(words[0].dtype)
            value = words[0] if len(words) == 1 else words
            where = row < self.tile.rows if self.tile.rows % self.step else None
            place.store(0, value, where=where)
