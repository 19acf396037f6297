"""What a launch of each kernel does, for `ptx.model`: from its plan, its grid and its SASS."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ptx.isa.targets import Target
from ptx.kernels.deform_conv.backward_weight import backward_weight_parts
from ptx.kernels.deform_conv.catalog import IMAGES, NETWORKS
from ptx.kernels.deform_conv.config import DeformableConvConfig
from ptx.kernels.deform_conv.corners import CornerTable, PixelRows
from ptx.kernels.deform_conv.plan import (
    SamplePlan,
    backward_data_plan,
    backward_weight_plan,
    forward_plan,
    is_small_grid,
)
from ptx.launch import Launch
from ptx.model import (
    L1_BYTES,
    BlockWork,
    Device,
    Image,
    Work,
    floor,
    launch_work,
    tensor_core_atom,
)
from ptx.registry import RegisteredKernel

__all__ = ["LAYERS", "MODELLED", "called", "floor_us", "work"]

MODELLED = ("forward", "backward_offset", "backward_input", "backward_weight")

# Layers of networks, and the images that times are modelled for.
LAYERS = {name: (config, IMAGES[name]) for name, config in NETWORKS.items()}

_NARROW_L1 = 1.3  # each lane loads positions of its own, from scattered places


def work(
    kernel: RegisteredKernel[DeformableConvConfig],
    config: DeformableConvConfig,
    target: Target,
    images: Image,
) -> Work:
    """What one launch does.

    Args:
      kernel: `deform_conv_forward` or another of `MODELLED`.
      config: one whose products run on tensor cores, with a table of corners or with positions.
      target: the GPU.
      images: number, height and width of the input.

    Raises:
      ValueError: another kernel or configuration, or SASS that does not multiply as often as the
        plan says: then this file no longer describes the kernel.
    """
    name = kernel.name.removeprefix("deform_conv_")
    if name not in MODELLED or kernel.launch is None:
        raise ValueError(f"modelled are {', '.join(MODELLED)}, not {kernel.name}")
    tensor_core_atom(kernel, config, target)
    config = called(name, config, images)
    shapes, sizes = _buffers(name, config, images)
    launch = kernel.launch(config, target, shapes)
    if name == "forward":
        block = _forward(config, target, images)
    elif name == "backward_weight":
        block = _backward_weight(config, target, images, shapes)
    else:
        block = _backward_data(name, config, target, launch)
    partial = name == "backward_weight"
    return launch_work(
        kernel,
        config,
        target,
        launch,
        block,
        memory_bytes=sum(math.prod(s) * b for s, b in zip(shapes, sizes, strict=True)),
        additions=_additions(config, target, images) if name == "backward_input" else 0.0,
        later_bytes=math.prod(shapes[-1]) * sizes[-1] if partial else 0.0,
    )


def called(name: str, config: DeformableConvConfig, images: Image) -> DeformableConvConfig:
    """The configuration that the lowering chooses for these images.

    Args:
      name: of the kernel, one of `MODELLED`.
      config: the convolution.
      images: number, height and width of the input.
    """
    if name != "forward":
        return config
    pixels = images[0] * math.prod(config.output_size(*images[1:]))
    return dataclasses.replace(config, small_grid=is_small_grid(config, pixels))


def floor_us(config: DeformableConvConfig, images: Image, device: Device) -> float:
    """Microseconds that no kernel of a layer can beat: see `ptx.model.floor`."""
    pixels = images[0] * math.prod(config.output_size(*images[1:]))
    products = pixels * config.taps * config.in_channels_per_group * config.out_channels
    # Backward, the same tensors are read and written, in other roles.
    shapes, sizes = _buffers("forward", config, images)
    memory = sum(math.prod(s) * b for s, b in zip(shapes, sizes, strict=True))
    return floor(products, memory, 2 / config.float_type.bytes, device)


def _forward(config: DeformableConvConfig, target: Target, images: Image) -> BlockWork:
    plan = forward_plan(config, target)
    _check(plan)
    in_group, run, taps = config.in_channels_per_group, config.segment, config.taps
    if plan.narrow:
        run = in_group
    else:
        taps = CornerTable.taps_that_fit(config, plan.m)
    segments, tables = in_group // run, -(-config.taps // taps)
    fillings = segments * tables
    steps = fillings * run // plan.k * taps
    fills = 0.0
    l1 = float(steps * _step_l1(config, plan, gathered=True))
    if plan.narrow:
        l1 *= _NARROW_L1
    else:
        fills = fillings * taps * plan.m / plan.threads
        l1 += steps * _table_reads(config, plan, 2)
        l1 += fillings * _fill_l1(config, taps * plan.m)
    return BlockWork(
        nest=[segments, tables, steps // fillings],
        fills=fills,
        products=float(plan.m * plan.n * plan.k * steps),
        l1_bytes=l1,
        rare_share=_border_share(
            config,
            images,
            8,
            PixelRows.strip_width(images[0], *config.output_size(*images[1:]), plan.m),
        ),
    )


def _backward_data(
    name: str, config: DeformableConvConfig, target: Target, launch: Launch
) -> BlockWork:
    plan = backward_data_plan(config, target)
    _check(plan)
    segments = tiles = 1
    if not plan.narrow:
        segments = config.channels_per_offset_group // config.segment
        tiles = -(-config.segment // plan.n)
    taps = config.taps / launch.grid[2]  # of a block, in the mean
    passes = taps * segments * tiles
    slices = config.out_channels_per_group // plan.k
    l1 = passes * slices * _step_l1(config, plan, gathered=False)
    # The corners of each sample: read in the type of the images, or added to in f32.
    width = config.float_type.bytes if name == "backward_offset" else 4
    l1 += passes * 4 * plan.m * plan.n * width
    fills = 0.0
    if plan.narrow:
        l1 *= _NARROW_L1
    else:
        fills = taps * plan.m / plan.threads
        l1 += passes * _table_reads(config, plan, 2 if name == "backward_offset" else 3)
        l1 += _fill_l1(config, taps * plan.m)
    return BlockWork(
        nest=[taps, segments, tiles, slices],
        fills=fills,
        products=plan.m * plan.n * plan.k * passes * slices,
        l1_bytes=l1,
    )


def _backward_weight(
    config: DeformableConvConfig,
    target: Target,
    images: Image,
    shapes: Sequence[tuple[int, ...]],
) -> BlockWork:
    plan = backward_weight_plan(config, target)
    _check(plan)
    pixels = math.prod(shapes[-2][:3]) / shapes[-1][0]  # of a part, in the mean
    steps = pixels / plan.k
    l1 = steps * _step_l1(config, plan, gathered=True)
    if plan.narrow:
        l1 *= _NARROW_L1
    else:
        l1 += steps * _table_reads(config, plan, 2)
        l1 += _fill_l1(config, pixels)
    lots = math.ceil(pixels / _SAMPLES)
    vectors = plan.m * config.float_type.bytes // 16  # of a pixel
    return BlockWork(
        nest=[lots, steps / lots],
        fills=pixels / plan.threads,
        products=plan.m * plan.n * pixels,
        l1_bytes=l1,
        rare_share=_border_share(config, images, max(1, 32 // vectors), None),
    )


_SAMPLES = 512  # pixels that the backward weight kernel looks at together


def _check(plan: SamplePlan) -> None:
    if plan.corners == "samples" and not plan.streamed:
        raise ValueError(f"modelled are tables of corners and positions, this plan has {plan}")


def _step_l1(config: DeformableConvConfig, plan: SamplePlan, *, gathered: bool) -> int:
    """Bytes of one step along K, but for the table's.

    Args:
      config: the convolution.
      plan: tiles.
      gathered: whether A is sampled, from four corners.
    """
    width = config.float_type.bytes
    a, b = plan.m * plan.k * width, plan.n * plan.k * width
    rows, columns = plan.warps
    # B is written and read by the warps of each row of warps; A likewise unless it is streamed.
    loaded = 4 * a if gathered else a
    return loaded + (0 if plan.streamed else a + columns * a) + b + rows * b


def _table_reads(config: DeformableConvConfig, plan: SamplePlan, loads: int) -> int:
    """Bytes of `loads` of the table for each 16 bytes of A: a cycle each, for a warp."""
    return plan.m * plan.k * config.float_type.bytes // (16 * 32) * loads * L1_BYTES


def _fill_l1(config: DeformableConvConfig, samples: float) -> float:
    """Bytes of the samples' offsets and masks, a cache line at a time, and of the table."""
    offset = (config.offset_type or config.float_type).bytes * config.offset_channels
    mask = (config.mask_type or config.float_type).bytes * config.mask_channels
    pitches = [offset, mask] if config.use_modulation else [offset]
    lines = sum(min(32.0, 32 * pitch / L1_BYTES) for pitch in pitches)  # of a warp
    return samples * (lines * L1_BYTES / 32 + 21)


