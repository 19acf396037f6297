"""Tiles of A and B in shared memory, in stages."""

from __future__ import annotations

import dataclasses

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DType

__all__ = ["STAGES", "SharedTile"]

STAGES = 2  # while one is multiplied, the other is filled


@dataclasses.dataclass(frozen=True, eq=False)
class SharedTile:
    """A ring of tiles of one operand in shared memory.

    Attributes:
      place: the first element of the first stage.
      dtype: type of an element.
      rows, columns: of a tile as it lies in memory; columns are contiguous.
      pitch: elements from one row to the next: padded, so that rows that are read together start
        in different banks.
      k_axis: the axis that counts along K: 0 or 1.
    """

    place: Pointer
    dtype: DType
    rows: int
    columns: int
    pitch: int
    k_axis: int

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
    ) -> SharedTile:
        """A tile of `k_extent` along K and `extent` along M or N."""
        rows, columns = (k_extent, extent) if k_axis == 0 else (extent, k_extent)
        pitch = _pitch(dtype, columns)
        count = stages * rows * pitch
        place = k.dynamic_shared(dtype, count) if dynamic else k.shared(name, dtype, count)
        return SharedTile(place, dtype, rows, columns, pitch, k_axis)

    @staticmethod
    def shared_bytes(
        dtype: DType, *, k_extent: int, extent: int, k_axis: int, stages: int = STAGES
    ) -> int:
        """Shared memory of such a tile."""
        rows, columns = (k_extent, extent) if k_axis == 0 else (extent, k_extent)
        return stages * rows * _pitch(dtype, columns) * dtype.bytes

    @property
    def stage_bytes(self) -> int:
        return self.rows * self.pitch * self.dtype.bytes

    def at(self, stage: Val, row: Val, column: Val) -> Pointer:
        """The element at (row, column), as they lie in memory, of a stage."""
        k = self.place.kernel
        return self.place.add_bytes(stage * self.stage_bytes) + k.mad(row, self.pitch, column)

    def offset(self, along_k: int, across: int) -> int:
        """Elements from the tile's first to the one at `along_k`, and `across` along M or N."""
        row, column = (along_k, across) if self.k_axis == 0 else (across, along_k)
        return row * self.pitch + column

    def lane_offset(self, along_k: Val, across: Val) -> Val:
        """The same, of registers."""
        row, column = (along_k, across) if self.k_axis == 0 else (across, along_k)
        return self.place.kernel.mad(row, self.pitch, column)


def _pitch(dtype: DType, columns: int) -> int:
    return columns + 16 // dtype.bytes
