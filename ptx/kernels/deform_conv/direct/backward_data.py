"""Backward to input, and to offset and mask, without tiles, for tiny groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import f32
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.common import Corners, OutputsOfChannels, inside_of, weights_of
from ptx.kernels.deform_conv.samples.gradients import store_gradients
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.tile.direct import DirectPlan, DirectThread
from ptx.tile.vectors import accumulator_of, add_weighted, any_infinite, vector_width

__all__ = ["direct_backward_input", "direct_backward_offset"]


def direct_backward_offset(k: Kernel, config: DeformConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the gradients to offset and mask; the plan is a `shuffled_plan`.

    Some neighbouring threads have an offset group of a pixel. Each adds up the dots of its own
    channels; then they add up theirs, always in the same order.
    """
    offsets, thread = Offsets.of(k, config, p), DirectThread(k, plan)
    pixel = thread.pixel(offsets.geometry, plan)
    group, channels = thread.unit, plan.channels
    vectors = config.channels_per_offset_group // channels
    first_channel = group * config.channels_per_offset_group
    k.name(group=group)

    def operands(vector: Val) -> tuple[OutputsOfChannels, Sequence[Sequence[Val]], Corners, Val]:
        """A vector's outputs, their gradients, its corners, and whether there is such a vector."""
        vector_ok = pixel.exists
        if vectors % plan.lanes:
            vector_ok, vector = vector_ok & (vector < vectors), k.min(vector, vectors - 1)
        channel = first_channel + vector * channels
        outputs = OutputsOfChannels(k, config, channel, channels)
        grads = outputs.load(p.grad_y, pixel.index, vector_ok)
        return outputs, grads, Corners(offsets, p.x + channel), vector_ok

    only = operands(thread.lane) if vectors <= plan.lanes else None
    with k.loop(config.taps, name="tap", unroll=False) as tap:
        position = offsets.position(pixel, group, tap, pixel.exists)
        dots = [k.var(accumulator_of(config.float_type), 0.0) for _ in range(4)]

        def add(
            outputs: OutputsOfChannels,
            grads: Sequence[Sequence[Val]],
            corners: Corners,
            vector_ok: Val,
        ) -> None:
            k.comment("the dots of gcol with the four corners")
            gcol = outputs.weighted(p.weight, tap, grads)
            loaded = corners.load(pixel, position, channels, vector_ok)
            for dot, corner in zip(dots, loaded, strict=True):
                for value, element in zip(gcol, corner, strict=True):
                    dot.set(k.fma(value, element, dot))

        if only is not None:
            add(*only)
        else:
            with k.loop(0, vectors, plan.lanes, name="vector") as first:
                add(*operands(first + thread.lane))
        mask = 1
        while mask < plan.lanes:
            for dot in dots:
                dot += k.shuffle("bfly", dot, mask)
            mask *= 2
        writer = pixel.exists & thread.lane.eq(0) if plan.lanes > 1 else pixel.exists
        store_gradients(p, position.index, dots, position, writer)


def direct_backward_input(k: Kernel, config: DeformConvConfig, plan: DirectPlan, p: Any) -> None:
    """Adds gcol to the four corners of each sample; the plan is a `segmented_plan`."""
    offsets, thread = Offsets.of(k, config, p), DirectThread(k, plan)
    pixel = thread.pixel(offsets.geometry, plan)
    channel = thread.unit * plan.channels
    group = channel // config.channels_per_offset_group
    k.name(channel=channel, group=group)
    outputs = OutputsOfChannels(k, config, channel, plan.channels)
    grads = outputs.load(p.grad_y, pixel.index, pixel.exists)
    corners = Corners(offsets, p.grad_x + channel)
    step = 1
    if p.grad_x.dtype is f32 and k.target.supports("sm_90"):
        step = vector_width(f32, plan.channels)
    with k.loop(config.taps, name="tap", unroll=False) as tap:
        position = offsets.position(pixel, group, tap, pixel.exists)
        gcol = outputs.weighted(p.weight, tap, grads)
        k.comment("add gcol to the four corners")
        infinite = any_infinite(gcol)
        for address, factor, inside in zip(
            corners.addresses(pixel, position),
            weights_of(k, position, p.grad_x),
            inside_of(position, pixel.exists),
            strict=True,
        ):
            add_weighted(address, factor, gcol, infinite, where=inside, together=step)
