"""Backward to input, and to offset and mask, for any configuration: tiles in shared memory.

Both form the gradients of the sampled values, `gcol = grad_y @ weights^T`, tile by tile, and never
store them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.corners import PixelRange
from ptx.kernels.deform_conv.samples.gradients import store_gradients
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.samples.tables import Sample, SampleTable
from ptx.tile.dense import DenseTile
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.plan import make_product
from ptx.tile.vectors import add_weighted, any_infinite, load_elements, vector_width

__all__ = ["tiled_backward_input", "tiled_backward_offset"]


def tiled_backward_offset(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    """Writes the gradients to offset and mask: a lane has some channels of each of its pixels."""
    columns = _Columns(k, config, plan, p)
    math = columns.math
    dots_of_rows = [[k.var(math.accumulator, 0.0) for _ in range(4)] for _ in math.rows()]
    with columns.taps() as tap:
        for dot in (dot for dots in dots_of_rows for dot in dots):
            dot.set(0.0)
        with columns.tiles():
            k.comment("the dots of gcol with the four corners")
            for dots, row in zip(dots_of_rows, math.rows(), strict=True):
                sample = columns.sample(tap, row.row)
                for column, sums in row.parts:
                    width = vector_width(config.float_type, len(sums), config.segment)
                    for i in range(0, len(sums), width):
                        corners = columns.corners(sample, p.x, column, i)
                        channels_ok = column + i < columns.channels
                        values = sums[i : i + width]
                        for dot, address, inside in zip(dots, corners, sample.inside, strict=True):
                            elements = load_elements(address, width, where=inside & channels_ok)
                            for element, value in zip(elements, values, strict=True):
                                dot.set(k.fma(element, value, dot))
        k.comment("sum over the lanes that share a row; one of them writes")
        writer = (k.laneid() & sum(math.row_lanes)).eq(0)
        for dots, row in zip(dots_of_rows, math.rows(), strict=True):
            for dot in dots:
                for mask in math.row_lanes:
                    dot += k.shuffle("bfly", dot, mask)
            sample = columns.sample(columns.tap - columns.first_tap, row.row)
            pixel, pixel_ok = columns.pixels.index(row.row)
            where = writer & pixel_ok & (columns.tap < config.taps)
            index = columns.offsets.index(pixel, k.ctaid("y"), columns.tap)
            store_gradients(p, index, dots, sample, where)


def tiled_backward_input(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    """Adds gcol to the four corners of each sample."""
    columns = _Columns(k, config, plan, p)
    math = columns.math
    with columns.taps() as tap, columns.tiles():
        k.comment("add gcol to the four corners")
        for row in math.rows():
            sample = columns.sample(tap, row.row)
            weights = columns.table.weights(sample)
            for column, sums in row.parts:
                corners = columns.corners(sample, p.grad_x, column)
                infinite = any_infinite(sums)
                for factor, address, inside in zip(weights, corners, sample.inside, strict=True):
                    for i, value in enumerate(sums):
                        where = inside & (column + i < columns.channels)
                        add_weighted(address + i, factor, [value], infinite, where=where)


class _Columns:
    """gcol of a block's pixels and offset group, tile by tile.

    Attributes:
      tap: the tap that `taps` is at, of all; `first_tap` is the first one whose samples are kept.
      channel, channels: the first channel, of all, of the tile that `tiles` is at, and the number
        of its channels.
    """

    def __init__(self, k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any):
        self.k, self.config, self.plan, self.p = k, config, plan, p
        self.offsets = offsets = Offsets.of(k, config, p)
        self.pixels = PixelRange(
            offsets.geometry, k.ctaid("x") * plan.m, rows=plan.m, threads=plan.threads
        )
        a, b, self.math = make_product(k, config, plan, k_axis=1)
        taps = plan.table_taps(config)
        self.table = SampleTable(offsets, rows=plan.m, taps=taps)

        self.cursor = Cursor(k, slice=-(-config.out_channels_per_group // plan.k))
        self.group, self.tap = k.var(u32, 0, "group"), k.var(u32, 0, "tap")
        self.first_tap = k.var(u32, 0, "first_tap")
        self.channel = k.var(u32, 0, "channel")
        self.channels = k.var(u32, 0, "channels")
        width = vector_width(config.float_type, config.out_channels_per_group, plan.k)
        self.producers = [
            DenseTile(k, a, self._gradients, width=width, threads=plan.threads),
            DenseTile(k, b, self._weights, width=width, threads=plan.threads),
        ]

    @contextlib.contextmanager
    def taps(self) -> Iterator[Val]:
        """Writes the loops over all taps, which are counted from `first_tap`."""
        k, table = self.k, self.table
        with k.loop(0, self.config.taps, table.taps, name="first_tap") as first_tap:
            self.first_tap.set(first_tap)
            table.fill(self.pixels, k.ctaid("y"), first_tap)
            k.barrier()
            with k.loop(table.taps, name="tap") as tap:
                self.tap.set(first_tap + tap)
                yield tap
            k.barrier()

    @contextlib.contextmanager
    def tiles(self) -> Iterator[None]:
        """Writes the loops over a tap's tiles of channels; gcol of each is in `math`."""
        k, config, plan, offset_group = self.k, self.config, self.plan, self.k.ctaid("y")
        per_group, length = config.channels_per_offset_group, config.segment
        with (
            k.loop(per_group // length, name="segment") as segment,
            k.loop(0, length, plan.n, name="tile") as done,
        ):
            self.channel.set(offset_group * per_group + segment * length + done)
            self.group.set(self.channel // config.in_channels_per_group)
            self.channels.set(k.min(length - done, plan.n))
            self.math.clear()
            multiply_all(k, self.cursor, self.producers, self.math)
            yield

    def sample(self, tap: Val, row: Val) -> Sample:
        """The sample of a tap, counted from `first_tap`, and a row."""
        return self.table.load(tap * self.plan.m + row)

    def corners(
        self, sample: Sample, array: Pointer, column: Val, further: int = 0
    ) -> list[Pointer]:
        """The addresses of a sample's corners in an array, at a column of the tile of channels."""
        channel = self.channel + column + further
        return self.offsets.corner_addresses(array, sample.corner, channel)

    def _gradients(self, row: Val, column: Val) -> tuple[Pointer, Val]:
        k, config = self.k, self.config
        out = self.cursor["slice"] * self.plan.k + column
        pixel, pixel_ok = self.pixels.index(row)
        channel = self.group * config.out_channels_per_group + out
        at = k.mad_wide(pixel, config.out_channels, k.convert(channel, u64))
        where = (out < config.out_channels_per_group) & pixel_ok
        return self.p.grad_y + at, where

    def _weights(self, row: Val, column: Val) -> tuple[Pointer, Val]:
        k, config = self.k, self.config
        out = self.cursor["slice"] * self.plan.k + column
        in_group = config.in_channels_per_group
        channel = self.channel - self.group * in_group + row
        at = k.mad_wide(
            self.tap * in_group + channel,
            config.out_channels,
            k.convert(self.group * config.out_channels_per_group + out, u64),
        )
        where = (out < config.out_channels_per_group) & (row < self.channels)
        if config.taps % self.table.taps:
            where = where & (self.tap < config.taps)
        return self.p.weight + at, where
