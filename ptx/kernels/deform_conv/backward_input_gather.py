"""Backward to input without atomics: each input pixel gathers from the samples that read it.

The lists of those samples are made beforehand, by sorting. A sample lies in a cell: the square of
four pixels that it interpolates, named by the one at the upper left. An input pixel is a corner of
four cells, so that for each tap

    A[pixel, tap, o] = sum over the samples in those cells of corner weight * grad_output[sample, o]

and the gradient is A @ weights, a math over taps and output channels like the forward one. All
sums have an order that depends on the lists alone, and each result is written once.

Cells are counted through all images, each [H + 4, W + 4]: `CELL_BORDER` around it. The lists are:

- starts [f, t, z], where the list of each cell starts, for each offset group f and tap t, and in
  the end where the last one ends.
- order [f, t, s], for each offset group and tap the output pixels (a sample s each), sorted by the
  cells of their samples.
- corner_weights [f, t, s, u], in the same order, bilinear weights times mask of the corners u:
  (y, x), (y, x+1), (y+1, x), (y+1, x+1).

A list may be long, and its sum beyond the range of f16, although the gradient is not. In f16
corner_weights are therefore divided by a power of two, sum_scale, with which the kernel multiplies
its sums before it rounds them.
"""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import In, Instance, KernelDefinition, Size, Sizes
from ptx.isa.dtypes import f32, u32, u64
from ptx.isa.targets import Target
from ptx.kernels.convolution_definitions import output_pixels
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.definitions import entry
from ptx.kernels.deform_conv.operations import GRAD_X, GRAD_Y, WEIGHT
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.cell_lists import NO_CELL, CellLists, ListTable, ListTile
from ptx.kernels.limits import PIXELS, check_count
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import Finish, LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_in_parts
from ptx.tile.pixels import SIZES
from ptx.tile.plan import at_least, make_product
from ptx.tile.tensor_cores import TensorCores
from ptx.tile.vectors import vector_width

__all__ = ["BACKWARD_INPUT_GATHER", "CELL_BORDER", "gathers", "list_sizes"]

CELL_BORDER = 2  # cells around an image, on each side
_SEGMENT = 64  # channels
_SECTORS = 2**25


def gathers(config: DeformConvConfig, output_pixels: int) -> bool:
    """Whether this kernel should be faster than the one that adds atomically.

    Atomic additions take as long as the sectors of 32 bytes that they touch. Lists take time of
    their own to make, and are worth it if each is read for enough channels, and if there are so
    many sectors that some launches more do not count. Products of types of 4 bytes take longer than
    the additions. docs/performance.md has times of both, measured on an H200.

    Args:
      config: the convolution.
      output_pixels: the output pixels of all images.
    """
    sample_bytes = 4 * config.in_channels * config.sum_type.bytes  # of its four corners
    sectors = output_pixels * config.taps * sample_bytes // 32
    return config.float_type.bytes == 2 and config.segment >= _SEGMENT and sectors >= _SECTORS


def list_sizes(sizes: Sizes) -> Sizes:
    """The sizes of the lists, `s` and `z`, of images n of h, w and output pixels p, q."""
    return {"s": output_pixels(sizes), "z": _cells(sizes) + 1}


