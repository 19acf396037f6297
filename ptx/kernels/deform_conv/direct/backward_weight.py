"""Backward to the weights without tiles, for tiny groups: threads keep sums over pixels."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.common import Corners, OutputsOfChannels
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.tile.direct import DirectPlan, DirectThread, add_up
from ptx.tile.pixels import PixelWalk
from ptx.tile.vectors import accumulator_of

__all__ = ["direct_backward_weight"]


def direct_backward_weight(k: Kernel, config: DeformConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the whole kernel; the plan is a `segmented_plan`.

    A block has some channels and one tap; those of each part follow each other in x. Each thread
    goes through every `plan.down`-th pixel of the part; then the block adds up its threads' sums,
    always in the same order.
    """
    offsets, thread = Offsets.of(k, config, p), DirectThread(k, plan)
    sizes = offsets.geometry
    tap, part = thread.block % config.taps, thread.block // config.taps
    channel = thread.unit * plan.channels
    group = channel // config.channels_per_offset_group
    first_pixel = part * p.pixels_per_part
    end_pixel = k.min(first_pixel + p.pixels_per_part, sizes.pixels)
    k.name(tap=tap, part=part, channel=channel, first_pixel=first_pixel)

    outputs = OutputsOfChannels(k, config, channel, plan.channels)
    corners = Corners(offsets, p.x + channel)
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    sum_type = accumulator_of(config.float_type)
    pairs = outputs.of_channels()
    sums = [[k.var(sum_type, 0.0) for _ in channel_pairs] for channel_pairs in pairs]
    with k.if_(first_pixel < end_pixel):
        walk = PixelWalk(k, sizes, first_pixel + thread.row, plan.down)
        with k.loop(first_pixel, end_pixel, plan.down, name="pixels", unroll=False):
            pixel_ok = thread.unit_ok & (walk.index < end_pixel)
            pixel = walk.pixel(pixel_ok)
            position = offsets.position(pixel, group, tap, pixel_ok)
            values = corners.sample(pixel, position, plan.channels, pixel_ok)
            grads = outputs.load(p.grad_y, pixel.index, pixel_ok)
            k.comment("add to the products' sums")
            for value, channel_pairs, totals in zip(values, pairs, sums, strict=True):
                for (index, output), total in zip(channel_pairs, totals, strict=True):
                    total.set(k.fma(value, grads[index][output], total))
            walk.advance()
    row_of_taps = part * config.taps + tap

    def write(unit: Val, element: Val, total: Val) -> None:
        channel = unit * plan.channels + element // out_group
        row = row_of_taps * in_group + channel % in_group
        out = channel // in_group * out_group + element % out_group
        at = k.mad_wide(row, config.out_channels, k.convert(out, u64))
        (p.partial + at).store(0, total, where=unit < plan.units)

    add_up(k, plan, thread, [total for totals in sums for total in totals], write)
