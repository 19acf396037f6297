"""What a launch of each kernel does, for `ptx.model`: from its plan, its grid and its SASS."""

from __future__ import annotations

import math

import numpy as np

from ptx.kernel import Instance
from ptx.kernels.deform_conv.backward_weight import backward_weight_parts
from ptx.kernels.deform_conv.catalog import IMAGES, NETWORKS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.corners import CornerTable, PixelRows
from ptx.kernels.deform_conv.forward import FORWARD
from ptx.kernels.deform_conv.parameters import output_pixels
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.layer_model import LayerModel
from ptx.launch import Launch
from ptx.model import L1_BYTES, BlockWork, Image
from ptx.tile.direct import DirectPlan

__all__ = ["LAYERS", "MODELLED", "floor_us", "launch", "work"]

MODELLED = ("forward", "backward_offset", "backward_input", "backward_weight")

# Layers of networks, and the images that times are modelled for.
LAYERS = {name: (config, IMAGES[name]) for name, config in NETWORKS.items()}

_NARROW_L1 = 1.3  # each lane loads positions of its own, from scattered places


def _block(name: str, instance: Instance, launch: Launch) -> BlockWork:
    if name == "forward":
        return _forward(instance)
    if name == "backward_weight":
        return _backward_weight(instance)
    return _backward_data(name, instance, launch)


def _forward(instance: Instance) -> BlockWork:
    config, plan, images = instance.config, _modelled(instance.plan), _images(instance)
    sizes = instance.sizes
    strip_width = PixelRows.strip_width(sizes["n"], sizes["p"], sizes["q"], plan.m)
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
        rare_share=_border_share(config, images, 8, strip_width),
    )


def _backward_data(name: str, instance: Instance, launch: Launch) -> BlockWork:
    config, plan = instance.config, _modelled(instance.plan)
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


def _backward_weight(instance: Instance) -> BlockWork:
    config, plan, images = instance.config, _modelled(instance.plan), _images(instance)
    pixels = output_pixels(instance.sizes) / instance.sizes["s"]  # of a part, in the mean
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


def _modelled(plan: SamplePlan | DirectPlan) -> SamplePlan:
    if isinstance(plan, DirectPlan) or plan.corners == "samples":
        raise ValueError(f"modelled are tables of corners and positions, this plan has {plan}")
    return plan


def _images(instance: Instance) -> Image:
    return instance.sizes["n"], instance.sizes["h"], instance.sizes["w"]


def _step_l1(config: DeformConvConfig, plan: SamplePlan, *, gathered: bool) -> int:
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


def _table_reads(config: DeformConvConfig, plan: SamplePlan, loads: int) -> int:
    """Bytes of `loads` of the table for each 16 bytes of A: a cycle each, for a warp."""
    return plan.m * plan.k * config.float_type.bytes // (16 * 32) * loads * L1_BYTES


def _fill_l1(config: DeformConvConfig, samples: float) -> float:
    """Bytes of the samples' offsets and masks, a cache line at a time, and of the table."""
    offset = (config.offset_type or config.float_type).bytes * config.offset_channels
    mask = (config.mask_type or config.float_type).bytes * config.mask_channels
    pitches = [offset, mask] if config.use_modulation else [offset]
    lines = sum(min(32.0, 32 * pitch / L1_BYTES) for pitch in pitches)  # of a warp
    return samples * (lines * L1_BYTES / 32 + 21)


def _additions(name: str, instance: Instance) -> float:
    """Atomic ones: to four corners of each sample, four channels at once where there are such."""
    if name != "backward_input":
        return 0.0
    config, together = instance.config, 4 if instance.target.supports("sm_90") else 1
    return 4 * output_pixels(instance.sizes) * config.taps * config.in_channels / together


def _border_share(
    config: DeformConvConfig,
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


_MODEL = LayerModel(
    prefix="deform_conv_",
    kernels=MODELLED,
    forward=FORWARD,
    parts=backward_weight_parts,
    block=_block,
    additions=_additions,
)
launch, work, floor_us = _MODEL.launch, _MODEL.work, _MODEL.floor_us
