"""Tiles of A and B in shared memory, in stages."""

from __future__ import annotations

import dataclasses

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DType
from ptx.tile.layout import Layout

__all__ = ["STAGES", "SharedTile", "Stage"]

STAGES = 2  # while one is multiplied, the other is filled
Stage = Val | int  # the index of one of the stages of a ring


@dataclasses.dataclass(frozen=True, eq=False)
class SharedTile:
    """A ring of tiles of one operand in shared memory.

    Attributes:
      first: the first element of the first stage.
      layout: the layout of each stage.
    """

    first: Pointer
    layout: Layout

    @staticmethod
    def make(
        k: Kernel,
        name: str,
        dtype: DType,
        *,
        k_extent: int,
        extent: int,
        k_axis: int,
        dynamic: bool = False,
        stages: int = STAGES,
        permuted: bool = False,
    ) -> SharedTile:
        """Allocates padded tiles of `k_extent` along K and `extent` along M or N."""
        layout = Layout.padded(
            dtype, k_extent=k_extent, extent=extent, k_axis=k_axis, permuted=permuted
        )
        count = stages * layout.bytes // dtype.bytes
        first = k.dynamic_shared(dtype, count) if dynamic else k.shared(name, dtype, count)
        return SharedTile(first, layout)

    def stage(self, stage: Stage) -> Pointer:
        """The first element of a stage."""
        return self.first.add_bytes(stage * self.layout.bytes)

    def at(self, stage: Stage, row: Val, column: Val) -> Pointer:
        """The element at (row, column), as they lie in memory, of a stage."""
        return self.stage(stage) + self.layout.at(row, column)
