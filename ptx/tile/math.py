"""What a block does with a tile of A and a tile of B: C += A @ B."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from ptx.builder import Val, Var
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


class TileMath(Protocol):
    """One block's product: accumulators, and how to add to them.

    Attributes:
      accumulator: the type of the elements of C.
      row_lanes: masks: the lanes `lane ^ mask`, for all of them one after the other, hold a row
        together with a lane, if one warp holds whole rows.
    """

    accumulator: DType

    @property
    def row_lanes(self) -> tuple[int, ...]: ...

    def clear(self) -> None:
        """Sets C to 0."""

    def start(self) -> None:
        """Makes what the first `multiply` needs besides stages, while those are being filled."""

    def multiply(self, stage: Stage, stage_b: Stage | None = None) -> None:
        """Adds A @ B, of the tiles in a stage; B's may be another one."""

    def rows(self) -> Iterator[Row]:
        """Goes through what this thread holds of C."""
        ...
