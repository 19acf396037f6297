"""Backward to the weights: sampled images^T @ grad_y, in parts that are summed afterwards."""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.deform_conv.config import DeformableConvConfig
from ptx.kernels.deform_conv.corners import CornerTable, PixelTable
from ptx.kernels.deform_conv.direct_backward_weight import (
    direct_backward_weight,
    direct_weight_blocks,
    direct_weight_parts,
)
from ptx.kernels.deform_conv.gather import GatherTile
from ptx.kernels.deform_conv.gather_tiles import PositionGatherTile, TableGatherTile
from ptx.kernels.deform_conv.plan import SamplePlan, backward_weight_plan, is_direct
from ptx.kernels.deform_conv.sampling import Offsets, Sampler
from ptx.kernels.limits import check_grid, check_sizes
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.occupancy import sum_parts
from ptx.tile.pixels import Geometry, OutputPixel
from ptx.tile.plan import make_math
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import accumulator_of, vector_width

__all__ = [
    "backward_weight_dynamic_shared",
    "backward_weight_launch",
    "backward_weight_parts",
    "generate_deformable_conv_backward_weight_ptx",
]

_PART_UNIT = 64  # pixels


def generate_deformable_conv_backward_weight_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the weights.

    Parameters: input [N, H, W, C], offset, mask if there is one, grad_output [N, P, Q, Co],
    partial [parts, T, C/G, Co] in f32 (f64 for f64), and the u32 batch_size, in_h, in_w, out_h,
    out_w and pixels_per_part, a multiple of 64. A block has `SamplePlan.m` input channels of one
    run (see `_run`) and one tap (grid x), `SamplePlan.n` output channels (grid y) and the pixels of
    one part (grid z); tiny groups have `direct_weight_blocks` blocks of each part, all in x.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    plan = backward_weight_plan(config, target)
    name = f"{config.float_type}_{config.kernel_h}x{config.kernel_w}"
    k = Kernel(
        f"deformable_conv_backward_weight_{name}",
        target,
        block=plan.threads,
        min_blocks=plan.min_blocks,
    )
    dtype = config.float_type
    x = k.pointer("input", dtype, readonly=True)
    offset, mask = Offsets.declare(k, config)
    grad_y = k.pointer("grad_output", dtype, readonly=True)
    partial = k.pointer("partial", accumulator_of(dtype))
    sizes = Geometry.declare(k)
    pixels_per_part = k.param("pixels_per_part", u32)
    offsets = Offsets(k, config, sizes, offset, mask)
    if is_direct(config):
        direct_backward_weight(k, config, x, grad_y, partial, pixels_per_part, offsets)
        return k.text()

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    run = _run(config, plan)
    tiles = -(-run // plan.m)  # of one run
    tile, rest = k.ctaid("x") % tiles, k.ctaid("x") // tiles
    tap, number = rest % config.taps, rest // config.taps
    first_in = tile * plan.m  # in the run
    channel = number * run + first_in
    group = channel // in_group
    first_out = k.ctaid("y") * plan.n
    first_pixel = k.ctaid("z") * pixels_per_part
    end_pixel = k.min(first_pixel + pixels_per_part, sizes.pixels)
    k.name(tap=tap, channel=channel, first_out=first_out, first_pixel=first_pixel)

    dynamic = backward_weight_dynamic_shared(config, target) > 0
    a, b = (
        SharedTile.make(k, name, dtype, k_extent=plan.k, extent=extent, k_axis=0, dynamic=dynamic)
        for name, extent in (("a_tile", plan.m), ("b_tile", plan.n))
    )
    math = make_math(k, config, a, b, plan)
    samples = _samples(plan)
    pixel, count = k.var(u32, 0, "pixel"), k.var(u32, 0, "slices")
    cursor = Cursor(k, slice=count)

    def there(column: Val) -> Val | None:
        return first_in + column < run if run % plan.m else None

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        here, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        at = k.mad_wide(here, config.out_channels, k.convert(group * out_group + out, u64))
        return grad_y + at, (here < end_pixel) & (out < out_group)

    width = vector_width(dtype, config.segment, plan.m)
    if plan.corners == "table":
        table = CornerTable(offsets, rows=samples)

        def in_table(column: Val) -> tuple[Val, Val, Val | None]:
            return cursor["slice"] * plan.k, channel + column, there(column)

        gather = TableGatherTile(
            k, a, x, table, in_table, width=16 // dtype.bytes, threads=plan.threads
        )

        def fill(first: Val) -> None:
            offset_group = channel // config.channels_per_offset_group
            with k.loop(k.tid(), count * plan.k, plan.threads, name="sample") as number:
                here = sizes.pixel(first + number)
                table.store(number, here, offset_group, tap, here.index < end_pixel)

    elif plan.corners == "positions":
        pixels = PixelTable(k, config, samples)

        def in_pixels(column: Val) -> tuple[Val, Val, Val, Val | None]:
            return cursor["slice"] * plan.k, channel + column, tap, there(column)

        gather = PositionGatherTile(
            k, a, x, offsets, pixels, in_pixels,
            width=vector_width(dtype, config.channels_per_offset_group), threads=plan.threads,
        )  # fmt: skip

        def fill(first: Val) -> None:
            with k.loop(k.tid(), count * plan.k, plan.threads, name="sample") as number:
                here = sizes.pixel(first + number)
                inside = here.index < end_pixel
                pixels.store(number, OutputPixel(here.index, here.image, here.y, here.x, inside))

    else:
        sampler = Sampler(offsets, rows=samples, taps=1, threads=plan.threads)
        zero = k.var(u32, 0)

        def sampled(row: Val, column: Val) -> tuple[Val, Val, Val, Val]:
            inside = first_in + column < run
            return cursor["slice"] * plan.k + row, zero, channel + column, inside

        gather = GatherTile(
            k, a, x, sampler, sampled,
            channels=config.in_channels, in_w=sizes.in_w, width=width, threads=plan.threads,
        )  # fmt: skip

        def fill(first: Val) -> None:
            sampler.fill(first, channel // config.channels_per_offset_group, tap)

    columns = vector_width(dtype, out_group, plan.n)
    producers = [gather, DenseTile(k, b, gradients, width=columns, threads=plan.threads)]
    with k.loop(first_pixel, end_pixel, samples, name="pixels") as here:
        pixel.set(here)
        count.set((k.min(end_pixel - here, samples) + (plan.k - 1)) // plan.k)
        fill(here)
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
    return k.text()


def backward_weight_parts(config: DeformableConvConfig, pixels: int) -> int:
    """Parts that the pixels are cut into: as many as give the GPU enough blocks.

    Each costs memory of the weights' size, in f32, so that they have 1,024 pixels at least. The
    number depends on no device: a program that is compiled for one runs on any.
    """
    if is_direct(config):
        return direct_weight_parts(config, pixels)
    plan = backward_weight_plan(config, TARGETS["sm_80"])
    across, down = _tiles(config, plan)
    return sum_parts(across * down, -(-pixels // 1024), per_sm=4)


def backward_weight_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for x, offset, mask, grad_y and the parts.

    Raises:
      ValueError: sizes beyond what kernels can count; see `limits`.
    """
    plan = backward_weight_plan(config, target)
    mask = ["mask"] * config.use_modulation
    names = ["x", "offset", *mask, "grad_y", "partial"]
    (images, in_h, in_w, _), (_, out_h, out_w, _) = shapes[0], shapes[-2]
    table = plan.corners == "table"
    check_sizes(config, images, (in_h, in_w), (out_h, out_w), table=table)
    parts = shapes[-1][0]
    pixels = -(-images * out_h * out_w // (parts * _PART_UNIT)) * _PART_UNIT
    numbers = [np.uint32(size) for size in (images, in_h, in_w, out_h, out_w, pixels)]
    across, down = _tiles(config, plan)
    buffers = [Address(i) for i, _ in enumerate(names)]
    grid = (across, down, parts)
    if is_direct(config):
        grid = (direct_weight_blocks(config) * parts, 1, 1)
    check_grid(grid)
    return Launch(grid, (plan.threads, 1, 1), (*buffers, *numbers))


def backward_weight_dynamic_shared(config: DeformableConvConfig, target: Target) -> int:
    """Bytes of dynamic shared memory: of the tiles, where they are large."""
    plan = backward_weight_plan(config, target)
    if plan.m * plan.n <= 64 * 64:
        return 0
    return sum(
        SharedTile.shared_bytes(config.float_type, k_extent=plan.k, extent=extent, k_axis=0)
        for extent in (plan.m, plan.n)
    )


def _run(config: DeformableConvConfig, plan: SamplePlan) -> int:
    """Neighbouring channels that tiles may share: of one group and, unless each vector's corners
    are calculated by itself, one offset group.
    """
    return config.in_channels_per_group if plan.narrow else config.segment


def _tiles(config: DeformableConvConfig, plan: SamplePlan) -> tuple[int, int]:
    """Blocks of one part: channels and taps, output channels."""
    run = _run(config, plan)
    across = -(-run // plan.m) * (config.in_channels // run) * config.taps
    return across, -(-config.out_channels_per_group // plan.n)


def _samples(plan: SamplePlan) -> int:
    """Pixels that are looked at together: the pipeline runs dry after each lot."""
    return 64 if plan.corners == "samples" else 512
