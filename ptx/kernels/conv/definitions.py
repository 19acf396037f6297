"""The definitions of the kernels: parameters, grids, and which function writes which plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ptx.definition import Instance, KernelDefinition, Out, Size
from ptx.isa.targets import TARGETS
from ptx.kernels.conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.backward_weight import (
    direct_backward_weight,
    direct_weight_blocks,
    direct_weight_tile,
)
from ptx.kernels.conv.direct.common import PIXELS, is_direct, outputs_of, strip_count
from ptx.kernels.conv.direct.window_products import direct_backward_input, direct_forward
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.operations import BIAS, GRAD_X, GRAD_Y, WEIGHT, X, Y
from ptx.kernels.conv.plan import backward_input_plan, backward_weight_plan, forward_plan
from ptx.kernels.conv.tiled.backward_weight import tiled_backward_weight
from ptx.kernels.conv.tiled.window_products import tiled_backward_input, tiled_forward
from ptx.kernels.convolution_definitions import (
    body_of,
    part_count,
    pixels_per_part,
    weight_grid,
)
from ptx.tile import strips
from ptx.tile.direct import DirectPlan
from ptx.tile.pixels import SIZES
from ptx.tile.plan import TilePlan

__all__ = ["BACKWARD_INPUT", "BACKWARD_WEIGHT", "FORWARD", "backward_weight_parts"]

Plan = TilePlan | DirectPlan
ImageSize = tuple[int, int, int]  # number, height and width of images


def _is_tiled(config: ConvConfig, plan: Plan) -> bool:
    return isinstance(plan, TilePlan)


def _is_direct(config: ConvConfig, plan: Plan) -> bool:
    return isinstance(plan, DirectPlan)


def _entry(
    prefix: str, direct_tile: Callable[[ConvConfig, DirectPlan], tuple[int, int, int]]
) -> Callable[[ConvConfig, Plan], str]:
    """Names the PTX entry of a kernel by its tile and type: implicit_gemm_conv_64x32x32_f16.

    Args:
      prefix: what the name begins with.
      direct_tile: the rows, columns and depth of what a block of a direct kernel multiplies.
    """

    def name(config: ConvConfig, plan: Plan) -> str:
        m, n, depth = (
            direct_tile(config, plan) if isinstance(plan, DirectPlan) else (plan.m, plan.n, plan.k)
        )
        return f"{prefix}_{m}x{n}x{depth}_{config.float_type}"

    return name


# ---- forward, and backward to input: a block has some pixels of the result (grid x)


def _strip_width(pixels: Callable[[Instance], ImageSize]) -> Size:
    """The parameter of tiled kernels that is the width of the strips of the result's pixels."""

    def width(instance: Instance) -> int:
        return strips.strip_width(*pixels(instance), instance.plan.m)

    return Size("strip_width", width, _is_tiled)


def _window_grid(
    instance: Instance, pixels: ImageSize, channels: int, classes: int = 1
) -> tuple[int, int, int]:
    """The grid for pixels of the result and channels of a group, in classes of strides."""
    plan = instance.plan
    if isinstance(plan, DirectPlan):
        return plan.blocks(strip_count(*pixels)) * classes, 1, 1
    tiles = instance.config.groups * -(-channels // plan.n)
    return strips.strip_blocks(*pixels, plan.m), tiles, classes


def _forward_tile(config: ConvConfig, plan: DirectPlan) -> tuple[int, int, int]:
    depth = config.taps * config.in_channels_per_group
    return plan.down * PIXELS, plan.across * outputs_of(config, plan), depth


def _outputs(instance: Instance) -> ImageSize:
    return instance.sizes["n"], instance.sizes["p"], instance.sizes["q"]


def _forward_grid(instance: Instance) -> tuple[int, int, int]:
    return _window_grid(instance, _outputs(instance), instance.config.out_channels_per_group)


FORWARD = KernelDefinition(
    name="conv_forward",
    configs=CONFIGS,
    launch_sizes=LAUNCH_SIZES,
    parameters=(
        X,
        # What the products run along lies together; threads of direct kernels run along outputs.
        WEIGHT.laid(lambda config: "i j e o" if is_direct(config) else "o i j e"),
        *(BIAS, Y, *SIZES, _strip_width(_outputs)),
    ),
    plan=forward_plan,
    entry=_entry("implicit_gemm_conv", _forward_tile),
    body=body_of(direct=direct_forward, tiled=tiled_forward),
    grid=_forward_grid,
    check=check_windows,
)


def _backward_input_tile(config: ConvConfig, plan: DirectPlan) -> tuple[int, int, int]:
    depth = config.taps * config.out_channels_per_group
    return plan.down * PIXELS, plan.across * plan.channels, depth


def _inputs_of_a_class(instance: Instance) -> ImageSize:
    """The pixels of the largest class; blocks without a pixel, of smaller ones, end at once."""
    config, sizes = instance.config, instance.sizes
    return sizes["n"], -(-sizes["h"] // config.stride_h), -(-sizes["w"] // config.stride_w)


def _backward_input_grid(instance: Instance) -> tuple[int, int, int]:
    config, pixels = instance.config, _inputs_of_a_class(instance)
    classes = config.stride_h * config.stride_w
    return _window_grid(instance, pixels, config.in_channels_per_group, classes)


BACKWARD_INPUT = KernelDefinition(
    name="conv_backward_input",
    configs=CONFIGS,
    launch_sizes=LAUNCH_SIZES,
    parameters=(WEIGHT, GRAD_Y, GRAD_X, *SIZES, _strip_width(_inputs_of_a_class)),
    plan=backward_input_plan,
    entry=_entry("implicit_gemm_conv_backward_input", _backward_input_tile),
    body=body_of(direct=direct_backward_input, tiled=tiled_backward_input),
    grid=_backward_input_grid,
    check=functools.partial(check_windows, backward_input=True),
)

# ---- backward to the weights: a block has some weights (grid x, y) and pixels of a part (grid z)


def _weight_blocks(config: ConvConfig, plan: Any) -> tuple[int, int]:
    """The blocks of one part: rows of all groups' weights in x, output channels in y."""
    if isinstance(plan, DirectPlan):
        return direct_weight_blocks(config), 1
    across = config.groups * -(-config.taps * config.in_channels_per_group // plan.m)
    return across, -(-config.out_channels_per_group // plan.n)


def backward_weight_parts(config: ConvConfig, pixels: int) -> int:
    """The number of parts that the output pixels are cut into; see `part_count`."""
    plan = backward_weight_plan(config, TARGETS["sm_80"])
    return part_count(plan, _weight_blocks(config, plan), pixels, direct_pixels=1024)


def _strips_per_part(instance: Instance) -> int:
    return -(-strip_count(*_outputs(instance)) // instance.sizes["s"])


BACKWARD_WEIGHT = KernelDefinition(
    name="conv_backward_weight",
    # Its plan is the same for launches of all sizes.
    configs={name: config for name, config in CONFIGS.items() if name not in LAUNCH_SIZES},
    parameters=(
        *(X, GRAD_Y),
        # The sums over s parts of the output pixels.
        Out("grad_weight_parts", f"s {WEIGHT.dims}", "sum_type"),
        *SIZES,
        Size("pixels_per_part", pixels_per_part, _is_tiled),
        Size("strips_per_part", _strips_per_part, _is_direct),
    ),
    plan=backward_weight_plan,
    entry=_entry("implicit_gemm_conv_backward_weight", direct_weight_tile),
    body=body_of(direct=direct_backward_weight, tiled=tiled_backward_weight),
    grid=weight_grid(_weight_blocks),
    check=check_windows,
)
