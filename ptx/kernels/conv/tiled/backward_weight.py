"""Backward to weights, with tiles: shifted images^T @ grad_y."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s32, u32, u64
from ptx.kernels.conv.config import ConvConfig
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.pixels import pixel_index
from ptx.tile.plan import TilePlan, make_product
from ptx.tile.vectors import vector_width

__all__ = ["tiled_backward_weight"]

PIXELS_TOGETHER = 512  # whose windows are calculated together


def tiled_backward_weight(k: Kernel, config: ConvConfig, plan: TilePlan, p: Any) -> None:
    """Writes the sums over parts of the output pixels; another pass adds up the parts.

    A block has `plan.m` rows, taps and input channels, of one group's weights (grid x), `plan.n`
    output channels (grid y) and the pixels of one part (grid z).
    """
    dtype = config.float_type
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    total = config.taps * in_group  # rows of a group's weights
    tiles = -(-total // plan.m)
    group, first_row = k.ctaid("x") // tiles, k.ctaid("x") % tiles * plan.m
    first_out = k.ctaid("y") * plan.n
    first_pixel = k.ctaid("z") * p.pixels_per_part
    end_pixel = k.min(first_pixel + p.pixels_per_part, p.batch_size * p.out_h * p.out_w)
    k.name(group=group, first_row=first_row, first_out=first_out, first_pixel=first_pixel)

    dynamic = plan.m * plan.n > 64 * 64
    a, b, sums = make_product(k, config, plan, k_axis=0, dynamic=dynamic)
    # Of each pixel: the index of the first tap's pixel, and its row and column.
    windows = k.shared("windows", s32, 4 * PIXELS_TOGETHER)
    pixel, count = k.var(u32, 0, "pixel"), k.var(u32, 0, "slices")
    cursor = Cursor(k, slice=count)

    image_width = vector_width(dtype, in_group, plan.m)
    # A thread's row of the weights is of the same tap and channel in all loops.
    weight_row = first_row + k.tid() % (plan.m // image_width) * image_width
    tap, in_channel, row_ok = weight_row // in_group, weight_row % in_group, weight_row < total
    down = k.bitcast(tap // config.kernel_w * config.dilation_h, s32)
    right = k.bitcast(tap % config.kernel_w * config.dilation_w, s32)
    shift = down * k.bitcast(p.in_w, s32) + right  # in pixels, from a window's first tap

    def shifted(row: Val, column: Val) -> tuple[Pointer, Val]:
        entry = cursor["slice"] * plan.k + row
        start, y, x, _ = windows.load(entry * 4, 4)
        # What is negative becomes large.
        inside = (k.bitcast(y + down, u32) < p.in_h) & (k.bitcast(x + right, u32) < p.in_w)
        exists = inside & row_ok & (pixel + entry < end_pixel)
        address = p.x + k.mul_wide(start + shift, config.in_channels)
        return address + (group * in_group + in_channel), exists

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        index, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        offset = k.mad_wide(index, config.out_channels, k.convert(group * out_group + out, u64))
        return p.grad_y + offset, (index < end_pixel) & (out < out_group)

    columns = vector_width(dtype, out_group, plan.n)
    producers = [
        DenseTile(k, a, shifted, width=image_width, threads=plan.threads),
        DenseTile(k, b, gradients, width=columns, threads=plan.threads),
    ]
    with k.loop(first_pixel, end_pixel, PIXELS_TOGETHER, name="pixels") as first:
        pixel.set(first)
        count.set((k.min(end_pixel - first, PIXELS_TOGETHER) + (plan.k - 1)) // plan.k)
        k.comment("where the windows of these pixels begin")
        with k.loop(k.tid(), count * plan.k, plan.threads, name="window") as entry:
            index = first + entry
            column, line = index % p.out_w, index // p.out_w
            row, image = line % p.out_h, line // p.out_h
            y = k.bitcast(row * config.stride_h, s32) - config.pad_h
            left = k.bitcast(column * config.stride_w, s32) - config.pad_w
            start = pixel_index(image, y, left, p.in_h, p.in_w)
            windows.store(entry * 4, (start, y, left, start))
        k.barrier()
        multiply_all(k, cursor, producers, sums)

    k.comment("this part's sum")
    first_part_row = k.ctaid("z") * total

    def locate(row: Val) -> LocateColumn:
        row_index = first_row + row

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            out = first_out + column + further
            channel = k.convert(group * out_group + out, u64)
            offset = k.mad_wide(first_part_row + row_index, config.out_channels, channel)
            return p.grad_weight_parts + offset, (row_index < total) & (out < out_group)

        return element

    store_rows(sums, locate, dtype=p.grad_weight_parts.dtype, extent=out_group)
