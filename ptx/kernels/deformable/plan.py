"""Tile shapes and the instruction of a configuration on a target."""

from __future__ import annotations

import dataclasses

from ptx.builder import ATOMS, Kernel
from ptx.dtypes import bf16, f16, f64
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.targets import Target
from ptx.tile.math import FusedMultiplyAdd, TensorCores, TileMath
from ptx.tile.shared import SharedTile

__all__ = ["THREADS", "TilePlan", "make_math", "precision_name"]

THREADS = 128


@dataclasses.dataclass(frozen=True)
class TilePlan:
    """A block's share of a product.

    Attributes:
      m, n, k: of the tiles.
      warps: along M and N, on tensor cores.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int] = (2, 2)


def make_math(
    k: Kernel, config: DeformableConvConfig, a: SharedTile, b: SharedTile, plan: TilePlan
) -> TileMath:
    """Tensor cores where the target has them for the type, else ordinary arithmetic."""
    atom = _atom_name(config, k.target)
    if atom is None:
        return FusedMultiplyAdd(k, a, b, THREADS)
    return TensorCores(k, ATOMS[atom], a, b, plan.warps)


def precision_name(config: DeformableConvConfig) -> str:
    return config.float_type.name


def _atom_name(config: DeformableConvConfig, target: Target) -> str | None:
    dtype, ampere = config.float_type, target.supports("sm_80")
    if dtype is f16:
        return "m16n8k16.f16" if ampere else "m16n8k8.f16"
    if not ampere:
        return None
    if dtype is bf16:
        return "m16n8k16.bf16"
    if dtype is f64:
        return "m8n8k4.f64"
    return None if config.exact else "m16n8k8.tf32"
