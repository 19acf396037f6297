"""A block's product of a tile of A and a tile of B: C += A @ B."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptx.builder import Kernel, Val, Var
from ptx.isa.dtypes import DType
from ptx.tile.shared import Stage

__all__ = ["Row", "TileMath"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What a thread holds of one row of C.

    Attributes:
      row: the row's index in the tile.
      parts: (column in the tile, values of that column and the following ones).
    """

    row: Val
    parts: list[tuple[Val, list[Var]]]


class TileMath:
    """One block's product: accumulators, and how to add to them.

    Attributes:
      k: the kernel.
      accumulator: the type of the elements of C.
      row_lanes: masks: the lanes `lane ^ mask`, for all of them one after the other, hold a row
        together with a lane, if one warp holds whole rows.
    """

    row_lanes: tuple[int, ...]

    def __init__(self, k: Kernel, accumulator: DType):
        self.k, self.accumulator = k, accumulator
        self._registers: list[Var] = []

    def zeros(self, count: int) -> list[Var]:
        """Makes accumulators."""
        zeros = [self.k.var(self.accumulator, 0.0) for _ in range(count)]
        self._registers += zeros
        return zeros

    def clear(self) -> None:
        """Sets C to 0."""
        for register in self._registers:
            register.set(0.0)

    def start(self) -> None:
        """Makes what the first `multiply` needs besides stages, while those are being filled."""

    def multiply(self, stage: Stage, stage_b: Stage | None = None) -> None:
        """Adds A @ B, of the tiles in a stage; B's may be another one."""
        raise NotImplementedError

    def rows(self) -> Iterator[Row]:
        """Goes through what this thread holds of C."""
        raise NotImplementedError
