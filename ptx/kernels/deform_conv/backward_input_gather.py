"""Backward to input without atomics: each input pixel gathers from the samples that read it.

The lists of those samples are made beforehand, by sorting. A sample lies in a cell: the square of
four pixels that it interpolates, named by the one at the upper left. An input pixel is a corner of
four cells, so that for each tap

    A[pixel, tap, o] = sum over the samples in those cells of corner weight * grad_output[sample, o]

and the gradient is A @ weights, a product over taps and output channels like the forward one. All
sums have an order that depends on the lists alone, and each result is written once.

Cells are counted through all images, each [H + 4, W + 4]: `CELL_BORDER` around it. The lists are:

- starts [f, t, z], where the list of each cell starts, for each offset group f and tap t, and in
  the end where the last one ends.
- order [f, t, s], for each offset group and tap the output pixels (a sample s each), sorted by the
  cells of their samples.
- corner_weights [t, s, f, u], bilinear weights times mask of the corners u: (y, x), (y, x+1),
  (y+1, x), (y+1, x+1).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DType, f16, f32, u32, u64
from ptx.isa.targets import Target
from ptx.kernel import In, Instance, KernelDefinition, Out, Size, Sizes
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.parameters import (
    GRAD_Y,
    accumulator_type,
    entry,
    known,
    output_pixels,
)
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.limits import PIXELS, check_count
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.pixels import SIZES
from ptx.tile.plan import at_least, make_product
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import load_words, store_vector, vector_width, widen

__all__ = ["BACKWARD_INPUT_GATHER", "CELL_BORDER"]

CELL_BORDER = 2  # cells around an image, on each side
_NO_CELL = 2**32 - 1
_UNROLL = 4  # samples that are loaded together: as many as a pixel has if strides are 1


def _product_type(config: DeformConvConfig) -> DType:
    """The type that A is rounded to, and that weights have to have.

    A list may be long, and its sum beyond the range of f16, although the gradient is not: f16 is
    multiplied as f32, rounded to TF32 where the target has that, which is as precise.
    """
    return f32 if config.float_type is f16 else config.float_type


def _body(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    dtype = _product_type(config)
    starts, order, corner_weights, weight = p.starts, p.order, p.corner_weights, p.weight
    grad_y, grad_x = p.grad_y, p.grad_x
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

    a, b, math = make_product(k, dataclasses.replace(config, float_type=dtype), plan, k_axis=1)
    cursor = Cursor(k, tap=config.taps, slice=-(-out_group // plan.k))

    k.comment("the cell of each pixel")
    row_cells = k.shared("row_cells", u32, plan.m)
    with k.if_(k.tid() < plan.m):
        pixel = first_pixel + k.tid()
        x, image_row = pixel % in_w, pixel // in_w
        y, image = image_row % in_h, image_row // in_h
        cell_row = image * (in_h + 2 * CELL_BORDER) + y + CELL_BORDER
        cell = cell_row * pitch + x + CELL_BORDER
        row_cells.store(k.tid(), k.select(pixel < pixels, cell, _NO_CELL))
    k.barrier()

    def gradients(column: Val) -> tuple[Pointer, Val]:
        out = cursor["slice"] * plan.k + column
        return grad_y + (group * out_group + out), out < out_group

    def weights(row: Val, column: Val) -> tuple[Pointer, Val]:
        out = cursor["slice"] * plan.k + column
        weight_row = cursor["tap"] * in_group + (channel - group * in_group) + row
        at = k.mad_wide(weight_row, config.out_channels, k.convert(group * out_group + out, u64))
        return weight + at, (out < out_group) & (first_channel + row < config.segment)

    width = vector_width(dtype, out_group, plan.k)
    lists = _Lists(config, starts, order, corner_weights, cells, pitch, samples)
    producers = [
        _ListTile(
            k, a, lists, lambda: (offset_group, cursor["tap"]), row_cells, gradients,
            width=width, threads=plan.threads,
        ),
        DenseTile(k, b, weights, width=width, threads=plan.threads),
    ]  # fmt: skip
    multiply_all(k, cursor, producers, math)

    k.comment("each gradient is written once")

    def locate(row: Val) -> LocateColumn:
        pixel = first_pixel + row

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            in_channel = k.convert(channel + column + further, u64)
            at = k.mad_wide(pixel, config.in_channels, in_channel)
            exists = (pixel < pixels) & (first_channel + column + further < config.segment)
            return grad_x + at, exists

        return element

    store_rows(math, locate, dtype=config.float_type, extent=config.segment)


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
    for name, expected in (("z", _cells(sizes) + 1), ("s", output_pixels(sizes))):
        if sizes[name] != expected:
            raise ValueError(f"lists of {images} must have {name} = {expected}, got {sizes[name]}")


def _cells(sizes: Sizes) -> int:
    return sizes["n"] * (sizes["h"] + 2 * CELL_BORDER) * (sizes["w"] + 2 * CELL_BORDER)


def _known(config: DeformConvConfig) -> Sizes:
    return {**known(config), "f": config.offset_groups, "t": config.taps, "u": 4}


def _plan(config: DeformConvConfig, target: Target, sizes: Sizes | None) -> SamplePlan:
    """M are input pixels, N input channels of a segment, K output channels of a group.

    N covers a segment with one tile if it can: each further tile gathers the gradients again.
    """
    size = _product_type(config).bytes
    n = at_least(config.segment, 16, {2: 128, 4: 64, 8: 32}[size])
    k = at_least(config.out_channels_per_group, 32 // size, 64 // size)
    return SamplePlan(64, n, k, (4, 1) if n == 16 else (2, 2))


@dataclasses.dataclass(frozen=True, eq=False)
class _Lists:
    """The lists in global memory, as in the kernel's parameters.

    Attributes:
      config: the convolution.
      starts, order, weights: where they begin.
      cells, pitch: of all images, and in a row of one.
      samples: output pixels.
    """

    config: DeformConvConfig
    starts: Pointer
    order: Pointer
    weights: Pointer
    cells: Val
    pitch: Val
    samples: Val

    def of(self, offset_group: Val, tap: Val) -> tuple[Pointer, Pointer, Pointer]:
        """Where those of an offset group and tap begin."""
        k, config = self.starts.kernel, self.config
        list_index = offset_group * config.taps + tap
        first = k.mul_wide(tap, self.samples) * config.offset_groups
        return (
            self.starts + k.mul_wide(list_index, self.cells + 1),
            self.order + k.mul_wide(list_index, self.samples),
            self.weights + (first + k.convert(offset_group, u64)) * 4,
        )


class _ListTile:
    """Fills rows of A, an input pixel each, with sums over its lists.

    Args:
      k: the kernel.
      tile: A; its columns are output channels.
      lists: where the samples are.
      group_and_tap: () -> offset group and tap of the cursor's chunk.
      row_cells: in shared memory, the cell of each row, or `_NO_CELL`.
      locate: column of the tile -> where that channel of the first output pixel is, and a
        predicate: whether there is such a channel. Called for the first of `width` columns.
      width: channels that are loaded together.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        tile: SharedTile,
        lists: _Lists,
        group_and_tap: Callable[[], tuple[Val, Val]],
        row_cells: Pointer,
        locate: Callable[[Val], tuple[Pointer, Val]],
        *,
        width: int,
        threads: int,
    ):
        self.k, self.tile, self.lists, self.group_and_tap = k, tile, lists, group_and_tap
        self.row_cells, self.locate, self.width = row_cells, locate, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, self.step = k.tid() // across, threads // across

    def begin(self, stage: Stage, where: Val | None) -> None:
        k = self.k
        k.comment("sums over lists")
        with contextlib.nullcontext() if where is None else k.if_(where):
            lists = self.lists.of(*self.group_and_tap())
            gradients, channel_ok = self.locate(self.column)
            with k.loop(self.row, self.tile.layout.rows, self.step, name="row") as row:
                cell = self.row_cells.load(row)
                row_ok = channel_ok & cell.ne(_NO_CELL)
                values = self._sums(lists, gradients, cell, row_ok)
                store_vector(self.tile.at(stage, row, self.column), values)

    def finish(self, stage: Stage) -> None:
        """Nothing: `begin` has written to the stage, which nobody else was using."""

    def _sums(
        self, lists: tuple[Pointer, Pointer, Pointer], gradients: Pointer, cell: Val, where: Val
    ) -> list[Val]:
        """Sums over a pixel's samples; zeros where the predicate is off."""
        k, config = self.k, self.lists.config
        starts, order, weights = lists
        # A cell and the one to its left are neighbours in `order`: two runs of samples, the first
        # of cells beside the pixel, the second of those above. Lists may come from anywhere: what
        # they say is cut to what there is.
        beside, above = (
            self._run([(starts + at).load(i, where=where) for i in (-1, 0, 1)])
            for at in (cell, cell - self.lists.pitch)
        )
        first_run = beside[2] - beside[0]
        count = first_run + (above[2] - above[0])
        to_above = above[0] - first_run
        totals = [k.var(weights.dtype, 0.0) for _ in range(self.width)]
        with k.loop(0, count, _UNROLL, name="sample") as first:
            found = []
            for i in range(_UNROLL):
                index = first + i
                more, in_first = index < count, index < first_run
                at = index + k.select(in_first, beside[0], to_above)
                left = at < k.select(in_first, beside[1], above[1])
                corner = k.select(in_first, 0, 2, u32) + k.select(left, 1, 0, u32)
                found.append((order.load(at, where=more), corner, more))
            loaded = []
            for entry, corner, more in found:
                sample = k.min(entry, self.lists.samples - 1)
                address = gradients + k.mul_wide(sample, config.out_channels)
                words = load_words(address, self.width, where=more)
                at = k.mad_wide(sample, 4 * config.offset_groups, k.convert(corner, u64))
                loaded.append((weights.load(at, where=more), widen(k, words)))
            for weight, values in loaded:
                for total, value in zip(totals, values, strict=True):
                    total.set(k.fma(weight, value, total))
        return [total.value() for total in totals]

    def _run(self, starts: list[Val]) -> list[Val]:
        """Where two cells' samples start, and the last ones end, within a list that is sorted."""
        k = self.k
        first, second, end = (k.min(start, self.lists.samples) for start in starts)
        return [first, second, k.max(first, end)]


BACKWARD_INPUT_GATHER = KernelDefinition(
    name="deform_conv_backward_input_gather",
    configs=CONFIGS,
    parameters=(
        *(In("starts", "f t z", u32), In("order", "f t s", u32)),
        In("corner_weights", "t s f u", accumulator_type),
        *(In("weight", "i j e o", _product_type), GRAD_Y, Out("grad_x", "n h w c")),
        *(*SIZES[:3], Size("samples", lambda instance: instance.sizes["s"])),
    ),
    known=_known,
    plan=_plan,
    check=_check,
    grid=_grid,
    entry=entry("backward_input_gather"),
    body=_body,
)
