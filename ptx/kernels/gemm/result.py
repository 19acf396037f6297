"""The result of a product: alpha times the sums, plus beta times c."""

from __future__ import annotations

from collections.abc import Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.gemm.config import GemmConfig
from ptx.tile.math import TileMath
from ptx.tile.vectors import load_words, store_vector, vector_width, widen

__all__ = ["GemmResult"]


class GemmResult:
    """Where a kernel's result goes, and what it is made of besides the product.

    c is what the result's memory holds before: each element is read and written by one thread.

    Args:
      k: the kernel.
      config: the product.
      result: of this block's product.
      rows: of the result.
      alpha, beta: None where there is none.
    """

    def __init__(
        self,
        k: Kernel,
        config: GemmConfig,
        result: Pointer,
        rows: Val,
        alpha: Val | None,
        beta: Val | None,
    ):
        self.k, self.config, self.result, self.rows = k, config, result, rows
        self.alpha, self.beta = alpha, beta

    def store(self, math: TileMath, first_row: Val, first_column: Val) -> None:
        """Writes the tile whose first element is at (first_row, first_column)."""
        config = self.config
        ignored = self.beta.eq(0.0) if self.beta is not None else None
        for row in math.rows():
            index = first_row + row.row
            there = index < self.rows
            for part, sums in row.parts:
                column = first_column + part
                step = 1
                if not config.swapped:
                    step = vector_width(config.float_type, len(sums), config.columns)
                for i in range(0, len(sums), step):
                    where = there & (column + i < config.columns)
                    place = self._place(index, column + i)
                    values = self._finished(sums[i : i + step], place, where, ignored)
                    store_vector(place, values, where=where, hint="cs")

    def _finished(
        self, sums: Sequence[Val], place: Pointer, where: Val, ignored: Val | None
    ) -> Sequence[Val]:
        k = self.k
        values = list(sums) if self.alpha is None else [value * self.alpha for value in sums]
        if not self.config.use_c:
            return values
        # Where beta is 0, c is not read: what it holds, NaN for example, does not matter.
        read = where if ignored is None else where & ~ignored
        old = widen(k, load_words(place, len(sums), where=read))
        if self.beta is None:
            return [value + c for value, c in zip(values, old, strict=True)]
        return [k.fma(c, self.beta, value) for value, c in zip(values, old, strict=True)]

    def _place(self, row: Val, column: Val) -> Pointer:
        k = self.k
        if self.config.swapped:
            return self.result + k.mad_wide(column, self.rows, k.convert(row, u64))
        return self.result + k.mad_wide(row, self.config.columns, k.convert(column, u64))
