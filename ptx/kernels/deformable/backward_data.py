"""Backward to input, and to offset and mask: grad_y @ weights^T, and what is made of it.

Both kernels form the gradients of the sampled values, `gcol`, tile by tile, and never store them.
"""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.dtypes import u32, u64
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.kernels.deformable.gather import corner_places
from ptx.kernels.deformable.plan import THREADS, backward_data_plan, make_math
from ptx.kernels.deformable.sampling import Geometry, Offsets, Sample, Sampler
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.targets import TARGETS, Target
from ptx.tile.dense import DenseTile
from ptx.tile.pipeline import Cursor, multiply_all
from ptx.tile.shared import SharedTile
from ptx.tile.vectors import accumulator_of, load_words, vector_width, widen

__all__ = [
    "backward_input_launch",
    "backward_offset_launch",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
]


def generate_deformable_conv_backward_offset_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to offset and mask.

    Parameters: input [N, H, W, C], offset, mask if there is one, weight [T, C/G, Co], grad_output
    [N, P, Q, Co], grad_offset, grad_mask if there is a mask, and the u32 batch_size, in_h, in_w,
    out_h, out_w. A block has some pixels (grid x) of one offset group (grid y), and writes each
    gradient once.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    kernel = _BackwardData(config, target, "offset")
    k, math = kernel.k, kernel.math
    zero_rows = [[k.var(math.accumulator, 0.0) for _ in range(4)] for _ in math.rows()]

    def start() -> None:
        for dot in (dot for dots in zero_rows for dot in dots):
            dot.set(0.0)

    def tile(first_channel: Val, channels: Val, tap: Val) -> None:
        k.comment("the dots of gcol with the four corners")
        assert kernel.x is not None
        for dots, row in zip(zero_rows, math.rows(), strict=True):
            sample = kernel.sampler.read(row.row, tap)
            for column, sums in row.parts:
                width = vector_width(config.float_type, len(sums), config.segment)
                for i in range(0, len(sums), width):
                    places = corner_places(
                        kernel.x, sample, first_channel + column + i, config.in_channels,
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
            at = k.mad_wide(pixel, config.mask_channels, k.convert(group * config.taps + tap, u64))
            kernel.write_gradients(sample, dots, at, where)

    kernel.run(start, tile, end)
    return k.text()


def generate_deformable_conv_backward_input_ptx(
    config: DeformableConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the input, which is added to what grad_input holds.

    Parameters: offset, mask if there is one, weight [T, C/G, Co], grad_output [N, P, Q, Co],
    grad_input [N, H, W, C] in f32 (f64 for f64), and the u32 batch_size, in_h, in_w, out_h, out_w.
    A block has some pixels (grid x) of one offset group (grid y). The order of the additions is
    not fixed.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    kernel = _BackwardData(config, target, "input")
    k, math = kernel.k, kernel.math
    grad_x = kernel.grad_x
    assert grad_x is not None

    def tile(first_channel: Val, channels: Val, tap: Val) -> None:
        k.comment("add gcol to the four corners")
        for row in math.rows():
            sample = kernel.sampler.read(row.row, tap)
            weights = [kernel.narrow(w * sample.mask) for w in sample.weights()]
            for column, sums in row.parts:
                places = corner_places(
                    grad_x, sample, first_channel + column, config.in_channels, kernel.sizes.in_w
                )
                for weight, place, inside in zip(weights, places, sample.inside, strict=True):
                    for i, total in enumerate(sums):
                        there = inside & (column + i < channels)
                        place.red(i, weight * total, where=there)

    kernel.run(lambda: None, tile, lambda group, tap: None)
    return k.text()


class _BackwardData:
    """What both kernels have in common: gcol, for each offset group, tap and tile of channels."""

    def __init__(self, config: DeformableConvConfig, target: Target | str, what: str):
        config.validate()
        self.config = config
        target = TARGETS[target] if isinstance(target, str) else target
        self.plan = plan = backward_data_plan(config)
        name = f"{config.float_type}_{config.kernel_h}x{config.kernel_w}"
        self.k = k = Kernel(
            f"deformable_conv_backward_{what}_{name}", target, block=THREADS, min_blocks=2
        )
        dtype = config.float_type
        self.x = k.pointer("input", dtype, readonly=True) if what == "offset" else None
        offset, mask = Offsets.declare(k, config)
        self.weight = k.pointer("weight", dtype, readonly=True)
        self.grad_y = k.pointer("grad_output", dtype, readonly=True)
        self.grad_x = self.grad_offset = self.grad_mask = None
        if what == "input":
            self.grad_x = k.pointer("grad_input", accumulator_of(dtype))
        else:
            self.grad_offset = k.pointer("grad_offset", offset.dtype)
            self.grad_mask = None if mask is None else k.pointer("grad_mask", mask.dtype)
        self.sizes = Geometry.declare(k)
        self.first_pixel = k.ctaid("x") * plan.m
        a = SharedTile.make(k, "a_tile", dtype, k_extent=plan.k, extent=plan.m, k_axis=1)
        b = SharedTile.make(k, "b_tile", dtype, k_extent=plan.k, extent=plan.n, k_axis=1)
        self.math = make_math(k, config, a, b, plan)
        taps = Sampler.taps_that_fit(config, plan.m, 12 * 1024)
        offsets = Offsets(k, config, self.sizes, offset, mask)
        self.sampler = Sampler(offsets, rows=plan.m, taps=taps, threads=THREADS)

        self.cursor = Cursor(k, slice=-(-config.out_channels_per_group // plan.k))
        self.group, self.tap = k.var(u32, 0, "group"), k.var(u32, 0, "tap")
        self.first_tap = k.var(u32, 0, "first_tap")
        self.channel = k.var(u32, 0, "channel")  # of the tile's first, in all channels
        self.channels = k.var(u32, 0, "channels")  # of the tile
        width = vector_width(dtype, config.out_channels_per_group, plan.k)
        self.producers = [
            DenseTile(k, a, self._gradients, width=width, threads=THREADS),
            DenseTile(k, b, self._weights, width=width, threads=THREADS),
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

    def narrow(self, value: Val) -> Val:
        """A value of the coordinates' type as one of the sums' type."""
        dtype = self.math.accumulator
        return value if value.dtype is dtype else self.k.convert(value, dtype, "rn")

    def write_gradients(self, sample: Sample, dots, at: Val, where: Val) -> None:
        """Writes the gradients to one offset pair and its mask value, from the four dots."""
        k = self.k
        ly, lx, mask = (self.narrow(v) for v in (sample.ly, sample.lx, sample.mask))
        d1, d2, d3, d4 = dots
        hy, hx = 1.0 - ly, 1.0 - lx
        grad_y = mask * k.fma(hx, d3 - d1, lx * (d4 - d2))
        grad_x = mask * k.fma(hy, d2 - d1, ly * (d4 - d3))
        assert self.grad_offset is not None
        pair = (self.grad_offset + at) + at
        for i, value in enumerate((grad_y, grad_x)):
            pair.store(i, self._as(value, pair), where=where)
        if self.grad_mask is not None:
            upper, lower = k.fma(hx, d1, lx * d2), k.fma(hx, d3, lx * d4)
            place = self.grad_mask + at
            place.store(0, self._as(k.fma(hy, upper, ly * lower), place), where=where)

    def _as(self, value: Val, place: Pointer) -> Val:
        return value if value.dtype is place.dtype else self.k.convert(value, place.dtype, "rn")

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


def backward_offset_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for x, offset, weight, mask, grad_y, grad_offset and grad_mask."""
    mask = ["mask"] * config.use_modulation
    names = ["x", "offset", "weight", *mask, "grad_y", "grad_offset"]
    order = ["x", "offset", *mask, "weight", "grad_y", "grad_offset"]
    grad_mask = ["grad_mask"] * config.use_modulation
    return _launch(config, shapes, [*names, *grad_mask], [*order, *grad_mask], shapes[0])


def backward_input_launch(config: DeformableConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for offset, weight, mask, grad_y, zeros and grad_x, which share memory."""
    mask = ["mask"] * config.use_modulation
    names = ["offset", "weight", *mask, "grad_y", "zeros", "grad_x"]
    order = ["offset", *mask, "weight", "grad_y", "grad_x"]
    return _launch(config, shapes, names, order, shapes[-1])


def _launch(config, shapes: Shapes, names: list[str], order: list[str], image) -> Launch:
    plan = backward_data_plan(config)
    images, out_h, out_w, _ = shapes[names.index("grad_y")]
    numbers = [np.uint32(size) for size in (images, image[1], image[2], out_h, out_w)]
    tiles = -(-images * out_h * out_w // plan.m)
    arguments = [*(Address(names.index(name)) for name in order), *numbers]
    return Launch((tiles, config.offset_groups, 1), (THREADS, 1, 1), tuple(arguments))
