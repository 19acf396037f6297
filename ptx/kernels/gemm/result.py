"""The result of a product: alpha times the sums, plus beta times c."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.gemm.config import GemmConfig
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.math import TileMath
from ptx.tile.vectors import load_words, widen

__all__ = ["GemmResult"]


@dataclasses.dataclass(frozen=True, eq=False)
class GemmResult:
    """Where a kernel's result goes, and what it is made of besides the product.

    c is what the result's memory holds before: each element is read and written by one thread.

    Attributes:
      k: the kernel.
      config: the product.
      result: the result of this block's product.
      rows: the rows of the result.
      alpha, beta: None where there is none.
    """

    k: Kernel
    config: GemmConfig
    result: Pointer
    rows: Val
    alpha: Val | None
    beta: Val | None

    def store(self, math: TileMath, first_row: Val, first_column: Val) -> None:
        """Writes the tile whose first element is at (first_row, first_column)."""
        k, config = self.k, self.config
        ignored = self.beta.eq(0.0) if self.beta is not None else None

        def locate(row: Val) -> LocateColumn:
            index = first_row + row
            row_exists = index < self.rows

            def element(tile_column: Val, further: int) -> tuple[Pointer, Val]:
                column = first_column + tile_column + further
                exists = row_exists & (column < config.columns)
                if config.swapped:
                    at = k.mad_wide(column, self.rows, k.convert(index, u64))
                else:
                    at = k.mad_wide(index, config.columns, k.convert(column, u64))
                return self.result + at, exists

            return element

        def finish(
            sums: Sequence[Val], column: Val, address: Pointer, exists: Val
        ) -> Sequence[Val]:
            return self._finished(sums, address, exists, ignored)

        extent = 1 if config.swapped else config.columns
        store_rows(math, locate, dtype=config.float_type, extent=extent, finish=finish, hint="cs")

    def _finished(
        self, sums: Sequence[Val], address: Pointer, exists: Val, ignored: Val | None
    ) -> Sequence[Val]:
        k = self.k
        values = list(sums) if self.alpha is None else [value * self.alpha for value in sums]
        if not self.config.use_c:
            return values
        # Where beta is 0, c is not read: what it holds, NaN for example, does not matter.
        read = exists if ignored is None else exists & ~ignored
        old = widen(k, load_words(address, len(sums), where=read))
        if self.beta is None:
            return [value + c for value, c in zip(values, old, strict=True)]
        return [k.fma(c, self.beta, value) for value, c in zip(values, old, strict=True)]
