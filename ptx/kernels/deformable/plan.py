"""Tile shapes and the instruction of a configuration on a target."""

from __future__ import annotations

import dataclasses

from ptx.builder import ATOMS, Kernel
from ptx.dtypes import bf16, f16, f64
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.targets import Target
from ptx.tile.math import FusedMultiplyAdd, TensorCores, TileMath
from ptx.tile.shared import SharedTile

__all__ = [
    "THREADS",
    "TilePlan",
    "backward_data_plan",
    "backward_weight_plan",
    "forward_plan",
    "make_math",
]

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
    warps: tuple[int, int]


def forward_plan(config: DeformableConvConfig) -> TilePlan:
    """M are output pixels, N output channels of a group, K input channels of a segment.

    N covers a group's output channels with one tile if it can: each further tile gathers the
    images again.
    """
    n = _at_least(config.out_channels_per_group, 16, {2: 128, 4: 64, 8: 32}[_bytes(config)])
    return TilePlan(64, n, _depth(config, config.segment), (4, 1) if n == 16 else (2, 2))


def backward_data_plan(config: DeformableConvConfig) -> TilePlan:
    """M are output pixels, N input channels of a segment, K output channels of a group.

    A warp has whole rows, so that a row's dots are summed within it.
    """
    n = _at_least(config.segment, 16, {2: 64, 4: 32, 8: 16}[_bytes(config)])
    return TilePlan(64, n, _depth(config, config.out_channels_per_group), (4, 1))


def backward_weight_plan(config: DeformableConvConfig) -> TilePlan:
    """M are input channels of a segment, N output channels of a group, K output pixels."""
    largest = 64 if _bytes(config) < 8 else 32
    m = _at_least(config.segment, 32, largest)
    n = _at_least(config.out_channels_per_group, 32, largest)
    return TilePlan(m, n, _depth(config, 64), (2, 2))


def make_math(
    k: Kernel, config: DeformableConvConfig, a: SharedTile, b: SharedTile, plan: TilePlan
) -> TileMath:
    """Tensor cores where the target has them for the type, else ordinary arithmetic."""
    atom = _atom_name(config, k.target)
    if atom is None:
        return FusedMultiplyAdd(k, a, b, THREADS)
    return TensorCores(k, ATOMS[atom], a, b, plan.warps)


def _at_least(extent: int, lowest: int, highest: int) -> int:
    """The lowest power of two that covers the extent, within limits."""
    size = lowest
    while size < min(extent, highest):
        size *= 2
    return size


def _bytes(config: DeformableConvConfig) -> int:
    return config.float_type.bytes


def _depth(config: DeformableConvConfig, extent: int) -> int:
    """K of a tile: 64 bytes a row, or 32 where there is not more."""
    return _at_least(extent, 32 // _bytes(config), 64 // _bytes(config))


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
