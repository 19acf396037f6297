"""The layout of an operand's tile in shared memory, a value that says where each element is."""

from __future__ import annotations

import dataclasses

from ptx.builder import Val
from ptx.isa.dtypes import DType

__all__ = ["ROW_BYTES", "Layout", "permuted_column"]

ROW_BYTES = 64  # of an operand that is streamed, in one step along K
_PIECE = 16  # bytes that a lane reads together, or that ldmatrix reads of a row


@dataclasses.dataclass(frozen=True)
class Layout:
    """Rows of elements in shared memory.

    Attributes:
      dtype: the type of an element.
      rows: number of rows.
      columns: neighbouring elements of a row.
      pitch: elements from the start of a row to that of the next one.
      k_axis: the axis that counts along K: 0 for rows, 1 for columns.
      permuted: the element at position p across K is that of row or column `permuted_column(p)` of
        the product, so that a lane's sums are neighbours.
    """

    dtype: DType
    rows: int
    columns: int
    pitch: int
    k_axis: int
    permuted: bool = False

    @staticmethod
    def padded(
        dtype: DType, *, k_extent: int, extent: int, k_axis: int, permuted: bool = False
    ) -> Layout:
        """A tile of `k_extent` along K and `extent` along M or N.

        Rows that are read together start in different banks: 16 bytes are added to each.
        """
        rows, columns = (k_extent, extent) if k_axis == 0 else (extent, k_extent)
        return Layout(dtype, rows, columns, columns + _PIECE // dtype.bytes, k_axis, permuted)

    @staticmethod
    def dense(dtype: DType, rows: int) -> Layout:
        """Rows of `ROW_BYTES` along K without padding, of which two neighbours have 128 bytes."""
        columns = ROW_BYTES // dtype.bytes
        return Layout(dtype, rows, columns, columns, 1)

    @property
    def bytes(self) -> int:
        """Bytes of a tile."""
        return self.rows * self.pitch * self.dtype.bytes

    @property
    def depth(self) -> int:
        """The extent along K."""
        return self.rows if self.k_axis == 0 else self.columns

    @property
    def extent(self) -> int:
        """The extent along M or N."""
        return self.columns if self.k_axis == 0 else self.rows

    def conflict_free(self, rows: int = 8) -> bool:
        """Whether 16 bytes of each of so many neighbouring rows lie in banks of their own.

        Where fewer than 8 rows are read together, each gives neighbouring pieces of 16 bytes.
        """
        pieces = 8 // rows
        starts = {
            (row * self.pitch * self.dtype.bytes + piece * _PIECE) % 128
            for row in range(rows)
            for piece in range(pieces)
        }
        return len(starts) == 8

    def at(self, row: Val, column: Val) -> Val:
        """Elements from the first one to the one at (row, column), as they lie in memory."""
        return row.kernel.mad(row, self.pitch, column)

    def offset(self, along_k: int, across: int) -> int:
        """Elements from the first one to the one at `along_k`, and `across` along M or N."""
        row, column = (along_k, across) if self.k_axis == 0 else (across, along_k)
        return row * self.pitch + column

    def lane_offset(self, along_k: Val, across: Val) -> Val:
        """Like `offset`, of registers."""
        return self.at(*((along_k, across) if self.k_axis == 0 else (across, along_k)))


def permuted_column(position: Val) -> Val:
    """The column of C that is at `position` of a permuted layout.

    Within 32 columns, column 2q + e of fragment j becomes 8q + 2j + e, for member q of a group of
    lanes: what a lane has of four fragments are neighbours.
    """
    fragment, member = (position >> 3) & 3, (position >> 1) & 3
    return (position & 0xFFFFFFE0) + member * 8 + fragment * 2 + (position & 1)
