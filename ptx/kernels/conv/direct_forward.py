"""Forward without tiles, for tiny groups: a thread has a strip's outputs of whole groups."""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32, u32
from ptx.isa.targets import Target
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct import (
    PIXELS,
    PixelRow,
    TapLine,
    Weights,
    blocks_per_sm,
    direct_plan,
    outputs_of,
    products_of,
    strip_count,
    strips_of,
)
from ptx.kernels.limits import check_grid
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.direct import THREADS, DirectThread
from ptx.tile.pixels import Geometry, pixel_index
from ptx.tile.vectors import load_elements, store_elements

__all__ = ["direct_forward", "direct_forward_launch"]


def direct_forward(config: ConvConfig, target: Target) -> str:
    """The PTX; see `generate_conv_forward_ptx`."""
    plan, dtype = direct_plan(config), config.float_type
    outputs = outputs_of(config, plan)
    m, n = plan.down * PIXELS, plan.across * outputs
    name = f"implicit_gemm_conv_{m}x{n}x{config.taps * config.in_channels_per_group}_{dtype}"
    k = Kernel(name, target, block=THREADS, min_blocks=blocks_per_sm(config))
    x = k.pointer("input", dtype, readonly=True)
    weight = k.pointer("weight", dtype, readonly=True)
    bias = k.pointer("bias", dtype, readonly=True)
    y = k.pointer("output", dtype)
    sizes = Geometry.declare(k)

    thread = DirectThread(k, plan)
    strip = thread.pixel(strips_of(sizes, sizes.out_h, sizes.out_w), plan)
    first_column = strip.x * PIXELS
    channel, first_out = thread.unit * plan.channels, thread.unit * outputs
    k.name(channel=channel, first_out=first_out)
    k.comment("sums start from the bias, unless it is null")
    assert isinstance(bias.base, Val)
    given = strip.there & bias.base.ne(0)
    biases = load_elements(bias + first_out, outputs, where=given)
    sums = [[k.var(value.dtype, value) for value in biases] for _ in range(PIXELS)]

    row = k.var(s32, k.bitcast(strip.y * config.stride_h, s32) - config.pad_h, "row")
    column = k.bitcast(first_column * config.stride_w, s32) - config.pad_w
    start = pixel_index(strip.image, row, column, sizes.in_h, sizes.in_w)  # it may be outside
    place = (x + channel + k.mul_wide(start, config.in_channels)).variable()
    taps = (weight + first_out).variable()
    line = TapLine(config.kernel_w, config.stride_w, config.dilation_w)
    products = products_of(config, plan)
    pitch = k.mul_wide(sizes.in_w, config.dilation_h * config.in_channels)
    with k.loop(config.kernel_h, name="tap_y", unroll=False):
        there = strip.there & (k.bitcast(row, u32) < sizes.in_h)
        pixels = PixelRow(place, column, sizes.in_w, there, config.in_channels, plan.channels)
        line.multiply(k, pixels, Weights.of(config, plan, taps), products, sums)
        row += config.dilation_h
        place.advance(pitch)
        taps.advance(config.kernel_w * config.in_channels_per_group * config.out_channels)

    k.comment("the output")
    pixel = pixel_index(strip.image, strip.y, first_column, sizes.out_h, sizes.out_w)
    result = y + first_out + k.mul_wide(pixel, config.out_channels)
    for number, values in enumerate(sums):
        where = strip.there & (first_column + number < sizes.out_w)
        store_elements(result + number * config.out_channels, values, where=where)
    return k.text()


def direct_forward_launch(config: ConvConfig, shapes: Shapes) -> Launch:
    """The launch; see `forward_launch`."""
    (images, in_h, in_w, _), (_, out_h, out_w, _) = shapes[0], shapes[-1]
    bias = Address(2) if len(shapes) == 4 else np.uint64(0)
    numbers = (np.uint32(size) for size in (images, in_h, in_w, out_h, out_w))
    grid = (direct_plan(config).blocks(strip_count(images, out_h, out_w)), 1, 1)
    check_grid(grid)
    arguments = (Address(0), Address(1), bias, Address(len(shapes) - 1), *numbers)
    return Launch(grid, (THREADS, 1, 1), arguments)
