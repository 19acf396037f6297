"""What the definitions of a convolution's three kernels have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.builder import Kernel
from ptx.kernel import Instance, Size
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.windows import WindowRows
from ptx.tile.direct import DirectPlan
from ptx.tile.plan import TilePlan

__all__ = ["WEIGHT", "X", "Y", "entry", "is_tiled", "strip_width", "writer"]

# The dimensions of arrays: images n of h x w pixels and c channels; output pixels p x q and output
# channels o; taps i x j and input channels e of a group.
X, WEIGHT, Y = "n h w c", "i j e o", "n p q o"


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


def strip_width(columns: Callable[[Instance], int]) -> Size:
    """The parameter of tiled kernels that says how wide the strips of so many columns are."""
    return Size("strip_width", lambda instance: WindowRows.strip_width(columns(instance)), is_tiled)
