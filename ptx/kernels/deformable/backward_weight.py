"""Backward to the weights: sampled images^T @ grad_y, in parts that are summed afterwards."""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.dtypes import u32, u64
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.kernels.deformable.gather import GatherTile
from ptx.kernels.deformable.plan import THREADS, backward_weight_plan, make_math
from ptx.kernels.deformable.sampling import Geometry, Offsets, Sampler
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.targets import TARGETS, Target
from ptx.tile.dense import DenseTile
from ptx.tile.pipeline import Cursor, multiply_all
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import accumulator_of, store_vector, vector_width

__all__ = ["backward_weight_launch", "generate_deformable_conv_backward_weight_ptx"]

_PIXELS = 64  # whose samples are kept at a time


def generate_deformable_conv_backward_weight_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the weights.

    Parameters: input [N, H, W, C], offset, mask if there is one, grad_output [N, P, Q, Co],
    partial [parts, T, C/G, Co] in f32 (f64 for f64), and the u32 batch_size, in_h, in_w, out_h,
    out_w and pixels_per_part, a multiple of 64. A block has `TilePlan.m` input channels of one
    segment and one tap (grid x), `TilePlan.n` output channels (grid y) and the pixels of one part
    (grid z).

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    plan = backward_weight_plan(config)
    name = f"{config.float_type}_{config.kernel_h}x{config.kernel_w}"
    k = Kernel(f"deformable_conv_backward_weight_{name}", target, block=THREADS, min_blocks=2)
    dtype = config.float_type
    x = k.pointer("input", dtype, readonly=True)
    offset, mask = Offsets.declare(k, config)
    grad_y = k.pointer("grad_output", dtype, readonly=True)
    partial = k.pointer("partial", accumulator_of(dtype))
    sizes = Geometry.declare(k)
    pixels_per_part = k.param("pixels_per_part", u32)

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    tiles = -(-config.segment // plan.m)  # of one segment
    tile, rest = k.ctaid("x") % tiles, k.ctaid("x") // tiles
    tap, segment = rest % config.taps, rest // config.taps
    first_in = tile * plan.m  # in the segment
    channel = segment * config.segment + first_in
    group, offset_group = channel // in_group, channel // config.channels_per_offset_group
    first_out = k.ctaid("y") * plan.n
    first_pixel = k.ctaid("z") * pixels_per_part
    end_pixel = k.min(first_pixel + pixels_per_part, sizes.pixels)
    k.name(tap=tap, channel=channel, first_out=first_out, first_pixel=first_pixel)

    a = SharedTile.make(k, "a_tile", dtype, k_extent=plan.k, extent=plan.m, k_axis=0)
    b = SharedTile.make(k, "b_tile", dtype, k_extent=plan.k, extent=plan.n, k_axis=0)
    math = make_math(k, config, a, b, plan)
    offsets = Offsets(k, config, sizes, offset, mask)
    sampler = Sampler(offsets, rows=_PIXELS, taps=1, threads=THREADS)
    cursor = Cursor(k, slice=_PIXELS // plan.k)
    pixel = k.var(u32, 0, "pixel")
    zero = k.var(u32, 0)

    def sampled(row: Val, column: Val) -> tuple[Val, Val, Val, Val]:
        there = first_in + column < config.segment
        return cursor["slice"] * plan.k + row, zero, channel + column, there

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        here, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        at = k.mad_wide(here, config.out_channels, k.convert(group * out_group + out, u64))
        return grad_y + at, (here < end_pixel) & (out < out_group)

    producers = [
        GatherTile(
            k, a, x, sampler, sampled,
            channels=config.in_channels, in_w=sizes.in_w,
            width=vector_width(dtype, config.segment, plan.m), threads=THREADS,
        ),
        DenseTile(k, b, gradients, width=vector_width(dtype, out_group, plan.n), threads=THREADS),
    ]  # fmt: skip
    with k.loop(first_pixel, end_pixel, _PIXELS, name="pixels") as here:
        pixel.set(here)
        sampler.fill(here, offset_group, tap)
        k.barrier()
        multiply_all(k, cursor, producers, math)

    k.comment("this part's sum")
    part = k.ctaid("z") * config.taps + tap
    in_this_group = channel - group * in_group
    for row in math.rows():
        at_row = k.mad_wide(part, in_group, k.convert(in_this_group + row.row, u64))
        for column, sums in row.parts:
            out = first_out + column
            step = vector_width(partial.dtype, len(sums), out_group)
            for i in range(0, len(sums), step):
                where = (first_in + row.row < config.segment) & (out + i < out_group)
                to = k.convert(group * out_group + out + i, u64)
                place = partial + at_row * config.out_channels + to
                store_vector(place, sums[i : i + step], where=where)
    return k.text()


def backward_weight_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for x, offset, mask, grad_y and the parts."""
    plan = backward_weight_plan(config)
    mask = ["mask"] * config.use_modulation
    names = ["x", "offset", *mask, "grad_y", "partial"]
    (images, in_h, in_w, _), (_, out_h, out_w, _) = shapes[0], shapes[-2]
    parts = shapes[-1][0]
    pixels = -(-images * out_h * out_w // (parts * _PIXELS)) * _PIXELS
    numbers = [np.uint32(size) for size in (images, in_h, in_w, out_h, out_w, pixels)]
    tiles = -(-config.segment // plan.m) * config.in_channels // config.segment * config.taps
    out_tiles = -(-config.out_channels_per_group // plan.n)
    buffers = [Address(i) for i, _ in enumerate(names)]
    return Launch((tiles, out_tiles, parts), (THREADS, 1, 1), (*buffers, *numbers))
