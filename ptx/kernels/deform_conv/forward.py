"""Forward: y = bias + sampled images @ weights, without a column buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.kernel import In, Instance, KernelDefinition, Out
from ptx.kernels.deform_conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.corners import PixelRows
from ptx.kernels.deform_conv.direct_forward import direct_forward
from ptx.kernels.deform_conv.forward_streamed import streamed_forward, wide_forward
from ptx.kernels.deform_conv.gather import GatherTile
from ptx.kernels.deform_conv.parameters import (
    MASK,
    OFFSET,
    STRIP_WIDTH,
    X,
    check,
    entry,
    has_strips,
    known,
    output_pixels,
)
from ptx.kernels.deform_conv.plan import SamplePlan, forward_plan
from ptx.kernels.deform_conv.sampling import Offsets, Sampler
from ptx.tile.dense import DenseTile
from ptx.tile.direct import DirectPlan
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.math import TileMath
from ptx.tile.pixels import SIZES
from ptx.tile.plan import make_math
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import load_words, vector_width, widen

__all__ = ["FORWARD"]


def _grid(instance: Instance) -> tuple[int, int, int]:
    """Blocks of pixels in x, and tiles of a group's output channels in y."""
    config, plan, sizes = instance.config, instance.plan, instance.sizes
    if isinstance(plan, DirectPlan):
        return plan.blocks(output_pixels(sizes)), 1, 1
    blocks = -(-output_pixels(sizes) // plan.m)
    if has_strips(config, plan):
        size = (sizes["n"], sizes["p"], sizes["q"], plan.m)
        blocks = PixelRows.blocks(*size, PixelRows.strip_width(*size))
    return blocks, config.groups * -(-config.out_channels_per_group // plan.n), 1


def _body(k: Kernel, config: DeformConvConfig, plan: SamplePlan | DirectPlan, p: Any) -> None:
    offsets = Offsets.of(k, config, p)
    if isinstance(plan, DirectPlan):
        direct_forward(k, config, plan, p.x, p.weight, p.bias, p.y, offsets)
        return
    dtype, bias, y = config.float_type, p.bias, p.y
    out_group = config.out_channels_per_group
    tiles = -(-out_group // plan.n)
    group, first_out = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    k.name(group=group, first_out=first_out)
    main_loop = streamed_forward if plan.streamed else wide_forward
    if plan.corners == "samples":
        main_loop = _tiled_forward
    math, pixel_of = main_loop(k, config, plan, p, offsets, group=group, first_out=first_out)

    k.comment("bias, and the output")
    first_channel = group * out_group + first_out

    def locate(row: Val) -> LocateColumn:
        pixel, exists = pixel_of(row)

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            channel = k.convert(first_channel + column + further, u64)
            address = y + k.mad_wide(pixel, config.out_channels, channel)
            return address, exists & (first_out + column + further < out_group)

        return element

    def with_bias(sums: Sequence[Val], column: Val, address: Pointer, exists: Val) -> Sequence[Val]:
        assert bias is not None
        words = load_words(bias + (first_channel + column), len(sums), where=exists)
        return [total + b for total, b in zip(sums, widen(k, words), strict=True)]

    finish = None if bias is None else with_bias
    store_rows(math, locate, dtype=dtype, extent=out_group, finish=finish)


def _tiled_forward(
    k: Kernel,
    config: DeformConvConfig,
    plan: SamplePlan,
    p: Any,
    offsets: Offsets,
    *,
    group: Val,
    first_out: Val,
) -> tuple[TileMath, Callable[[Val], tuple[Val, Val]]]:
    """The main loop for everything: both operands in shared memory. See `streamed_forward`."""
    dtype, sizes, x, weight = config.float_type, offsets.geometry, p.x, p.weight
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    first_pixel = k.ctaid("x") * plan.m
    a = SharedTile.make(k, "a_tile", dtype, k_extent=plan.k, extent=plan.m, k_axis=1)
    b = SharedTile.make(k, "b_tile", dtype, k_extent=plan.k, extent=plan.n, k_axis=1)
    math = make_math(k, config, a, b, plan)
    taps = Sampler.taps_that_fit(config, plan.m)
    sampler = Sampler(offsets, rows=plan.m, taps=taps, threads=plan.threads)

    cursor = Cursor(k, tap=taps, slice=-(-config.segment // plan.k))
    segment, first_tap = k.var(u32, 0, "segment"), k.var(u32, 0, "first_tap")

    def sampled(row: Val, column: Val) -> tuple[Val, Val, Val, Val]:
        channel = cursor["slice"] * plan.k + column  # in the segment
        first = group * in_group + segment * config.segment
        return row, cursor["tap"], first + channel, channel < config.segment

    def weights(row: Val, column: Val) -> tuple[Pointer, Val]:
        channel = cursor["slice"] * plan.k + column
        tap, out = first_tap + cursor["tap"], first_out + row
        in_row = tap * in_group + segment * config.segment + channel
        at = k.mad_wide(group * out_group + out, config.taps * in_group, k.convert(in_row, u64))
        weight_ok = (channel < config.segment) & (out < out_group)
        if config.taps % taps:
            weight_ok = weight_ok & (tap < config.taps)
        return weight + at, weight_ok

    producers = [
        GatherTile(
            k, a, x, sampler, sampled,
            channels=config.in_channels, in_w=sizes.in_w,
            width=vector_width(dtype, config.segment, plan.k), threads=plan.threads,
        ),
        DenseTile(
            k, b, weights,
            width=vector_width(dtype, config.segment, in_group, plan.k), threads=plan.threads,
        ),
    ]  # fmt: skip
    with k.loop(in_group // config.segment, name="segment") as segment_index:
        segment.set(segment_index)
        with k.loop(0, config.taps, taps, name="first_tap") as tap:
            first_tap.set(tap)
            offset_group = (group * in_group + segment_index * config.segment) // (
                config.channels_per_offset_group
            )
            sampler.fill(first_pixel, offset_group, tap)
            k.barrier()
            multiply_all(k, cursor, producers, math)

    def pixel_of(row: Val) -> tuple[Val, Val]:
        pixel = first_pixel + row
        return pixel, pixel < sizes.pixels

    return math, pixel_of


FORWARD = KernelDefinition(
    name="deform_conv_forward",
    configs=CONFIGS,
    launch_sizes=LAUNCH_SIZES,
    parameters=(
        *(X, OFFSET, In("weight", "i j e o", layout="o i j e"), MASK),
        *(In("bias", "o", flag="use_bias"), Out("y", "n p q o"), *SIZES, STRIP_WIDTH),
    ),
    known=known,
    plan=forward_plan,
    check=check,
    grid=_grid,
    entry=entry("forward"),
    body=_body,
)
