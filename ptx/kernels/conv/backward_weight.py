"""Convolution backward to weights: shifted images^T @ grad_y, in parts that are summed after."""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s32, u32, u64
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct import is_direct
from ptx.kernels.conv.direct_backward_weight import (
    direct_backward_weight,
    direct_backward_weight_launch,
    direct_weight_parts,
)
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.plan import backward_weight_plan
from ptx.kernels.limits import check_grid
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.occupancy import sum_parts
from ptx.tile.pixels import pixel_index
from ptx.tile.plan import TilePlan, make_math
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import accumulator_of, vector_width

__all__ = [
    "backward_weight_dynamic_shared",
    "backward_weight_launch",
    "backward_weight_parts",
    "generate_conv_backward_weight_ptx",
]

_PIXELS = 512  # whose places are looked up together
_PART_UNIT = 64


def generate_conv_backward_weight_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the gradient to the weights.

    Parameters: input [N, H, W, C], grad_output [N, P, Q, Co], partial [parts, T, C/G, Co] in f32
    (f64 for f64), and the u32 batch_size, in_h, in_w, out_h, out_w and pixels_per_part, a multiple
    of 64. A block has `TilePlan.m` rows, taps and input channels, of one group's weights (grid x),
    `TilePlan.n` output channels (grid y) and the pixels of one part (grid z).

    Tiny groups, see `is_direct`, have strips_per_part, of `direct.PIXELS` pixels of a row, and the
    grid is all in x.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    if is_direct(config):
        return direct_backward_weight(config, target)
    plan = backward_weight_plan(config, target)
    dtype = config.float_type
    name = f"implicit_gemm_conv_backward_weight_{plan.m}x{plan.n}x{plan.k}_{dtype}"
    k = Kernel(name, target, block=plan.threads, min_blocks=plan.min_blocks)
    x = k.pointer("input", dtype, readonly=True)
    grad_y = k.pointer("grad_output", dtype, readonly=True)
    partial = k.pointer("partial", accumulator_of(dtype))
    names = ("batch_size", "in_h", "in_w", "out_h", "out_w")
    images, in_h, in_w, out_h, out_w = (k.param(name, u32) for name in names)
    pixels_per_part = k.param("pixels_per_part", u32)

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    total = config.taps * in_group  # rows of a group's weights
    tiles = -(-total // plan.m)
    group, first_row = k.ctaid("x") // tiles, k.ctaid("x") % tiles * plan.m
    first_out = k.ctaid("y") * plan.n
    first_pixel = k.ctaid("z") * pixels_per_part
    end_pixel = k.min(first_pixel + pixels_per_part, images * out_h * out_w)
    k.name(group=group, first_row=first_row, first_out=first_out, first_pixel=first_pixel)

    dynamic = backward_weight_dynamic_shared(config, target) > 0
    a, b = (
        SharedTile.make(k, name, dtype, k_extent=plan.k, extent=extent, k_axis=0, dynamic=dynamic)
        for name, extent in (("a_tile", plan.m), ("b_tile", plan.n))
    )
    sums = make_math(k, config, a, b, plan)
    windows = k.shared("windows", s32, 4 * _PIXELS)  # index of the first tap, y, x of each pixel
    pixel, count = k.var(u32, 0, "pixel"), k.var(u32, 0, "slices")
    cursor = Cursor(k, slice=count)

    image_width = vector_width(dtype, in_group, plan.m)
    shifts = _Shifts(k, config, in_w, first_row, image_width, plan)

    def shifted(row: Val, column: Val) -> tuple[Pointer, Val]:
        entry = cursor["slice"] * plan.k + row
        start, y, x_, _ = windows.load(entry * 4, 4)
        # What is negative becomes large.
        inside = (k.bitcast(y + shifts.down, u32) < in_h) & (
            k.bitcast(x_ + shifts.right, u32) < in_w
        )
        there = inside & shifts.there & (pixel + entry < end_pixel)
        place = x + k.mul_wide(start + shifts.pixels, config.in_channels)
        return place + (group * in_group + shifts.channel), there

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        here, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        at = k.mad_wide(here, config.out_channels, k.convert(group * out_group + out, u64))
        return grad_y + at, (here < end_pixel) & (out < out_group)

    producers = [
        DenseTile(k, a, shifted, width=image_width, threads=plan.threads),
        DenseTile(
            k, b, gradients, width=vector_width(dtype, out_group, plan.n), threads=plan.threads
        ),
    ]
    with k.loop(first_pixel, end_pixel, _PIXELS, name="pixels") as here:
        pixel.set(here)
        count.set((k.min(end_pixel - here, _PIXELS) + (plan.k - 1)) // plan.k)
        k.comment("where the windows of these pixels begin")
        with k.loop(k.tid(), count * plan.k, plan.threads, name="window") as entry:
            index = here + entry
            column, line = index % out_w, index // out_w
            row, image = line % out_h, line // out_h
            y = k.bitcast(row * config.stride_h, s32) - config.pad_h
            left = k.bitcast(column * config.stride_w, s32) - config.pad_w
            start = pixel_index(image, y, left, in_h, in_w)
            windows.store(entry * 4, (start, y, left, start))
        k.barrier()
        multiply_all(k, cursor, producers, sums)

    k.comment("this part's sum")
    part = k.ctaid("z") * total

    def locate(row: Val) -> LocateColumn:
        row_index = first_row + row

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            out = first_out + column + further
            channel = k.convert(group * out_group + out, u64)
            address = partial + k.mad_wide(part + row_index, config.out_channels, channel)
            return address, (row_index < total) & (out < out_group)

        return element

    store_rows(sums, locate, dtype=partial.dtype, extent=out_group)
    return k.text()


class _Shifts:
    """What a thread's column of A is: a tap and a channel, the same in the whole kernel."""

    def __init__(
        self,
        k: Kernel,
        config: ConvConfig,
        in_w: Val,
        first_row: Val,
        width: int,
        plan: TilePlan,
    ):
        in_group = config.in_channels_per_group
        number = first_row + k.tid() % (plan.m // width) * width
        tap, self.channel = number // in_group, number % in_group
        self.there = number < config.taps * in_group
        self.down = k.bitcast(tap // config.kernel_w * config.dilation_h, s32)
        self.right = k.bitcast(tap % config.kernel_w * config.dilation_w, s32)
        self.pixels = self.down * k.bitcast(in_w, s32) + self.right


def backward_weight_parts(config: ConvConfig, pixels: int) -> int:
    """Parts that the pixels are cut into: as many as give the GPU enough blocks.

    Each costs memory of the weights' size, in f32, so that they have 1,024 pixels at least. The
    number depends on no device: a program that is compiled for one runs on any.
    """
    if is_direct(config):
        return direct_weight_parts(config, pixels)
    across, down = _tiles(config, backward_weight_plan(config, TARGETS["sm_80"]))
    return sum_parts(across * down, -(-pixels // 1024), per_sm=4)


def backward_weight_launch(config: ConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for x, grad_y and the parts.

    Raises:
      ValueError: the images, or the output, are larger than the kernel can count.
    """
    (images, in_h, in_w, _), (_, out_h, out_w, _) = shapes[0], shapes[1]
    check_windows(config, images, (in_h, in_w), (out_h, out_w))
    if is_direct(config):
        return direct_backward_weight_launch(config, shapes)
    plan = backward_weight_plan(config, target)
    parts = shapes[-1][0]
    pixels = -(-images * out_h * out_w // (parts * _PART_UNIT)) * _PART_UNIT
    numbers = [np.uint32(size) for size in (images, in_h, in_w, out_h, out_w, pixels)]
    buffers = (Address(0), Address(1), Address(2))
    grid = (*_tiles(config, plan), parts)
    check_grid(grid)
    return Launch(grid, (plan.threads, 1, 1), (*buffers, *numbers))


def backward_weight_dynamic_shared(config: ConvConfig, target: Target) -> int:
    """Bytes of dynamic shared memory: of the tiles, where they are large."""
    plan = backward_weight_plan(config, target)
    if plan.m * plan.n <= 64 * 64:
        return 0
    return sum(
        SharedTile.shared_bytes(config.float_type, k_extent=plan.k, extent=extent, k_axis=0)
        for extent in (plan.m, plan.n)
    )


def _tiles(config: ConvConfig, plan: TilePlan) -> tuple[int, int]:
    """Blocks of one part: rows of all groups' weights, output channels."""
    across = config.groups * -(-config.taps * config.in_channels_per_group // plan.m)
    return across, -(-config.out_channels_per_group // plan.n)
