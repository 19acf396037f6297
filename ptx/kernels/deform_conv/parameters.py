"""Parameters that several kernels have, in the operands' own names, and what follows from them.

Dimensions: images n of size h, w with c channels; output pixels p, q; taps i, j; offset channels d
and mask channels m; input channels e of a group; output channels o.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.isa.dtypes import DType
from ptx.kernel import In, Instance, Size, Sizes
from ptx.kernels.convolution import known_sizes
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.corners import PixelRows
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.limits import check_sizes
from ptx.tile.vectors import accumulator_of

__all__ = [
    "GRAD_Y",
    "MASK",
    "OFFSET",
    "STRIP_WIDTH",
    "WEIGHT",
    "X",
    "accumulator_type",
    "check",
    "entry",
    "has_strips",
    "known",
    "mask_type",
    "offset_type",
    "output_pixels",
]


def accumulator_type(config: DeformConvConfig) -> DType:
    """The type of sums: f64 for f64, f32 for all others."""
    return accumulator_of(config.float_type)


def offset_type(config: DeformConvConfig) -> DType:
    return config.offset_type or config.float_type


def mask_type(config: DeformConvConfig) -> DType:
    return config.mask_type or config.float_type


def has_strips(config: DeformConvConfig, plan: Any) -> bool:
    """Whether the output pixels of a block are neighbours in a strip: see `PixelRows`."""
    return isinstance(plan, SamplePlan) and plan.corners != "samples"


def _strip_width(instance: Instance) -> int:
    sizes = instance.sizes
    return PixelRows.strip_width(sizes["n"], sizes["p"], sizes["q"], instance.plan.m)


X = In("x", "n h w c")
OFFSET = In("offset", "n p q d", offset_type)
WEIGHT = In("weight", "i j e o")
MASK = In("mask", "n p q m", mask_type, flag="use_modulation")
GRAD_Y = In("grad_y", "n p q o")
STRIP_WIDTH = Size("strip_width", _strip_width, present=has_strips)


def known(config: DeformConvConfig) -> Sizes:
    """The sizes that follow from a configuration."""
    return known_sizes(config) | {"d": config.offset_channels, "m": config.mask_channels}


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
        table=isinstance(plan, SamplePlan) and plan.corners == "table",
    )


def entry(kernel: str) -> Callable[[DeformConvConfig, Any], str]:
    """Names the PTX entry of a kernel: deformable_conv_forward_f32_3x3, for example."""

    def name(config: DeformConvConfig, plan: Any) -> str:
        taps = f"{config.kernel_h}x{config.kernel_w}"
        return f"deformable_conv_{kernel}_{config.float_type}_{taps}"

    return name
