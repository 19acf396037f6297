"""The kernels backward to input, and to offset and mask, for everything: tiles in shared memory.

Both form the gradients of the sampled values, `gcol = grad_y @ weights^T`, tile by tile, and never
store them.
"""

from __future__ import annotations

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.gather import corner_places
from ptx.kernels.deform_conv.gradients import OffsetGradients
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.sampling import Offsets, Sampler
from ptx.tile.dense import DenseTile
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.plan import make_math
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import load_words, vector_width, widen

__all__ = ["tiled_backward_input", "tiled_backward_offset"]


def tiled_backward_offset(
    k: Kernel,
    config: DeformConvConfig,
    plan: SamplePlan,
    x: Pointer,
    weight: Pointer,
    grad_y: Pointer,
    offsets: Offsets,
    gradients: OffsetGradients,
) -> None:
    """Writes the gradients to offset and mask: a lane has some channels of each of its pixels."""
    kernel = _BackwardData(k, config, plan, weight, grad_y, offsets)
    math = kernel.math
    zero_rows = [[k.var(math.accumulator, 0.0) for _ in range(4)] for _ in math.rows()]

    def start() -> None:
        for dot in (dot for dots in zero_rows for dot in dots):
            dot.set(0.0)

    def tile(first_channel: Val, channels: Val, tap: Val) -> None:
        k.comment("the dots of gcol with the four corners")
        for dots, row in zip(zero_rows, math.rows(), strict=True):
            sample = kernel.sampler.read(row.row, tap)
            for column, sums in row.parts:
                width = vector_width(config.float_type, len(sums), config.segment)
                for i in range(0, len(sums), width):
                    places = corner_places(
                        x, sample, first_channel + column + i, config.in_channels,
                        kernel.sizes.in_w,
                    )  # fmt: skip
                    there = column + i < channels
                    for dot, place, inside in zip(dots, places, sample.inside, strict=True):
                        words = load_words(place, width, where=inside & there)
                        for value, total in zip(widen(k, words), sums[i : i + width], strict=True):
                            dot.set(k.fma(value, total, dot))

    def end(group: Val, tap: Val) -> None:
        k.comment("sum over the lanes that share a row; one of them writes")
        writer = (k.laneid() & sum(math.row_lanes)).eq(0)
        for dots, row in zip(zero_rows, math.rows(), strict=True):
            for dot in dots:
                for mask in math.row_lanes:
                    dot += k.shuffle("bfly", dot, mask)
            sample = kernel.sampler.read(row.row, tap - kernel.first_tap)
            pixel = kernel.first_pixel + row.row
            where = writer & (pixel < kernel.sizes.pixels) & (tap < config.taps)
            gradients.store(
                offsets.index(pixel, group, tap), dots, sample.ly, sample.lx, sample.mask, where
            )

    kernel.run(start, tile, end)


def tiled_backward_input(
    k: Kernel,
    config: DeformConvConfig,
    plan: SamplePlan,
    weight: Pointer,
    grad_y: Pointer,
    offsets: Offsets,
    grad_x: Pointer,
) -> None:
    """Adds gcol to the four corners of each sample."""
    kernel = _BackwardData(k, config, plan, weight, grad_y, offsets)
    math = kernel.math

    def tile(first_channel: Val, channels: Val, tap: Val) -> None:
        k.comment("add gcol to the four corners")
        for row in math.rows():
            sample = kernel.sampler.read(row.row, tap)
            weights = [k.convert(w * sample.mask, math.accumulator, "rn") for w in sample.weights()]
            for column, sums in row.parts:
                places = corner_places(
                    grad_x, sample, first_channel + column, config.in_channels, kernel.sizes.in_w
                )
                for weight, place, inside in zip(weights, places, sample.inside, strict=True):
                    for i, total in enumerate(sums):
                        there = inside & (column + i < channels)
                        place.red(i, weight * total, where=there)

    kernel.run(lambda: None, tile, lambda group, tap: None)


class _BackwardData:
    """What both kernels have in common: gcol, for each offset group, tap and tile of channels."""

    def __init__(
        self,
        k: Kernel,
        config: DeformConvConfig,
        plan: SamplePlan,
        weight: Pointer,
        grad_y: Pointer,
        offsets: Offsets,
    ):
        self.k, self.config, self.plan = k, config, plan
        self.weight, self.grad_y, self.sizes = weight, grad_y, offsets.geometry
        dtype = config.float_type
        self.first_pixel = k.ctaid("x") * plan.m
        a = SharedTile.make(k, "a_tile", dtype, k_extent=plan.k, extent=plan.m, k_axis=1)
        b = SharedTile.make(k, "b_tile", dtype, k_extent=plan.k, extent=plan.n, k_axis=1)
        self.math = make_math(k, config, a, b, plan)
        taps = Sampler.taps_that_fit(config, plan.m)
        self.sampler = Sampler(offsets, rows=plan.m, taps=taps, threads=plan.threads)

        self.cursor = Cursor(k, slice=-(-config.out_channels_per_group // plan.k))
        self.group, self.tap = k.var(u32, 0, "group"), k.var(u32, 0, "tap")
        self.first_tap = k.var(u32, 0, "first_tap")
        self.channel = k.var(u32, 0, "channel")  # of the tile's first, in all channels
        self.channels = k.var(u32, 0, "channels")  # of the tile
        width = vector_width(dtype, config.out_channels_per_group, plan.k)
        self.producers = [
            DenseTile(k, a, self._gradients, width=width, threads=plan.threads),
            DenseTile(k, b, self._weights, width=width, threads=plan.threads),
        ]

    def run(self, start, tile, end) -> None:
        """Goes through all taps and tiles of channels of the block's offset group.

        Args:
          start: called before the tiles of a tap.
          tile: called with gcol in `math`: (first channel, channels of the tile, tap in sampler).
          end: called after the tiles of a tap: (offset group, tap).
        """
        k, config, plan = self.k, self.config, self.plan
        offset_group = k.ctaid("y")
        per_group, segment = config.channels_per_offset_group, config.segment
        with k.loop(0, config.taps, self.sampler.tap_count, name="first_tap") as first_tap:
            self.first_tap.set(first_tap)
            self.sampler.fill(self.first_pixel, offset_group, first_tap)
            k.barrier()
            with k.loop(self.sampler.tap_count, name="tap") as tap:
                self.tap.set(first_tap + tap)
                start()
                with (
                    k.loop(per_group // segment, name="segment") as number,
                    k.loop(0, segment, plan.n, name="tile") as done,
                ):
                    self.channel.set(offset_group * per_group + number * segment + done)
                    self.group.set(self.channel // config.in_channels_per_group)
                    self.channels.set(k.min(segment - done, plan.n))
                    self.math.clear()
                    multiply_all(k, self.cursor, self.producers, self.math)
                    tile(self.channel, self.channels, tap)
                end(offset_group, self.tap)
            k.barrier()

    def _gradients(self, row: Val, column: Val) -> tuple[Pointer, Val]:
        k, config = self.k, self.config
        out = self.cursor["slice"] * self.plan.k + column
        pixel = self.first_pixel + row
        channel = self.group * config.out_channels_per_group + out
        at = k.mad_wide(pixel, config.out_channels, k.convert(channel, u64))
        there = (out < config.out_channels_per_group) & (pixel < self.sizes.pixels)
        return self.grad_y + at, there

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
        there = (out < config.out_channels_per_group) & (row < self.channels)
        if config.taps % self.sampler.tap_count:
            there = there & (self.tap < config.taps)
        return self.weight + at, there