def _additions(config: DeformableConvConfig, target: Target, images: Image) -> float:
    """Atomic ones: to four corners of each sample, four channels at once where there are such."""
    pixels = images[0] * math.prod(config.output_size(*images[1:]))
    return 4 * pixels * config.taps * config.in_channels / (4 if target.supports("sm_90") else 1)


def _border_share(
    config: DeformableConvConfig,
    images: Image,
    together: int,
    strip_width: int | None,
) -> float:
    """How often a vote finds a corner outside, where offsets are below 1.

    Args:
      config: the convolution.
      images: number, height and width.
      together: pixels of a warp that vote, neighbours in a strip.
      strip_width: None for whole rows.
    """
    number, in_h, in_w = images
    out_h, out_w = config.output_size(in_h, in_w)
    width, lines = strip_width or out_w, np.arange(number * out_h) % out_h
    outside = total = 0
    for first in range(0, out_w, width):
        columns = np.arange(first, min(first + width, out_w))
        y = np.repeat(lines, columns.size) * config.stride_h - config.pad_h
        x = np.tile(columns, lines.size) * config.stride_w - config.pad_w
        whole = y.size // together * together
        y, x = (v[:whole].reshape(-1, together) for v in (y, x))
        for tap in range(config.taps):
            top = y + tap // config.kernel_w * config.dilation_h
            left = x + tap % config.kernel_w * config.dilation_w
            out = (top < 0) | (top + 1 >= in_h) | (left < 0) | (left + 1 >= in_w)
            outside += int(out.any(axis=1).sum())
            total += len(out)
    return outside / total if total else 0.0


