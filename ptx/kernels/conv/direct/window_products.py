"""Forward, and backward to input, without tiles: a thread sums for a strip of pixels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32, u32
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.common import (
    PIXELS,
    PixelRow,
    TapLine,
    TapWeights,
    outputs_of,
    products_of,
    strips_of,
)
from ptx.kernels.conv.strides import chosen, stride_classes
from ptx.tile.direct import DirectPlan, DirectThread
from ptx.tile.pixels import Geometry, pixel_index
from ptx.tile.vectors import accumulator_of, load_elements, store_elements

__all__ = ["direct_backward_input", "direct_forward"]


def direct_forward(k: Kernel, config: ConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the kernel forward, whose grid is all in x."""
    outputs = outputs_of(config, plan)
    sizes = Geometry.of(p)
    thread = DirectThread(k, plan)
    strip = thread.pixel(strips_of(sizes, sizes.out_h, sizes.out_w), plan)
    first_column = strip.x * PIXELS
    channel, first_out = thread.unit * plan.channels, thread.unit * outputs
    k.name(channel=channel, first_out=first_out)
    k.comment("sums")
    biases: Sequence[Val | float] = [0.0] * outputs
    if config.use_bias:
        biases = load_elements(p.bias + first_out, outputs, where=strip.exists)
    accumulator = accumulator_of(config.float_type)
    sums = [[k.var(accumulator, bias) for bias in biases] for _ in range(PIXELS)]

    row = k.var(s32, k.bitcast(strip.y * config.stride_h, s32) - config.pad_h, "row")
    column = k.bitcast(first_column * config.stride_w, s32) - config.pad_w
    start = pixel_index(strip.image, row, column, sizes.in_h, sizes.in_w)  # may lie outside
    address = (p.x + channel + k.mul_wide(start, config.in_channels)).variable()
    taps = (p.weight + first_out).variable()
    line = TapLine(config.kernel_w, config.stride_w, config.dilation_w)
    products = products_of(config, plan)
    pitch = k.mul_wide(sizes.in_w, config.dilation_h * config.in_channels)
    with k.loop(config.kernel_h, name="tap_y", unroll=False):
        row_ok = strip.exists & (k.bitcast(row, u32) < sizes.in_h)
        pixels = PixelRow(address, column, sizes.in_w, row_ok, config.in_channels, plan.channels)
        line.multiply(k, pixels, TapWeights.of(config, plan, taps), products, sums)
        row += config.dilation_h
        address.advance(pitch)
        taps.advance(config.kernel_w * config.in_channels_per_group * config.out_channels)

    k.comment("the output")
    pixel = pixel_index(strip.image, strip.y, first_column, sizes.out_h, sizes.out_w)
    result = p.y + first_out + k.mul_wide(pixel, config.out_channels)
    for index, values in enumerate(sums):
        where = strip.exists & (first_column + index < sizes.out_w)
        store_elements(result + index * config.out_channels, values, where=where)


def direct_backward_input(k: Kernel, config: ConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the kernel backward to input, whose grid is all in x.

    Blocks of all classes of the same pixels follow each other: they read the same gradients, and
    write to the same rows.
    """
    outputs = outputs_of(config, plan)
    sizes = Geometry.of(p)

    stride_h, stride_w = config.stride_h, config.stride_w
    classes_y = stride_classes(config.kernel_h, stride_h, config.dilation_h, config.pad_h)
    classes_x = stride_classes(config.kernel_w, stride_w, config.dilation_w, config.pad_w)
    stride_class = k.ctaid("x") % (stride_h * stride_w)
    blocks = k.ctaid("x") // (stride_h * stride_w)
    class_y, class_x = stride_class // stride_w, stride_class % stride_w
    k.comment("the class of the rows: their taps, the outputs that read them")
    first_y = chosen(k, class_y, [c.first for c in classes_y])
    tap_y = chosen(k, class_y, [c.tap for c in classes_y])
    count = chosen(k, class_y, [c.taps for c in classes_y])
    start_y = chosen(k, class_y, [c.start & 0xFFFFFFFF for c in classes_y])
    first_x = chosen(k, class_x, [c.first for c in classes_x])

    thread = DirectThread(k, plan, blocks)
    height = (sizes.in_h + (stride_h - 1)) // stride_h  # of the largest class
    width = (sizes.in_w + (stride_w - 1)) // stride_w
    strip = thread.pixel(strips_of(sizes, height, width), plan)
    first_column = strip.x * PIXELS  # of those of the class
    y = strip.y * stride_h + first_y
    row_ok = strip.exists & (y < sizes.in_h)
    channel, first_out = thread.unit * plan.channels, thread.unit * outputs
    k.name(channel=channel, first_out=first_out)

    row = k.var(s32, k.bitcast(strip.y + start_y, s32), "row")
    column = k.bitcast(first_column, s32)
    start = pixel_index(strip.image, row, column, sizes.out_h, sizes.out_w)  # may lie outside
    address = (p.grad_y + first_out + k.mul_wide(start, config.out_channels)).variable()
    tap_weights = config.in_channels_per_group * config.out_channels  # of a tap
    taps = (p.weight + first_out + k.mul_wide(tap_y, config.kernel_w * tap_weights)).variable()
    sums = [
        [k.var(accumulator_of(config.float_type), 0.0) for _ in range(plan.channels)]
        for _ in range(PIXELS)
    ]
    products = [(o, i, weight) for i, o, weight in products_of(config, plan)]
    up, step = classes_y[0].output_step, classes_y[0].step
    pitch = k.mul_wide(k.bitcast(sizes.out_w, s32), -up * config.out_channels)
    with k.loop(count, name="tap_y", unroll=False):
        inside = row_ok & (k.bitcast(row, u32) < sizes.out_h)
        pixels = PixelRow(address, column, sizes.out_w, inside, config.out_channels, outputs)
        for index, c in enumerate(classes_x):
            line = TapLine(c.taps, 1, -c.output_step, c.start)
            weights = TapWeights.of(config, plan, taps + c.tap * tap_weights, c.step)
            with k.if_(class_x.eq(index)) if stride_w > 1 else contextlib.nullcontext():
                line.multiply(k, pixels, weights, products, sums)
        row -= up
        address.advance(pitch)
        taps.advance(step * config.kernel_w * tap_weights)

    k.comment("the gradient")
    first = first_column * stride_w + first_x
    pixel = pixel_index(strip.image, y, first, sizes.in_h, sizes.in_w)
    result = p.grad_x + channel + k.mul_wide(pixel, config.in_channels)
    for index, values in enumerate(sums):
        where = row_ok & ((first_column + index) * stride_w + first_x < sizes.in_w)
        store_elements(result + index * stride_w * config.in_channels, values, where=where)
