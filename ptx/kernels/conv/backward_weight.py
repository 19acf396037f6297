"""Convolution backward to weights: shifted images^T @ grad_y, in parts that are summed after."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import Instance, KernelDefinition, Out, Size
from ptx.isa.dtypes import s32, u32, u64
from ptx.isa.targets import TARGETS
from ptx.kernels.conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.backward_weight import (
    direct_backward_weight,
    direct_weight_blocks,
    direct_weight_parts,
    direct_weight_tile,
)
from ptx.kernels.conv.direct.common import strip_count
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.operations import GRAD_Y, WEIGHT, X
from ptx.kernels.conv.parameters import entry, is_tiled, writer
from ptx.kernels.conv.plan import backward_weight_plan
from ptx.tile.dense import DenseTile
from ptx.tile.direct import DirectPlan
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.occupancy import sum_parts
from ptx.tile.pixels import SIZES, pixel_index
from ptx.tile.plan import TilePlan, make_product
from ptx.tile.vectors import vector_width

__all__ = ["BACKWARD_WEIGHT", "backward_weight_parts"]

PIXELS_TOGETHER = 512  # whose windows are calculated together
_PART_UNIT = 64


def backward_weight_parts(config: ConvConfig, pixels: int) -> int:
    """How many parts the output pixels are cut into, so that the GPU has enough blocks.

    Each part costs memory of the weights' size, in f32, so that it has 1,024 pixels at least. The
    count depends on no device: a program that is compiled for one runs on any.
    """
    plan = backward_weight_plan(config, TARGETS["sm_80"])
    if isinstance(plan, DirectPlan):
        return direct_weight_parts(config, pixels)
    across, down = _tiles(config, plan)
    return sum_parts(across * down, -(-pixels // 1024), per_sm=4)


def _tiled_backward_weight(k: Kernel, config: ConvConfig, plan: TilePlan, p: Any) -> None:
    """Writes the kernel that multiplies tiles.

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
    shifts = _Shifts(k, config, p.in_w, first_row, image_width, plan)

    def shifted(row: Val, column: Val) -> tuple[Pointer, Val]:
        entry = cursor["slice"] * plan.k + row
        start, y, x_, _ = windows.load(entry * 4, 4)
        # What is negative becomes large.
        inside = (k.bitcast(y + shifts.down, u32) < p.in_h) & (
            k.bitcast(x_ + shifts.right, u32) < p.in_w
        )
        exists = inside & shifts.row_ok & (pixel + entry < end_pixel)
        address = p.x + k.mul_wide(start + shifts.pixels, config.in_channels)
        return address + (group * in_group + shifts.channel), exists

    def gradients(row: Val, column: Val) -> tuple[Pointer, Val]:
        index, out = pixel + cursor["slice"] * plan.k + row, first_out + column
        offset = k.mad_wide(index, config.out_channels, k.convert(group * out_group + out, u64))
        return p.grad_y + offset, (index < end_pixel) & (out < out_group)

    producers = [
        DenseTile(k, a, shifted, width=image_width, threads=plan.threads),
        DenseTile(
            k, b, gradients, width=vector_width(dtype, out_group, plan.n), threads=plan.threads
        ),
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
    part = k.ctaid("z") * total

    def locate(row: Val) -> LocateColumn:
        row_index = first_row + row

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            out = first_out + column + further
            channel = k.convert(group * out_group + out, u64)
            offset = k.mad_wide(part + row_index, config.out_channels, channel)
            return p.grad_weight_parts + offset, (row_index < total) & (out < out_group)

        return element

    store_rows(sums, locate, dtype=p.grad_weight_parts.dtype, extent=out_group)


class _Shifts:
    """The tap and the channel that a thread's row of the weights is, the same in all loops.

    Attributes:
      channel: the input channel, of the group.
      row_ok: whether the weights have the row.
      down, right: rows and columns from a window's first tap to this one: s32.
      pixels: the pixels between them: s32.
    """

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
        row = first_row + k.tid() % (plan.m // width) * width
        tap, self.channel = row // in_group, row % in_group
        self.row_ok = row < config.taps * in_group
        self.down = k.bitcast(tap // config.kernel_w * config.dilation_h, s32)
        self.right = k.bitcast(tap % config.kernel_w * config.dilation_w, s32)
        self.pixels = self.down * k.bitcast(in_w, s32) + self.right


def _tiles(config: ConvConfig, plan: TilePlan) -> tuple[int, int]:
    """Blocks of one part: rows of all groups' weights, output channels."""
    across = config.groups * -(-config.taps * config.in_channels_per_group // plan.m)
    return across, -(-config.out_channels_per_group // plan.n)


def _grid(instance: Instance) -> tuple[int, int, int]:
    config, plan, parts = instance.config, instance.plan, instance.sizes["s"]
    if isinstance(plan, DirectPlan):
        return direct_weight_blocks(config) * parts, 1, 1
    return *_tiles(config, plan), parts


def _pixels_per_part(instance: Instance) -> int:
    sizes = instance.sizes
    pixels = sizes["n"] * sizes["p"] * sizes["q"]
    return -(-pixels // (sizes["s"] * _PART_UNIT)) * _PART_UNIT


def _strips_per_part(instance: Instance) -> int:
    sizes = instance.sizes
    return -(-strip_count(sizes["n"], sizes["p"], sizes["q"]) // sizes["s"])


BACKWARD_WEIGHT = KernelDefinition(
    name="conv_backward_weight",
    # Its plan is the same for launches of all sizes.
    configs={name: config for name, config in CONFIGS.items() if name not in LAUNCH_SIZES},
    parameters=(
        *(X, GRAD_Y),
        # The sums over s parts of the output pixels.
        Out("grad_weight_parts", f"s {WEIGHT.dims}", "sum_type"),
        *SIZES,
        Size("pixels_per_part", _pixels_per_part, is_tiled),
        Size("strips_per_part", _strips_per_part, lambda *chosen: not is_tiled(*chosen)),
    ),
    plan=backward_weight_plan,
    entry=entry("implicit_gemm_conv_backward_weight", direct_weight_tile),
    body=writer(_tiled_backward_weight, direct_backward_weight),
    grid=_grid,
    check=check_windows,
)