def _body(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    weight, grad_y, grad_x = p.weight, p.grad_y, p.grad_x
    images, in_h, in_w, samples = p.batch_size, p.in_h, p.in_w, p.samples
    pixels = images * in_h * in_w
    pitch = in_w + 2 * CELL_BORDER
    cells = images * (in_h + 2 * CELL_BORDER) * pitch

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    tiles = -(-config.segment // plan.n)  # of one segment
    all_tiles = config.in_channels // config.segment * tiles
    tile, first_pixel = k.ctaid("x") % all_tiles, k.ctaid("x") // all_tiles * plan.m
    segment, first_channel = tile // tiles, tile % tiles * plan.n
    channel = segment * config.segment + first_channel
    group, offset_group = channel // in_group, channel // config.channels_per_offset_group
    k.name(first_pixel=first_pixel, channel=channel, group=group, offset_group=offset_group)

    a, b, math = make_product(k, config, plan, k_axis=1, dynamic=True)
    cursor = Cursor(k, tap=config.taps, slice=-(-out_group // plan.k))

    k.comment("the cell of each pixel")
    row_cells = k.shared("row_cells", u32, plan.m)
    with k.if_(k.tid() < plan.m):
        pixel = first_pixel + k.tid()
        x, image_row = pixel % in_w, pixel // in_w
        y, image = image_row % in_h, image_row // in_h
        cell_row = image * (in_h + 2 * CELL_BORDER) + y + CELL_BORDER
        cell = cell_row * pitch + x + CELL_BORDER
        row_cells.store(k.tid(), k.select(pixel < pixels, cell, NO_CELL))
    k.barrier()

    def gradients(column: Val) -> tuple[Pointer, Val]:
        out = cursor["slice"] * plan.k + column
        return grad_y + (group * out_group + out), out < out_group

    def weights(row: Val, column: Val) -> tuple[Pointer, Val]:
        out = cursor["slice"] * plan.k + column
        weight_row = cursor["tap"] * in_group + (channel - group * in_group) + row
        at = k.mad_wide(weight_row, config.out_channels, k.convert(group * out_group + out, u64))
        return weight + at, (out < out_group) & (first_channel + row < config.segment)

    width, threads = vector_width(config.float_type, out_group, plan.k), plan.threads
    lists = CellLists(config, p.starts, p.order, p.corner_weights, cells, pitch, samples)
    table = ListTable(k, lists, cursor, offset_group, row_cells, rows=plan.m, threads=threads)
    table.start()
    k.barrier()
    steps = math.depth // math.atom.k if isinstance(math, TensorCores) else 1
    sums = ListTile(k, a, table, gradients, width=width, threads=threads, most_parts=steps)
    others = [
        DenseTile(k, b, weights, width=width, threads=threads),
        table,  # what it loads would take the registers of the sums
    ]
    multiply_in_parts(k, cursor, sums, others, math)

    k.comment("each gradient is written once")

    def locate(row: Val) -> LocateColumn:
        pixel = first_pixel + row

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            in_channel = k.convert(channel + column + further, u64)
            at = k.mad_wide(pixel, config.in_channels, in_channel)
            exists = (pixel < pixels) & (first_channel + column + further < config.segment)
            return grad_x + at, exists

        return element

    finish = None if p.sum_scale is None else _scaled(p.sum_scale.load())
    store_rows(math, locate, dtype=config.float_type, extent=config.segment, finish=finish)


def _scaled(scale: Val) -> Finish:
    """Makes what multiplies each sum."""
    return lambda sums, *_: [total * scale for total in sums]


def _grid(instance: Instance) -> tuple[int, int, int]:
    """Grid y ends at 65535, and there may be more groups: grid x counts everything."""
    config, plan, sizes = instance.config, instance.plan, instance.sizes
    tiles = config.in_channels // config.segment * -(-config.segment // plan.n)
    return -(-sizes["n"] * sizes["h"] * sizes["w"] // plan.m) * tiles, 1, 1


def _check(instance: Instance) -> None:
    sizes = instance.sizes
    images = f"{sizes['n']} images of {sizes['h']} x {sizes['w']}"
    check_count(f"cells of {images}", _cells(sizes), PIXELS)
    check_count("samples of a tap", sizes["s"], PIXELS)
    for name, expected in list_sizes(sizes).items():
        if sizes[name] != expected:
            raise ValueError(f"lists of {images} must have {name} = {expected}, got {sizes[name]}")


def _cells(sizes: Sizes) -> int:
    return sizes["n"] * (sizes["h"] + 2 * CELL_BORDER) * (sizes["w"] + 2 * CELL_BORDER)


def _known(config: DeformConvConfig) -> Sizes:
    return {"f": config.offset_groups, "t": config.taps, "u": 4, "v": 1}


def _plan(config: DeformConvConfig, target: Target, sizes: Sizes | None) -> SamplePlan:
    """M are input pixels, N input channels of a segment, K output channels of a group.

    N covers a segment with one tile if it can: each further tile gathers the gradients again. An SM
    has 16 warps, of two blocks or of a large one where shared memory has no room for two; 8 where
    it has little.
    """
    size, shared = config.float_type.bytes, target.shared_per_sm
    little, much = shared <= 100 * 1024, shared > 200 * 1024
    widest = {2: 256, 4: 128, 8: 32}[size]
    if shared < 100 * 1024:
        widest = min(widest, 128)
    n = at_least(config.segment, 16, widest)
    row = 64 if size == 8 or little else 128  # bytes of K
    k = at_least(config.out_channels_per_group, 32 // size, row // size)
    if n == 256 and not (little or much):
        return SamplePlan(128, n, k, (4, 4), min_blocks=1)
    if n > 16 and (little or n * size > (256 if much else 128)):
        return SamplePlan(64, n, k, (2, 4) if n > 32 else (4, 2), min_blocks=1 if little else 2)
    warps = (8, 1) if n == 16 else (4, 2)
    return SamplePlan(128, n, k, warps, min_blocks=1 if little else 2)


BACKWARD_INPUT_GATHER = KernelDefinition(
    name="deform_conv_backward_input_gather",
    configs=CONFIGS,
    parameters=(
        *(In("starts", "f t z", u32), In("order", "f t s", u32)),
        In("corner_weights", "f t s u", "sum_type"),
        In("sum_scale", "v", f32, unless="sums_fit"),
        *(WEIGHT, GRAD_Y, GRAD_X),
        *(*SIZES[:3], Size("samples", lambda instance: instance.sizes["s"])),
    ),
    known=_known,
    plan=_plan,
    check=_check,
    grid=_grid,
    entry=entry("backward_input_gather"),
    body=_body,
)
