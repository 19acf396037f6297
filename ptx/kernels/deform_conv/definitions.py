"""The definitions of the kernels: parameters, grids, and which function writes which plan.

Forward, a block has some output pixels (grid x) and output channels of a group (grid y). Backward
to input and to offset, it has some pixels (grid x) of one offset group (grid y), or of a tile of
channels where offset groups are narrow; streamed kernels share out the taps among blocks as well
(grid z). The gradients to offset and mask are written once each; the order in which those to the
input are added to what grad_x holds is not fixed. Backward to the weights, a block has some of the
weights (grid x and y) and the pixels of one part (grid z). Tiny groups have all blocks in x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.definition import Instance, KernelDefinition, Out, Size
from ptx.isa.targets import TARGETS
from ptx.kernels.convolution_definitions import (
    body_of,
    output_pixels,
    part_count,
    pixels_per_part,
    weight_grid,
)
from ptx.kernels.deform_conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.backward_data import (
    direct_backward_input,
    direct_backward_offset,
)
from ptx.kernels.deform_conv.direct.backward_weight import direct_backward_weight
from ptx.kernels.deform_conv.direct.forward import direct_forward
from ptx.kernels.deform_conv.operations import (
    BIAS,
    GRAD_MASK,
    GRAD_OFFSET,
    GRAD_Y,
    MASK,
    OFFSET,
    WEIGHT,
    X,
    Y,
)
from ptx.kernels.deform_conv.plan import (
    SamplePlan,
    backward_input_plan,
    backward_offset_plan,
    backward_weight_plan,
    forward_plan,
)
from ptx.kernels.deform_conv.tiled.backward_data import tiled_backward_input, tiled_backward_offset
from ptx.kernels.deform_conv.tiled.backward_data_streamed import (
    streamed_backward_input,
    streamed_backward_offset,
    taps_per_block,
)
from ptx.kernels.deform_conv.tiled.backward_weight import tiled_backward_weight
from ptx.kernels.deform_conv.tiled.forward import tiled_forward
from ptx.kernels.limits import PIXELS, check_sizes
from ptx.tile.direct import DirectPlan
from ptx.tile.pixels import SIZES
from ptx.tile.strips import strip_blocks, strip_width

__all__ = [
    "BACKWARD_INPUT",
    "BACKWARD_OFFSET",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "backward_weight_parts",
    "entry",
]


def entry(kernel: str) -> Callable[[DeformConvConfig, Any], str]:
    """Names the PTX entry of a kernel: deformable_conv_forward_f32_3x3, for example."""

    def name(config: DeformConvConfig, plan: Any) -> str:
        taps = f"{config.kernel_h}x{config.kernel_w}"
        return f"deformable_conv_{kernel}_{config.float_type}_{taps}"

    return name


def _definition(kernel: str, **fields: Any) -> KernelDefinition[DeformConvConfig]:
    return KernelDefinition(
        name=f"deform_conv_{kernel}", configs=CONFIGS, check=_check, entry=entry(kernel), **fields
    )


def _check(instance: Instance) -> None:
    """Raises ValueError, which names the limit, for sizes that a kernel cannot count."""
    plan, sizes = instance.plan, instance.sizes
    check_sizes(
        instance.config,
        sizes["n"],
        (sizes["h"], sizes["w"]),
        (sizes["p"], sizes["q"]),
        most_pixels=plan.table.most_pixels if isinstance(plan, SamplePlan) else PIXELS,
    )


def _pixel_blocks(instance: Instance) -> int:
    """The number of blocks along the output pixels."""
    plan, sizes = instance.plan, instance.sizes
    if isinstance(plan, DirectPlan):
        return plan.blocks(output_pixels(sizes))
    if plan.has_strips:
        return strip_blocks(sizes["n"], sizes["p"], sizes["q"], plan.m)
    return -(-output_pixels(sizes) // plan.m)


def _has_strips(config: DeformConvConfig, plan: Any) -> bool:
    return isinstance(plan, SamplePlan) and plan.has_strips


def _strip_width(instance: Instance) -> int:
    sizes = instance.sizes
    return strip_width(sizes["n"], sizes["p"], sizes["q"], instance.plan.m)


_STRIP_WIDTH = Size("strip_width", _strip_width, present=_has_strips)

# ---- forward


def _forward_grid(instance: Instance) -> tuple[int, int, int]:
    config, plan = instance.config, instance.plan
    if isinstance(plan, DirectPlan):
        return _pixel_blocks(instance), 1, 1
    tiles = config.groups * -(-config.out_channels_per_group // plan.n)
    return _pixel_blocks(instance), tiles, 1


FORWARD = _definition(
    "forward",
    launch_sizes=LAUNCH_SIZES,
    parameters=(X, OFFSET, WEIGHT.laid("o i j e"), MASK, BIAS, Y, *SIZES, _STRIP_WIDTH),
    plan=forward_plan,
    grid=_forward_grid,
    body=body_of(direct=direct_forward, tiled=tiled_forward),
)

# ---- backward to input, and to offset and mask


def _channel_blocks(instance: Instance) -> int:
    """The number of blocks of the same pixels and taps."""
    config, plan = instance.config, instance.plan
    if plan.narrow:
        return config.groups * -(-config.in_channels_per_group // plan.n)
    return config.offset_groups


def _taps_per_block(instance: Instance) -> int:
    blocks = _pixel_blocks(instance) * _channel_blocks(instance)
    return taps_per_block(instance.config, instance.plan, blocks)


def _data_grid(instance: Instance) -> tuple[int, int, int]:
    if isinstance(instance.plan, DirectPlan):
        return _pixel_blocks(instance), 1, 1
    taps = instance.config.taps
    shares = -(-taps // _taps_per_block(instance)) if instance.plan.streamed else 1
    return _pixel_blocks(instance), _channel_blocks(instance), shares


_DATA_SIZES = (*SIZES, _STRIP_WIDTH, Size("taps_per_block", _taps_per_block, present=_has_strips))
_GRAD_X = Out("grad_x", "n h w c", "sum_type", initial="zeros")

BACKWARD_INPUT = _definition(
    "backward_input",
    parameters=(OFFSET, WEIGHT, MASK, GRAD_Y, _GRAD_X, *_DATA_SIZES),
    plan=backward_input_plan,
    grid=_data_grid,
    body=body_of(
        direct=direct_backward_input, tiled=tiled_backward_input, streamed=streamed_backward_input
    ),
)
BACKWARD_OFFSET = _definition(
    "backward_offset",
    parameters=(X, OFFSET, WEIGHT, MASK, GRAD_Y, GRAD_OFFSET, GRAD_MASK, *_DATA_SIZES),
    plan=backward_offset_plan,
    grid=_data_grid,
    body=body_of(
        direct=direct_backward_offset,
        tiled=tiled_backward_offset,
        streamed=streamed_backward_offset,
    ),
)

# ---- backward to the weights


def _weight_blocks(config: DeformConvConfig, plan: SamplePlan | DirectPlan) -> tuple[int, int]:
    """The blocks of one part: channels and taps in x, output channels in y."""
    if isinstance(plan, DirectPlan):
        return plan.chunks * config.taps, 1
    extent = plan.channel_extent(config)
    across = -(-extent // plan.m) * (config.in_channels // extent) * config.taps
    return across, -(-config.out_channels_per_group // plan.n)


def backward_weight_parts(config: DeformConvConfig, pixels: int) -> int:
    """The number of parts that the output pixels are cut into; see `part_count`."""
    plan = backward_weight_plan(config, TARGETS["sm_80"], None)
    return part_count(plan, _weight_blocks(config, plan), pixels, direct_pixels=512)


BACKWARD_WEIGHT = _definition(
    "backward_weight",
    parameters=(
        *(X, OFFSET, MASK, GRAD_Y, Out("partial", f"s {WEIGHT.dims}", "sum_type")),
        *(*SIZES, Size("pixels_per_part", pixels_per_part)),
    ),
    plan=backward_weight_plan,
    grid=weight_grid(_weight_blocks),
    body=body_of(direct=direct_backward_weight, tiled=tiled_backward_weight),
)
