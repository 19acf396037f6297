"""Shared parts of the definitions of a convolution's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.builder import Kernel
from ptx.definition import Instance, Size
from ptx.kernels.conv.config import ConvConfig
from ptx.tile import strips
from ptx.tile.direct import DirectPlan
from ptx.tile.plan import TilePlan

__all__ = ["entry", "is_tiled", "strip_width", "writer"]


def is_tiled(config: ConvConfig, plan: TilePlan | DirectPlan) -> bool:
    """Whether a plan is of the kernels that multiply tiles."""
    return isinstance(plan, TilePlan)


def writer(
    tiled: Callable[[Kernel, ConvConfig, TilePlan, Any], None],
    direct: Callable[[Kernel, ConvConfig, DirectPlan, Any], None],
) -> Callable[[Kernel, ConvConfig, TilePlan | DirectPlan, Any], None]:
    """The body of a kernel that multiplies tiles or, where the plan says so, has none."""

    def write(k: Kernel, config: ConvConfig, plan: TilePlan | DirectPlan, p: Any) -> None:
        if isinstance(plan, DirectPlan):
            direct(k, config, plan, p)
        else:
            tiled(k, config, plan, p)

    return write


def entry(
    prefix: str, direct_tile: Callable[[ConvConfig, DirectPlan], tuple[int, int, int]]
) -> Callable[[ConvConfig, TilePlan | DirectPlan], str]:
    """Names the PTX entry of a kernel by its tile and type: implicit_gemm_conv_64x32x32_f16.

    Args:
      prefix: what the name begins with.
      direct_tile: rows, columns and depth of what a block of a direct kernel multiplies.
    """

    def name(config: ConvConfig, plan: TilePlan | DirectPlan) -> str:
        m, n, depth = (
            direct_tile(config, plan) if isinstance(plan, DirectPlan) else (plan.m, plan.n, plan.k)
        )
        return f"{prefix}_{m}x{n}x{depth}_{config.float_type}"

    return name


def strip_width(pixels: Callable[[Instance], tuple[int, int, int]]) -> Size:
    """The parameter of tiled kernels that says how wide the strips of so many pixels are."""

    def width(instance: Instance) -> int:
        return strips.strip_width(*pixels(instance), instance.plan.m)

    return Size("strip_width", width, is_tiled)
