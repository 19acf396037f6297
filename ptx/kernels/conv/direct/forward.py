"""Forward without tiles, for tiny groups: a thread has a strip's outputs of whole groups."""

from __future__ import annotations

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
from ptx.tile.direct import DirectPlan, DirectThread
from ptx.tile.pixels import Geometry, pixel_index
from ptx.tile.vectors import accumulator_of, load_elements, store_elements

__all__ = ["direct_forward"]


def direct_forward(k: Kernel, config: ConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the kernel. The grid is all in x."""
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
