"""A block's product in ordinary arithmetic: C += A @ B, of tiles in shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from ptx.builder import Kernel
from ptx.tile.math import Row, TileMath
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import accumulator_of

__all__ = ["FusedMultiplyAdd"]


class FusedMultiplyAdd(TileMath):
    """Ordinary arithmetic: each thread has elements of C, spread evenly over it.

    Half a warp holds whole rows.

    Args:
      k: the kernel.
      a, b: the tiles.
      threads: threads of the block, or of a part of it that has its own part of K.
      split: number of such parts.
    """

    across = 16  # threads along N
    row_lanes = (1, 2, 4, 8)

    def __init__(self, k: Kernel, a: SharedTile, b: SharedTile, threads: int, split: int = 1):
        super().__init__(k, accumulator_of(a.layout.dtype))
        self.a, self.b = a, b
        self.depth = a.layout.depth // split
        m, n = a.layout.extent, b.layout.extent
        self.down = threads // self.across
        assert m % self.down == 0
        assert n % self.across == 0
        thread = k.tid() if split == 1 else k.tid() % threads
        self.column, self.row = thread % self.across, thread // self.across
        self.first = k.tid() * 0 if split == 1 else k.tid() // threads * self.depth
        self.sums = [self.zeros(n // self.across) for _ in range(m // self.down)]

    def multiply(self, stage: Stage, stage_b: Stage | None = None) -> None:
        k, a, b = self.k, self.a.layout, self.b.layout
        lane_a, lane_b = a.lane_offset(self.first, self.row), b.lane_offset(self.first, self.column)
        first_a = self.a.stage(stage) + lane_a
        first_b = self.b.stage(stage if stage_b is None else stage_b) + lane_b
        for step in range(self.depth):
            row_b = [
                k.convert(first_b.load(b.offset(step, j * self.across)), self.accumulator)
                for j in range(len(self.sums[0]))
            ]
            for i, sums in enumerate(self.sums):
                value = first_a.load(a.offset(step, i * self.down))
                value = k.convert(value, self.accumulator)
                for total, other in zip(sums, row_b, strict=True):
                    total.set(k.fma(value, other, total))

    def rows(self) -> Iterator[Row]:
        for i, sums in enumerate(self.sums):
            parts = [(self.column + j * self.across, [value]) for j, value in enumerate(sums)]
            yield Row(self.row + i * self.down, parts)
