"""The addresses of both operands' elements."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.plan import SplitPlan, StreamPlan

__all__ = ["Matrix", "operands", "scalar"]


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
        """The address of an element, and whether the matrix has it."""
        k = self.first.kernel
        inside = (across < self.extent) & (along_k < self.depth)
        if self.k_axis == 1:
            offset = k.mad_wide(across, self.depth, k.convert(along_k, u64))
        else:
            offset = k.mad_wide(along_k, self.extent, k.convert(across, u64))
        return self.first + offset, inside


def operands(
    k: Kernel, config: GemmConfig, plan: StreamPlan | SplitPlan, p: Any, product: Val
) -> tuple[Matrix, Matrix]:
    """The large and the small operand of one product.

    Args:
      k: the kernel.
      config: the product.
      plan: its tiles.
      p: the kernel's parameters.
      product: which of the products.
    """
    depth, columns = config.depth, config.columns
    large = p.large + k.mul_wide(product * p.large_step, p.rows) * depth
    small = p.small + k.mul_wide(product * p.small_step, columns * depth)
    return (
        Matrix(large, config.large_k_axis, p.rows, depth, plan.large_width),
        Matrix(small, config.small_k_axis, columns, depth, config.small_width),
    )


def scalar(pointer: Pointer | None, step: Val | None, product: Val) -> Val | None:
    """One number for all products, or one for each; None where the operand is absent."""
    if pointer is None or step is None:
        return None
    return (pointer + product * step).load()
