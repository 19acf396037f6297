"""Backward to the weights without tiles: threads keep sums over strips of pixels."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s32, u32, u64
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.common import (
    PIXELS,
    PixelRow,
    TapLine,
    direct_weight_plan,
    outputs_of,
    products_of,
    strips_of,
)
from ptx.tile.direct import DirectPlan, DirectThread, add_product, add_up
from ptx.tile.pixels import Geometry, PixelWalk, pixel_index
from ptx.tile.vectors import accumulator_of, load_elements

__all__ = ["direct_backward_weight", "direct_weight_blocks", "direct_weight_tile"]

_SUM_REGISTERS = 56  # of a thread: seven taps of eight channels


def direct_weight_blocks(config: ConvConfig) -> int:
    """The number of blocks of one part, over channels and taps, which are all in x."""
    spans = -(-config.kernel_w // _span(config))
    return direct_weight_plan(config).chunks * config.kernel_h * spans


def direct_weight_tile(config: ConvConfig, plan: DirectPlan) -> tuple[int, int, int]:
    """The rows and columns of the weights, and the pixels, that a block has at a time."""
    m = _span(config) * config.in_channels_per_group
    return m, plan.across * outputs_of(config, plan), plan.down * PIXELS


def direct_backward_weight(k: Kernel, config: ConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the kernel, whose grid is all in x.

    A block has some channels and some taps of one row of the kernel. Each thread goes through
    every `plan.down`-th strip of the part; then the block adds up its threads' sums, always in the
    same order.
    """
    in_group, outputs, taps = config.in_channels_per_group, outputs_of(config, plan), _span(config)
    sizes = Geometry.of(p)

    thread = DirectThread(k, plan)
    spans = -(-config.kernel_w // taps)
    of_part = config.kernel_h * spans
    span_index, part = thread.block % of_part, thread.block // of_part
    tap_y, tap_x = span_index // spans, span_index % spans * taps
    channel, first_out = thread.unit * plan.channels, thread.unit * outputs
    strips = strips_of(sizes, sizes.out_h, sizes.out_w)
    first_strip = part * p.strips_per_part
    end_strip = k.min(first_strip + p.strips_per_part, strips.pixels)
    k.name(part=part, channel=channel, first_out=first_out, first_strip=first_strip)

    down = k.bitcast(tap_y * config.dilation_h, s32) - config.pad_h
    right = k.bitcast(tap_x * config.dilation_w, s32) - config.pad_w
    line, products = TapLine(taps, config.stride_w, config.dilation_w), products_of(config, plan)
    sums = [
        [k.var(p.grad_weight_parts.dtype, 0.0) for _ in range(in_group * outputs)]
        for _ in range(taps)
    ]
    image = p.x + channel

    def row_of(strip: PixelWalk) -> PixelRow:
        """The row of the images that the taps of a strip read."""
        y = k.bitcast(strip.y * config.stride_h, s32) + down
        x = k.bitcast(strip.x * (PIXELS * config.stride_w), s32) + right
        pixel = pixel_index(strip.image, y, x, sizes.in_h, sizes.in_w)
        address = image + k.mul_wide(pixel, config.in_channels)
        row_ok = k.bitcast(y, u32) < sizes.in_h
        return PixelRow(address, x, sizes.in_w, row_ok, config.in_channels, plan.channels)

    with k.if_(thread.unit_ok & (first_strip + thread.row < end_strip)):
        walk = PixelWalk(k, strips, first_strip + thread.row, plan.down)
        with k.loop(first_strip + thread.row, end_strip, plan.down, name="strip", unroll=False):
            row = row_of(walk)
            gradients = _gradients(config, sizes, p.grad_y + first_out, walk, outputs)
            for column, readers in line.columns():
                values = row.load(column)
                for pixel, tap in readers:
                    gradient, where = gradients[pixel]
                    for i, o, product in products:
                        add_product(sums[tap][product], values[i], gradient[o], where)
            walk.advance()

    row_of_taps = part * config.taps + tap_y * config.kernel_w

    def write(unit: Val, element: Val, total: Val) -> None:
        tap = tap_x + element // (in_group * outputs)
        i, out = element // outputs % in_group, unit * outputs + element % outputs
        row = (row_of_taps + tap) * in_group + i
        where = unit < plan.units
        if config.kernel_w % taps:
            where = where & (tap < config.kernel_w)
        at = k.mad_wide(row, config.out_channels, k.convert(out, u64))
        (p.grad_weight_parts + at).store(0, total, where=where)

    add_up(k, plan, thread, [total for of_tap in sums for total in of_tap], write)


def _gradients(
    config: ConvConfig, sizes: Geometry, grad_y: Pointer, strip: PixelWalk, outputs: int
) -> list[tuple[list[Val], Val]]:
    """The gradients of each pixel of a strip, and whether the pixel exists."""
    k, first = strip.k, strip.x * PIXELS
    pixel = pixel_index(strip.image, strip.y, first, sizes.out_h, sizes.out_w)
    address = grad_y + k.mul_wide(pixel, config.out_channels)
    pixel_ok = [first + index < sizes.out_w for index in range(PIXELS)]
    return [
        (load_elements(address + index * config.out_channels, outputs, where=where), where)
        for index, where in enumerate(pixel_ok)
    ]


def _span(config: ConvConfig) -> int:
    """The taps of a block, of one row of the kernel, whose sums fit a thread's registers."""
    each = config.in_channels_per_group * outputs_of(config, direct_weight_plan(config))
    registers = each * accumulator_of(config.float_type).bytes // 4
    spans = -(-config.kernel_w * registers // _SUM_REGISTERS)
    return -(-config.kernel_w // spans)
