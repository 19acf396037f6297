"""Shared parts of the definitions of a deformable convolution's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.definition import Instance, Size, Sizes
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.limits import PIXELS, check_sizes
from ptx.tile.strips import strip_width

__all__ = ["STRIP_WIDTH", "check", "entry", "has_strips", "output_pixels"]


def has_strips(config: DeformConvConfig, plan: Any) -> bool:
    """Whether the output pixels of a block are neighbours in a strip: see `PixelRows`."""
    return isinstance(plan, SamplePlan) and plan.has_strips


def _strip_width(instance: Instance) -> int:
    sizes = instance.sizes
    return strip_width(sizes["n"], sizes["p"], sizes["q"], instance.plan.m)


STRIP_WIDTH = Size("strip_width", _strip_width, present=has_strips)


def output_pixels(sizes: Sizes) -> int:
    """How many there are in all images."""
    return sizes["n"] * sizes["p"] * sizes["q"]


def check(instance: Instance) -> None:
    """Raises ValueError, which names the limit, for sizes that a kernel cannot count."""
    plan, sizes = instance.plan, instance.sizes
    check_sizes(
        instance.config,
        sizes["n"],
        (sizes["h"], sizes["w"]),
        (sizes["p"], sizes["q"]),
        most_pixels=plan.table.most_pixels if isinstance(plan, SamplePlan) else PIXELS,
    )


def entry(kernel: str) -> Callable[[DeformConvConfig, Any], str]:
    """Names the PTX entry of a kernel: deformable_conv_forward_f32_3x3, for example."""

    def name(config: DeformConvConfig, plan: Any) -> str:
        taps = f"{config.kernel_h}x{config.kernel_w}"
        return f"deformable_conv_{kernel}_{config.float_type}_{taps}"

    return name
