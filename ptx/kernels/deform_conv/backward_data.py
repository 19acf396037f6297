"""Backward to input, and to offset and mask: grad_y @ weights^T, and what is made of it.

A block has some pixels (grid x) of one offset group (grid y), or of a tile of channels where offset
groups are narrow. Streamed kernels share out the taps among blocks as well (grid z). The gradients
to offset and mask are written once each; the order in which those to the input are added to what
grad_x holds is not fixed.
"""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel
from ptx.definition import Instance, KernelDefinition, Out, Size
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.backward_data import (
    direct_backward_input,
    direct_backward_offset,
)
from ptx.kernels.deform_conv.operations import (
    GRAD_MASK,
    GRAD_OFFSET,
    GRAD_Y,
    MASK,
    OFFSET,
    WEIGHT,
    X,
)
from ptx.kernels.deform_conv.parameters import STRIP_WIDTH, check, entry, has_strips, output_pixels
from ptx.kernels.deform_conv.plan import SamplePlan, backward_input_plan, backward_offset_plan
from ptx.kernels.deform_conv.samples.gradients import OffsetGradients
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.tiled.backward_data import tiled_backward_input, tiled_backward_offset
from ptx.kernels.deform_conv.tiled.backward_data_streamed import (
    streamed_backward_input,
    streamed_backward_offset,
    taps_per_block,
)
from ptx.tile.direct import DirectPlan
from ptx.tile.pixels import SIZES
from ptx.tile.strips import strip_blocks

__all__ = ["BACKWARD_INPUT", "BACKWARD_OFFSET"]


def _backward_offset(
    k: Kernel, config: DeformConvConfig, plan: SamplePlan | DirectPlan, p: Any
) -> None:
    offsets = Offsets.of(k, config, p)
    gradients = OffsetGradients(k, config, p.grad_offset, p.grad_mask)
    if isinstance(plan, DirectPlan):
        direct_backward_offset(k, config, plan, p, offsets, gradients)
    elif plan.streamed:
        streamed_backward_offset(k, config, plan, p, offsets, gradients)
    else:
        tiled_backward_offset(k, config, plan, p, offsets, gradients)


def _backward_input(
    k: Kernel, config: DeformConvConfig, plan: SamplePlan | DirectPlan, p: Any
) -> None:
    offsets = Offsets.of(k, config, p)
    if isinstance(plan, DirectPlan):
        direct_backward_input(k, config, plan, p, offsets)
    elif plan.streamed:
        streamed_backward_input(k, config, plan, p, offsets)
    else:
        tiled_backward_input(k, config, plan, p, offsets)


def _grid(instance: Instance) -> tuple[int, int, int]:
    config, plan = instance.config, instance.plan
    if isinstance(plan, DirectPlan):
        return plan.blocks(output_pixels(instance.sizes)), 1, 1
    if not plan.streamed:
        return -(-output_pixels(instance.sizes) // plan.m), config.offset_groups, 1
    return *_blocks(instance), -(-config.taps // _taps_per_block(instance))


def _blocks(instance: Instance) -> tuple[int, int]:
    """Blocks of a streamed kernel that have the same taps: along pixels, and along channels."""
    config, plan, sizes = instance.config, instance.plan, instance.sizes
    groups = config.offset_groups
    if plan.narrow:
        groups = config.groups * -(-config.in_channels_per_group // plan.n)
    return strip_blocks(sizes["n"], sizes["p"], sizes["q"], plan.m), groups


def _taps_per_block(instance: Instance) -> int:
    across, down = _blocks(instance)
    return taps_per_block(instance.config, instance.plan, across * down)


_TAPS_PER_BLOCK = Size("taps_per_block", _taps_per_block, present=has_strips)

BACKWARD_INPUT = KernelDefinition(
    name="deform_conv_backward_input",
    configs=CONFIGS,
    parameters=(
        *(OFFSET, WEIGHT, MASK, GRAD_Y, Out("grad_x", "n h w c", "sum_type", initial="zeros")),
        *(*SIZES, STRIP_WIDTH, _TAPS_PER_BLOCK),
    ),
    plan=backward_input_plan,
    check=check,
    grid=_grid,
    entry=entry("backward_input"),
    body=_backward_input,
)
BACKWARD_OFFSET = KernelDefinition(
    name="deform_conv_backward_offset",
    configs=CONFIGS,
    parameters=(
        *(X, OFFSET, WEIGHT, MASK, GRAD_Y, GRAD_OFFSET, GRAD_MASK),
        *(*SIZES, STRIP_WIDTH, _TAPS_PER_BLOCK),
    ),
    plan=backward_offset_plan,
    check=check,
    grid=_grid,
    entry=entry("backward_offset"),
    body=_backward_offset,
)
