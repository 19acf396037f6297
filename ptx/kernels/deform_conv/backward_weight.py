"""Backward to the weights: sampled images^T @ grad_y, in parts that are summed afterwards.

A block has `SamplePlan.m` input channels of one run (see `_run`) and one tap (grid x),
`SamplePlan.n` output channels (grid y) and the pixels of one part (grid z). Tiny groups have
`direct_weight_blocks` blocks of each part, all in x.
"""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import Instance, KernelDefinition, Out, Size
from ptx.isa.dtypes import u32, u64
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.backward_weight import (
    direct_backward_weight,
    direct_weight_blocks,
    direct_weight_parts,
)
from ptx.kernels.deform_conv.operations import GRAD_Y, MASK, OFFSET, WEIGHT, X
from ptx.kernels.deform_conv.parameters import check, entry, output_pixels
from ptx.kernels.deform_conv.plan import (
    SamplePlan,
    backward_weight_plan,
    backward_weight_tiles,
    is_direct,
)
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.samples.tables import SampleTable
from ptx.kernels.deform_conv.samples.tiles import GatherTile
from ptx.tile.dense import DenseTile
from ptx.tile.direct import DirectPlan
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.occupancy import sum_parts
from ptx.tile.pixels import SIZES
from ptx.tile.plan import make_product
from ptx.tile.vectors import vector_width

__all__ = ["BACKWARD_WEIGHT", "backward_weight_parts"]

_PART_UNIT = 64  # pixels


def _body(k: Kernel, config: DeformConvConfig, plan: SamplePlan | DirectPlan, p: Any) -> None:
    x, grad_y, partial, pixels_per_part = p.x, p.grad_y, p.partial, p.pixels_per_part
    offsets, dtype = Offsets.of(k, config, p), config.float_type
    if isinstance(plan, DirectPlan):
        direct_backward_weight(k, config, plan, p, offsets)
        return

    sizes = offsets.geometry
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    run = _run(config, plan)
    tiles = -(-run // plan.m)  # of one run
    tile, rest = k.ctaid("x") % tiles, k.ctaid("x") // tiles
    tap, run_index = rest % config.taps, rest // config.taps
    first_in = tile * plan.m  # in the run
    channel = run_index * run + first_in
    group = channel // in_group
    first_out = k.ctaid("y") * plan.n
    first_pixel = k.ctaid("z") * pixels_per_part
    end_pixel = k.min(first_pixel + pixels_per_part, sizes.pixels)
    k.name(tap=tap, channel=channel, first_out=first_out, first_pixel=first_pixel)

    dynamic = plan.m * plan.n > 64 * 64
    a, b, math = make_product(k, config, plan, k_axis=0, dynamic=dynamic)
    pixels_at_once = _pixels_at_once(plan)
    pixel, slices = k.var(u32, 0, "pixel"), k.var(u32, 0, "slices")
    cursor = Cursor(k, slice=slices)

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        index, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        at = k.mad_wide(index, config.out_channels, k.convert(group * out_group + out, u64))
        return grad_y + at, (index < end_pixel) & (out < out_group)

    table = plan.table(offsets, rows=pixels_at_once)

    def sampled(column: Val) -> tuple[Val, Val, Val | None]:
        first, image_channel = cursor["slice"] * plan.k, channel + column
        return first, image_channel, first_in + column < run if run % plan.m else None

    width = vector_width(dtype, config.segment, plan.m)
    gather = GatherTile(k, a, x, table, sampled, width=width, threads=plan.threads)
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
    part = k.ctaid("z") * config.taps + tap
    in_this_group = channel - group * in_group

    def locate(row: Val) -> LocateColumn:
        row_index = k.mad_wide(part, in_group, k.convert(in_this_group + row, u64))

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            out = first_out + column + further
            address = partial + row_index * config.out_channels
            address = address + k.convert(group * out_group + out, u64)
            return address, (first_in + row < run) & (out < out_group)

        return element

    store_rows(math, locate, dtype=partial.dtype, extent=out_group)


def backward_weight_parts(config: DeformConvConfig, pixels: int) -> int:
    """Parts that the pixels are cut into: as many as give the GPU enough blocks.

    Each costs memory of the weights' size, in f32, so that they have 1,024 pixels at least. The
    number depends on no device: a program that is compiled for one runs on any.
    """
    if is_direct(config):
        return direct_weight_parts(config, pixels)
    plan = backward_weight_tiles(config, TARGETS["sm_80"])
    across, down = _tiles(config, plan)
    return sum_parts(across * down, -(-pixels // 1024), per_sm=4)


def _grid(instance: Instance) -> tuple[int, int, int]:
    config, plan, parts = instance.config, instance.plan, instance.sizes["s"]
    if isinstance(plan, DirectPlan):
        return direct_weight_blocks(config) * parts, 1, 1
    return *_tiles(config, plan), parts


def _pixels_per_part(instance: Instance) -> int:
    unit = instance.sizes["s"] * _PART_UNIT
    return -(-output_pixels(instance.sizes) // unit) * _PART_UNIT


def _run(config: DeformConvConfig, plan: SamplePlan) -> int:
    """Neighbouring channels that tiles may share: of one group and, unless each vector's corners
    are calculated by itself, one offset group.
    """
    return config.in_channels_per_group if plan.narrow else config.segment


def _tiles(config: DeformConvConfig, plan: SamplePlan) -> tuple[int, int]:
    """Blocks of one part: channels and taps, output channels."""
    run = _run(config, plan)
    across = -(-run // plan.m) * (config.in_channels // run) * config.taps
    return across, -(-config.out_channels_per_group // plan.n)


def _pixels_at_once(plan: SamplePlan) -> int:
    """Pixels that are looked at together: the pipeline runs dry after each lot."""
    return 64 if plan.table is SampleTable else 512


BACKWARD_WEIGHT = KernelDefinition(
    name="deform_conv_backward_weight",
    configs=CONFIGS,
    parameters=(
        *(X, OFFSET, MASK, GRAD_Y, Out("partial", f"s {WEIGHT.dims}", "sum_type")),
        *(*SIZES, Size("pixels_per_part", _pixels_per_part)),
    ),
    plan=backward_weight_plan,
    check=check,
    grid=_grid,
    entry=entry("backward_weight"),
    body=_body,
)
