"""Where the elements of both operands are, and what a launch tells a kernel of them."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.kernels.gemm.config import LARGEST, GemmConfig
from ptx.launch import Address
from ptx.registry import Shapes

__all__ = ["Matrix", "Sizes", "operands", "scalar"]


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """An operand of one product: rows of A, or columns of B, along K.

    Attributes:
      first: its first element.
      k_axis: the axis that counts along K.
      extent: rows of A or columns of B: a number, or a register.
      depth: the size of K.
      width: elements that are read together.
    """

    first: Pointer
    k_axis: int
    extent: Val | int
    depth: int
    width: int

    def at(self, across: Val, along_k: Val) -> tuple[Pointer, Val]:
        """Where an element is, and whether it is there."""
        k = self.first.kernel
        there = (across < self.extent) & (along_k < self.depth)
        if self.k_axis == 1:
            return self.first + k.mad_wide(across, self.depth, k.convert(along_k, u64)), there
        return self.first + k.mad_wide(along_k, self.extent, k.convert(across, u64)), there


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the shapes of a launch say.

    Attributes:
      batch: products.
      rows: of the large operand.
      steps: of each operand, alpha and beta: 1 if there is one for each product, 0 if all have the
        same.
    """

    batch: int
    rows: int
    steps: tuple[int, ...]

    @staticmethod
    def of(config: GemmConfig, shapes: Shapes) -> Sizes:
        """Read off the shapes of large and small operand, c, alpha, beta and result.

        Of one product, matrices may have two dimensions.

        Raises:
          ValueError: more rows than a kernel counts.
        """
        large, result = shapes[0], shapes[-1]
        operands = [*shapes[:2], *shapes[2 + config.use_c : -1]]
        batches = [s[0] if len(s) != 2 else 1 for s in operands]
        batch = result[0] if len(result) > 2 else 1
        steps = tuple(int(count > 1) for count in batches)
        rows = large[-1 - config.large_k_axis]
        if rows >= LARGEST:
            raise ValueError(f"rows of the large operand must be below 2**31, got {rows}")
        return Sizes(batch, rows, steps)

    def numbers(self, blocks: int) -> list[np.uint32]:
        """The arguments that follow the addresses; `blocks` of a product are in x."""
        return [np.uint32(number) for number in (self.rows, blocks, *self.steps)]

    def addresses(self, config: GemmConfig) -> list[Address]:
        """Of the operands, alpha, beta and the result, in which c is."""
        scalars = config.use_alpha + config.use_beta
        first = 2 + config.use_c
        return [Address(i) for i in (0, 1, *range(first, first + scalars + 1))]


def operands(
    k: Kernel, config: GemmConfig, large: Pointer, small: Pointer, rows: Val, batch: Val
) -> tuple[Matrix, Matrix]:
    """Both operands of one product; declares their steps."""
    steps = [k.param(f"{name}_step", u32) for name in ("large", "small")]
    depth, columns = config.depth, config.columns
    large = large + k.mul_wide(batch * steps[0], rows) * depth
    small = small + k.mul_wide(batch * steps[1], columns * depth)
    return (
        Matrix(large, config.large_k_axis, rows, depth, config.large_width),
        Matrix(small, config.small_k_axis, columns, depth, config.small_width),
    )


def scalar(k: Kernel, pointer: Pointer, name: str, batch: Val) -> Val:
    """One number, or one for each product."""
    return (pointer + batch * k.param(f"{name}_step", u32)).load()
