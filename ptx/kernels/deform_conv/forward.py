"""Forward: y = bias + sampled images @ weights, without a column buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.deform_conv.config import DeformableConvConfig
from ptx.kernels.deform_conv.corners import PixelRows
from ptx.kernels.deform_conv.direct import grouped_plan
from ptx.kernels.deform_conv.direct_forward import direct_forward
from ptx.kernels.deform_conv.forward_streamed import streamed_forward, wide_forward
from ptx.kernels.deform_conv.gather import GatherTile
from ptx.kernels.deform_conv.plan import SamplePlan, forward_plan, is_direct
from ptx.kernels.deform_conv.sampling import Offsets, Sampler
from ptx.kernels.limits import check_grid, check_sizes
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.math import TileMath
from ptx.tile.pixels import Geometry
from ptx.tile.plan import make_math
from ptx.tile.shared import SharedTile
from ptx.tile.stream import StreamedTile
from ptx.tile.vectors import load_words, vector_width, widen

__all__ = ["forward_dynamic_shared", "forward_launch", "generate_deformable_conv_forward_ptx"]


def generate_deformable_conv_forward_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the forward kernel.

    Parameters: input [N, H, W, C], offset [N, P, Q, OG*T*2], mask [N, P, Q, OG*T] if there is one,
    weight [Co, T, C/G], bias [Co] if there is one, output [N, P, Q, Co], and the u32 batch_size,
    in_h, in_w, out_h, out_w, and strip_width where `SamplePlan.corners` is not "samples". A block
    has `SamplePlan.m` pixels (grid x) and `SamplePlan.n` output channels of one group (grid y);
    tiny groups have the grid of `direct.grouped_plan`, all in x.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    plan = forward_plan(config, target)
    name = f"{config.float_type}_{config.kernel_h}x{config.kernel_w}"
    k = Kernel(
        f"deformable_conv_forward_{name}", target, block=plan.threads, min_blocks=plan.min_blocks
    )
    dtype = config.float_type
    x = k.pointer("input", dtype, readonly=True)
    offset, mask = Offsets.declare(k, config)
    weight = k.pointer("weight", dtype, readonly=True)
    bias = k.pointer("bias", dtype, readonly=True) if config.use_bias else None
    y = k.pointer("output", dtype)
    sizes = Geometry.declare(k)

    if is_direct(config):
        direct_forward(k, config, x, weight, bias, y, Offsets(k, config, sizes, offset, mask))
        return k.text()
    out_group = config.out_channels_per_group
    tiles = -(-out_group // plan.n)
    group, first_out = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    k.name(group=group, first_out=first_out)
    offsets = Offsets(k, config, sizes, offset, mask)
    main_loop = streamed_forward if plan.streamed else wide_forward
    if plan.corners == "samples":
        main_loop = _tiled_forward
    math, pixel_of = main_loop(
        k, config, plan, x, weight, offsets, group=group, first_out=first_out
    )

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
    return k.text()


def _tiled_forward(
    k: Kernel,
    config: DeformableConvConfig,
    plan: SamplePlan,
    x: Pointer,
    weight: Pointer,
    offsets: Offsets,
    *,
    group: Val,
    first_out: Val,
) -> tuple[TileMath, Callable[[Val], tuple[Val, Val]]]:
    """The main loop for everything: both operands in shared memory. See `streamed_forward`."""
    dtype, sizes = config.float_type, offsets.geometry
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
        place = tap * in_group + segment * config.segment + channel
        at = k.mad_wide(group * out_group + out, config.taps * in_group, k.convert(place, u64))
        there = (channel < config.segment) & (out < out_group)
        if config.taps % taps:
            there = there & (tap < config.taps)
        return weight + at, there

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
    with k.loop(in_group // config.segment, name="segment") as number:
        segment.set(number)
        with k.loop(0, config.taps, taps, name="first_tap") as tap:
            first_tap.set(tap)
            offset_group = (group * in_group + number * config.segment) // (
                config.channels_per_offset_group
            )
            sampler.fill(first_pixel, offset_group, tap)
            k.barrier()
            multiply_all(k, cursor, producers, math)

    def pixel_of(row: Val) -> tuple[Val, Val]:
        pixel = first_pixel + row
        return pixel, pixel < sizes.pixels

    return math, pixel_of


def forward_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for x, offset, weight, mask, bias (those there are) and y.

    Raises:
      ValueError: sizes beyond what kernels can count; see `limits`.
    """
    plan = forward_plan(config, target)
    (images, in_h, in_w, _), y = shapes[0], shapes[-1]
    table = plan.corners == "table"
    check_sizes(config, images, (in_h, in_w), (y[1], y[2]), table=table)
    names = ["x", "offset", "weight"]
    names += ["mask"] * config.use_modulation + ["bias"] * config.use_bias + ["y"]
    order = ["x", "offset", "mask", "weight", "bias", "y"]
    buffers = [Address(names.index(name)) for name in order if name in names]
    numbers = [images, in_h, in_w, y[1], y[2]]
    blocks = -(-y[0] * y[1] * y[2] // plan.m)
    if plan.corners != "samples":
        strip = PixelRows.strip_width(y[0], y[1], y[2], plan.m)
        numbers.append(strip)
        blocks = PixelRows.blocks(y[0], y[1], y[2], plan.m, strip)
    tiles = config.groups * -(-config.out_channels_per_group // plan.n)
    grid = (blocks, tiles, 1)
    if is_direct(config):
        grid = (grouped_plan(config).blocks(y[0] * y[1] * y[2]), 1, 1)
    check_grid(grid)
    arguments = (*buffers, *(np.uint32(number) for number in numbers))
    return Launch(grid, (plan.threads, 1, 1), arguments)


def forward_dynamic_shared(config: DeformableConvConfig, target: Target) -> int:
    """Bytes of dynamic shared memory."""
    plan = forward_plan(config, target)
    if plan.streamed:
        return StreamedTile.shared_bytes(plan.n, plan.stages)
    if plan.corners == "samples":
        return 0
    return sum(
        SharedTile.shared_bytes(config.float_type, k_extent=plan.k, extent=extent, k_axis=1)
        for extent in (plan.m, plan.n)
    )
