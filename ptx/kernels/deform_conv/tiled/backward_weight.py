"""Backward to the weights for everything but tiny groups: sampled images^T @ grad_y."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.samples.tables import SampleTable
from ptx.kernels.deform_conv.samples.tiles import GatherTile
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.plan import make_product
from ptx.tile.vectors import vector_width

__all__ = ["tiled_backward_weight"]


def tiled_backward_weight(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    """Writes the sums over parts of the output pixels; another pass adds up the parts.

    A block has `plan.m` input channels of `SamplePlan.channel_extent` neighbours and one tap (grid
    x), `plan.n` output channels (grid y) and the pixels of one part (grid z).
    """
    offsets, dtype = Offsets.of(k, config, p), config.float_type
    sizes = offsets.geometry
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    extent = plan.channel_extent(config)
    tiles = -(-extent // plan.m)
    tile, rest = k.ctaid("x") % tiles, k.ctaid("x") // tiles
    tap, extent_index = rest % config.taps, rest // config.taps
    first_in = tile * plan.m  # in the extent
    channel = extent_index * extent + first_in
    group = channel // in_group
    first_out = k.ctaid("y") * plan.n
    first_pixel = k.ctaid("z") * p.pixels_per_part
    end_pixel = k.min(first_pixel + p.pixels_per_part, sizes.pixels)
    k.name(tap=tap, channel=channel, first_out=first_out, first_pixel=first_pixel)

    dynamic = plan.m * plan.n > 64 * 64
    a, b, math = make_product(k, config, plan, k_axis=0, dynamic=dynamic)
    # The pipeline runs dry after each of these lots of pixels.
    pixels_at_once = 64 if plan.table is SampleTable else 512
    pixel, slices = k.var(u32, 0, "pixel"), k.var(u32, 0, "slices")
    cursor = Cursor(k, slice=slices)

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        index, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        at = k.mad_wide(index, config.out_channels, k.convert(group * out_group + out, u64))
        return p.grad_y + at, (index < end_pixel) & (out < out_group)

    table = plan.table(offsets, rows=pixels_at_once)

    def sampled(column: Val) -> tuple[Val, Val, Val | None]:
        first, image_channel = cursor["slice"] * plan.k, channel + column
        return first, image_channel, first_in + column < extent if extent % plan.m else None

    width = vector_width(dtype, config.segment, plan.m)
    gather = GatherTile(k, a, p.x, table, sampled, width=width, threads=plan.threads)
    columns = vector_width(dtype, out_group, plan.n)
    producers = [gather, DenseTile(k, b, gradients, width=columns, threads=plan.threads)]
    with k.loop(first_pixel, end_pixel, pixels_at_once, name="pixels") as first:
        pixel.set(first)
        slices.set((k.min(end_pixel - first, pixels_at_once) + (plan.k - 1)) // plan.k)
        offset_group = 0 if plan.narrow else channel // config.channels_per_offset_group
        with k.loop(k.tid(), slices * plan.k, plan.threads, name="sample") as index:
            sample = sizes.pixel(first + index)
            table.store(index, sample, offset_group, tap, sample.index < end_pixel)
        k.barrier()
        multiply_all(k, cursor, producers, math)

    k.comment("this part's sum")
    weight_rows = k.ctaid("z") * config.taps + tap
    in_this_group = channel - group * in_group

    def locate(row: Val) -> LocateColumn:
        row_index = k.mad_wide(weight_rows, in_group, k.convert(in_this_group + row, u64))

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            out = first_out + column + further
            address = p.partial + row_index * config.out_channels
            address = address + k.convert(group * out_group + out, u64)
            return address, (first_in + row < extent) & (out < out_group)

        return element

    store_rows(math, locate, dtype=p.partial.dtype, extent=out_group)
