"""Tiles of a block's share of a product, and the instruction that multiplies them."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from ptx.builder import ATOMS, Atom, Kernel
from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.isa.targets import Target
from ptx.tile.fma import FusedMultiplyAdd
from ptx.tile.shared import SharedTile
from ptx.tile.tensor_cores import TensorCores

__all__ = [
    "ProductConfig",
    "TilePlan",
    "at_least",
    "atom_of",
    "make_math",
    "make_product",
    "streams",
]


class ProductConfig(Protocol):
    """The fields of a configuration that decide which instruction multiplies.

    Attributes:
      float_type: the type of the operands.
      exact: f32 is multiplied as f32, not rounded to TF32.
    """

    @property
    def float_type(self) -> DType: ...
    @property
    def exact(self) -> bool: ...


@dataclasses.dataclass(frozen=True)
class TilePlan:
    """A block's share of a product.

    Attributes:
      m, n, k: sizes of the tiles.
      warps: warps along M and N, on tensor cores.
      stages: stages of tiles in shared memory.
      streamed: the operand that is made in the kernel stays in registers; see `ptx.tile.stream`.
      min_blocks: blocks that fit on an SM, which limits registers.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int]
    stages: int = 2
    streamed: bool = False
    min_blocks: int = 2

    @property
    def product_threads(self) -> int:
        """Threads that multiply one tile."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.product_threads


def make_math(
    k: Kernel,
    config: ProductConfig,
    a: SharedTile,
    b: SharedTile,
    plan: TilePlan,
    *,
    split: int = 1,
) -> TensorCores | FusedMultiplyAdd:
    """Tensor cores where the target has them for the type, else ordinary arithmetic.

    Args:
      k: the kernel, of `split` times as many threads as the plan has.
      config: decides the instruction.
      a: tile of A.
      b: tile of B.
      plan: warps.
      split: parts of each tile along K, for as many groups of warps.
    """
    atom = atom_of(config, k.target)
    if atom is None:
        return FusedMultiplyAdd(k, a, b, plan.product_threads, split)
    return TensorCores(k, atom, a, b, plan.warps, split=split)


def make_product(
    k: Kernel, config: ProductConfig, plan: TilePlan, *, k_axis: int, dynamic: bool = False
) -> tuple[SharedTile, SharedTile, TensorCores | FusedMultiplyAdd]:
    """One stage of both tiles in shared memory, and what multiplies them.

    Args:
      k: the kernel.
      config: decides the instruction.
      plan: sizes of the tiles, and warps.
      k_axis: axis of both tiles that the products run along.
      dynamic: whether they are in dynamic shared memory.

    Returns:
      The tile of A, that of B, and the arithmetic.
    """
    a, b = (
        SharedTile.make(
            *(k, name, config.float_type),
            k_extent=plan.k,
            extent=extent,
            k_axis=k_axis,
            dynamic=dynamic,
        )
        for name, extent in (("a_tile", plan.m), ("b_tile", plan.n))
    )
    return a, b, make_math(k, config, a, b, plan)


def atom_of(config: ProductConfig, target: Target) -> Atom | None:
    """The tensor-core instruction of a configuration on a target, if it has one."""
    dtype, ampere = config.float_type, target.supports("sm_80")
    if dtype is f16:
        return ATOMS["m16n8k16.f16" if ampere else "m16n8k8.f16"]
    if not ampere or (dtype is f32 and config.exact):
        return None
    return ATOMS[{bf16: "m16n8k16.bf16", f32: "m16n8k8.tf32", f64: "m8n8k4.f64"}[dtype]]


def streams(config: ProductConfig, target: Target) -> bool:
    """Whether there is an instruction that `ptx.tile.stream` is made for."""
    atom = atom_of(config, target)
    return atom is not None and atom.name in ("m16n8k16.f16", "m16n8k16.bf16", "m16n8k8.tf32")


def at_least(extent: int, lowest: int, highest: int) -> int:
    """The lowest power of two that covers the extent, within limits."""
    size = lowest
    while size < min(extent, highest):
        size *= 2
    return size
