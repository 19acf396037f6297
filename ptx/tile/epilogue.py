"""The epilogue of a block's product: each sum is finished and stored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptx.builder import Pointer, Val
from ptx.isa.dtypes import DType
from ptx.tile.math import TileMath
from ptx.tile.vectors import load_words, store_vector, vector_width, widen

__all__ = ["Finish", "LocateColumn", "plus_bias", "store_rows"]

# (column of the tile, columns from there on) -> where that element of a row is stored, and whether
# it exists. The second is known when the kernel is generated, and belongs at the end of a sum.
LocateColumn = Callable[[Val, int], tuple[Pointer, Val]]
# (neighbouring sums, column of the first one, where they are stored, whether they exist) -> what is
# stored.
Finish = Callable[[Sequence[Val], Val, Pointer, Val], Sequence[Val]]


def store_rows(
    math: TileMath,
    locate: Callable[[Val], LocateColumn],
    *,
    dtype: DType,
    extent: int,
    finish: Finish | None = None,
    hint: str | None = None,
) -> None:
    """Stores the sums as vectors of the result's type.

    Args:
      math: has the sums.
      locate: row of the tile -> a function of its columns.
      dtype: the result's type, to which sums are rounded.
      extent: neighbouring elements of the result, all of which exist or are cut off from some
        column on: vectors divide it.
      finish: makes what is stored of the sums, which are stored as they are without it.
      hint: the cache operator of the stores.
    """
    for row in math.rows():
        element = locate(row.row)
        for column, sums in row.parts:
            width = vector_width(dtype, len(sums), extent)
            for i in range(0, len(sums), width):
                address, exists = element(column, i)
                values: Sequence[Val] = sums[i : i + width]
                if finish is not None:
                    values = finish(values, column + i, address, exists)
                store_vector(address, values, where=exists, hint=hint)


def plus_bias(bias: Pointer, first: Val, columns: Val | None) -> Finish:
    """Makes what adds to each column its own bias.

    All rows have the same biases, so a bias is read wherever its column exists, whether the row
    does or not: what depends on rows would keep ptxas from reading it once for several of them.

    Args:
      bias: the biases of all columns of the result.
      first: the index of the bias of the tile's first column.
      columns: the number of the tile's columns that exist; None where all do.
    """

    def finish(sums: Sequence[Val], column: Val, address: Pointer, exists: Val) -> Sequence[Val]:
        column_ok = None if columns is None else column < columns
        words = load_words(bias + (first + column), len(sums), where=column_ok)
        return [total + b for total, b in zip(sums, widen(bias.kernel, words), strict=True)]

    return finish
