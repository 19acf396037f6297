"""Backward to input, and to offset and mask: grad_y @ weights^T, and what is made of it."""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.deform_conv.backward_data_streamed import (
    streamed_backward_input,
    streamed_backward_offset,
    taps_per_block,
)
from ptx.kernels.deform_conv.backward_data_tiled import tiled_backward_input, tiled_backward_offset
from ptx.kernels.deform_conv.config import DeformableConvConfig
from ptx.kernels.deform_conv.corners import PixelRows
from ptx.kernels.deform_conv.direct import backward_offset_plan, segmented_plan
from ptx.kernels.deform_conv.direct_backward_data import (
    direct_backward_input,
    direct_backward_offset,
)
from ptx.kernels.deform_conv.gradients import OffsetGradients
from ptx.kernels.deform_conv.plan import THREADS, backward_data_plan, is_direct
from ptx.kernels.deform_conv.sampling import Offsets
from ptx.kernels.limits import check_grid, check_sizes
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.pixels import Geometry
from ptx.tile.stream import StreamedTile
from ptx.tile.vectors import accumulator_of

__all__ = [
    "backward_data_dynamic_shared",
    "backward_input_launch",
    "backward_offset_launch",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
]


def generate_deformable_conv_backward_offset_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to offset and mask.

    Parameters: input [N, H, W, C], offset, mask if there is one, weight [T, C/G, Co], grad_output
    [N, P, Q, Co], grad_offset, grad_mask if there is a mask, and the u32 batch_size, in_h, in_w,
    out_h, out_w, and where the plan is streamed strip_width and taps_per_block. A block has some
    pixels (grid x) of one offset group (grid y), or of a tile of channels where offset groups are
    narrow, and writes each gradient once. Tiny groups have the grid of
    `direct.backward_offset_plan`, all in x.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    k, plan = _kernel("offset", config, target)
    dtype = config.float_type
    x = k.pointer("input", dtype, readonly=True)
    offset, mask = Offsets.declare(k, config)
    weight = k.pointer("weight", dtype, readonly=True)
    grad_y = k.pointer("grad_output", dtype, readonly=True)
    gradients = OffsetGradients.declare(k, config)
    offsets = Offsets(k, config, Geometry.declare(k), offset, mask)
    if is_direct(config):
        direct_backward_offset(k, config, x, weight, grad_y, offsets, gradients)
        return k.text()
    write = streamed_backward_offset if plan.streamed else tiled_backward_offset
    write(k, config, plan, x, weight, grad_y, offsets, gradients)
    return k.text()


def generate_deformable_conv_backward_input_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the input, which is added to what grad_input holds.

    Parameters: offset, mask if there is one, weight [T, C/G, Co], grad_output [N, P, Q, Co],
    grad_input [N, H, W, C] in f32 (f64 for f64), and the u32 batch_size, in_h, in_w, out_h, out_w,
    and where the plan is streamed strip_width and taps_per_block. The grid is that of the gradient
    to the offset, for tiny groups that of `direct.segmented_plan`. The order of the
    additions is not fixed.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    k, plan = _kernel("input", config, target)
    dtype = config.float_type
    offset, mask = Offsets.declare(k, config)
    weight = k.pointer("weight", dtype, readonly=True)
    grad_y = k.pointer("grad_output", dtype, readonly=True)
    grad_x = k.pointer("grad_input", accumulator_of(dtype))
    offsets = Offsets(k, config, Geometry.declare(k), offset, mask)
    if is_direct(config):
        direct_backward_input(k, config, weight, grad_y, offsets, grad_x)
        return k.text()
    write = streamed_backward_input if plan.streamed else tiled_backward_input
    write(k, config, plan, weight, grad_y, offsets, grad_x)
    return k.text()


def backward_offset_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for x, offset, weight, mask, grad_y, grad_offset and grad_mask.

    Raises:
      ValueError: sizes beyond what kernels can count; see `limits`.
    """
    mask = ["mask"] * config.use_modulation
    names = ["x", "offset", "weight", *mask, "grad_y", "grad_offset"]
    order = ["x", "offset", *mask, "weight", "grad_y", "grad_offset"]
    grad_mask = ["grad_mask"] * config.use_modulation
    names, order = [*names, *grad_mask], [*order, *grad_mask]
    return _launch(config, target, shapes, names, order, shapes[0])


def backward_input_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for offset, weight, mask, grad_y, zeros and grad_x, which share memory.

    Raises:
      ValueError: sizes beyond what kernels can count; see `limits`.
    """
    mask = ["mask"] * config.use_modulation
    names = ["offset", "weight", *mask, "grad_y", "zeros", "grad_x"]
    order = ["offset", *mask, "weight", "grad_y", "grad_x"]
    return _launch(config, target, shapes, names, order, shapes[-1])


def backward_data_dynamic_shared(config: DeformableConvConfig, target: Target) -> int:
    """Bytes of dynamic shared memory, of either kernel."""
    plan = backward_data_plan(config, target)
    return StreamedTile.shared_bytes(plan.n, plan.stages) if plan.streamed else 0


def _kernel(what: str, config: DeformableConvConfig, target: Target | str):
    """An empty kernel, and its plan."""
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    name = f"deformable_conv_backward_{what}_{config.float_type}"
    name += f"_{config.kernel_h}x{config.kernel_w}"
    return Kernel(name, target, block=THREADS, min_blocks=2), backward_data_plan(config, target)


def _launch(
    config: DeformableConvConfig,
    target: Target,
    shapes: Shapes,
    names: list[str],
    order: list[str],
    image: tuple[int, ...],
) -> Launch:
    plan = backward_data_plan(config, target)
    images, out_h, out_w, _ = shapes[names.index("grad_y")]
    table = plan.corners == "table"
    check_sizes(config, images, (image[1], image[2]), (out_h, out_w), table=table)
    numbers = [images, image[1], image[2], out_h, out_w]
    grid = (-(-images * out_h * out_w // plan.m), config.offset_groups, 1)
    if plan.streamed:
        strip = PixelRows.strip_width(images, out_h, out_w, plan.m)
        blocks = PixelRows.blocks(images, out_h, out_w, plan.m, strip)
        groups = config.offset_groups
        if plan.narrow:
            groups = config.groups * -(-config.in_channels_per_group // plan.n)
        taps = taps_per_block(config, plan, blocks * groups)
        grid = (blocks, groups, -(-config.taps // taps))
        numbers += [strip, taps]
    if is_direct(config):
        direct = backward_offset_plan if "grad_offset" in names else segmented_plan
        grid = (direct(config).blocks(images * out_h * out_w), 1, 1)
    check_grid(grid)
    arguments = [*(Address(names.index(n)) for n in order), *(np.uint32(n) for n in numbers)]
    return Launch(grid, (THREADS, 1, 1), tuple(arguments))