def _buffers(
    name: str, config: DeformableConvConfig, images: Image
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Shapes of the operands and results, as `launch` takes them, and bytes of an element."""
    number, in_h, in_w = images
    out = (number, *config.output_size(in_h, in_w))
    width = config.float_type.bytes
    wide = max(4, width)
    offset_width = (config.offset_type or config.float_type).bytes
    mask_width = (config.mask_type or config.float_type).bytes
    x = ((*images, config.in_channels), width)
    y = ((*out, config.out_channels), width)
    total = ((*images, config.in_channels), wide)
    offset = ((*out, config.offset_channels), offset_width)
    mask = [((*out, config.mask_channels), mask_width)] * config.use_modulation
    kernel = (config.kernel_h, config.kernel_w, config.in_channels_per_group, config.out_channels)
    weight = (kernel, width)
    if name == "forward":
        bias = [((config.out_channels,), width)] * config.use_bias
        buffers = [x, offset, weight, *mask, *bias, y]
    elif name == "backward_offset":
        buffers = [x, offset, weight, *mask, y, offset, *mask]
    elif name == "backward_input":
        buffers = [offset, weight, *mask, y, total, total]
    else:
        parts = backward_weight_parts(config, math.prod(out))
        buffers = [x, offset, *mask, y, ((parts, *kernel), wide)]
    return [shape for shape, _ in buffers], [size for _, size in buffers]
