"""Shared parts of the three direct kernels, for layers of tiny groups, in ordinary arithmetic.

A thread has whole groups, and a strip of neighbouring pixels of a row: a pixel that it reads is
used by several taps, and a weight by all pixels of the strip. Weights are [T, C/G, Co] in all three
kernels, so that those of neighbouring channels lie together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import s32, u32
from ptx.kernels.conv.config import ConvConfig
from ptx.tile.direct import DirectPlan, add_product
from ptx.tile.pixels import Geometry
from ptx.tile.vectors import load_elements

__all__ = [
    "PIXELS",
    "PixelRow",
    "TapLine",
    "TapWeights",
    "direct_plan",
    "direct_weight_plan",
    "is_direct",
    "outputs_of",
    "products_of",
    "strip_count",
    "strips_of",
]

PIXELS = 4  # of a strip
_TINY = 4
_SPAN = 32  # taps of a row whose products are written one by one


def is_direct(config: ConvConfig) -> bool:
    """Whether the kernels for layers of tiny groups are chosen, which have no tiles.

    A tile has 16 channels of one group at least, and multiplies them all, whether they exist or
    not; a thread of the direct kernels has channels of several groups, but multiplies without
    tensor cores. Instructions of bf16 on sm_80 for each input channel, tap and output pixel,
    counted by the emulator, direct against tiled:

    | C/G x Co/G | forward | to input | to weights |
    |---|---|---|---|
    | 1 x 1 | 6 : 364 | 6 : 372 | 6 : 237 |
    | 1 x 1, 7x7 | 4 : 105 | 4 : 112 | 5 : 69 |
    | 1 x 1, stride 2 | 14 : 485 | 20 : 2862 | 12 : 431 |
    | 1 x 4 | 12 : 353 | 17 : 181 | 16 : 172 |
    | 2 x 2 | 8 : 101 | 8 : 102 | 9 : 65 |
    | 4 x 4 | 12 : 44 | 12 : 44 | 19 : 29 |
    | 8 x 8 | 16 : 20 | 16 : 20 | 23 : 19 |

    At 8 x 8 tensor cores do as well. Of f32 at 4 x 4 forward is 6 : 42, and of f64 7 : 53.
    """
    return max(config.in_channels_per_group, config.out_channels_per_group) <= _TINY


def direct_plan(config: ConvConfig) -> DirectPlan:
    """The plan of a direct kernel, forward or backward to input.

    A thread has whole groups: 16 bytes of inputs and of outputs at most, unless one group has more.
    """
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    most = max(1, 16 // (config.float_type.bytes * max(in_group, out_group)))
    groups = max(n for n in range(1, most + 1) if config.groups % n == 0)
    # The weights of a tap take registers.
    min_blocks = 4 if in_group * out_group <= _TINY else 3
    return DirectPlan(groups * in_group, config.groups // groups, min_blocks=min_blocks)


def direct_weight_plan(config: ConvConfig) -> DirectPlan:
    """The plan of the direct kernel backward to the weights, whose sums in f64 take registers."""
    min_blocks = 3 if config.float_type.bytes < 8 else 2
    return dataclasses.replace(direct_plan(config), min_blocks=min_blocks)


def outputs_of(config: ConvConfig, plan: DirectPlan) -> int:
    """The output channels of a thread."""
    return plan.channels // config.in_channels_per_group * config.out_channels_per_group


def strip_count(images: int, height: int, width: int) -> int:
    """The number of strips of all images."""
    return images * height * -(-width // PIXELS)


def strips_of(sizes: Geometry, height: Val, width: Val) -> Geometry:
    """A geometry whose outputs' pixels are the strips of images of this height and width."""
    across = (width + (PIXELS - 1)) // PIXELS
    return dataclasses.replace(
        sizes, out_h=height, out_w=across, pixels=sizes.images * height * across
    )


def products_of(config: ConvConfig, plan: DirectPlan) -> list[tuple[int, int, int]]:
    """Lists a thread's products of a tap: (input channel, output channel, index of the weight).

    Weights are in the order of `TapWeights.load`: those of the group's first input channel for all
    outputs, then those of the next one.
    """
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    outputs = outputs_of(config, plan)
    return [
        (group * in_group + i, group * out_group + o, i * outputs + group * out_group + o)
        for group in range(plan.channels // in_group)
        for i in range(in_group)
        for o in range(out_group)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class PixelRow:
    """A row of the images that a thread reads.

    Attributes:
      address: where the thread's first channel of the first column lies, which may be outside.
      column: the index of the first column: s32.
      width: the number of columns of the image: u32.
      row_ok: whether the image has the row.
      pitch: elements from a column to the next.
      channels: the number of channels that the thread reads.
    """

    address: Pointer
    column: Val
    width: Val
    row_ok: Val
    pitch: int
    channels: int

    def load(self, column: int) -> list[Val]:
        """The channels of a column, counted from the first one; zeros outside of the image."""
        k = self.address.kernel
        inside = k.bitcast(self.column + column, u32) < self.width  # what is negative becomes large
        address = self.address + column * self.pitch
        return load_elements(address, self.channels, where=inside & self.row_ok)

    def moved(self, columns: Val) -> PixelRow:
        """The same row, whose first column is so many columns further on: s32."""
        address = self.address + self.address.kernel.mul_wide(columns, self.pitch)
        return dataclasses.replace(self, address=address, column=self.column + columns)


@dataclasses.dataclass(frozen=True, eq=False)
class TapWeights:
    """The weights of a thread's channels, for some taps.

    Attributes:
      address: where the weight of the first tap, of the group's first input channel and of the
        thread's first output lies.
      outputs: the output channels of the thread.
      in_group: the input channels of a group.
      channel: elements from an input channel to the next.
      tap: elements from a tap to the next.
    """

    address: Pointer
    outputs: int
    in_group: int
    channel: int
    tap: int

    @staticmethod
    def of(config: ConvConfig, plan: DirectPlan, address: Pointer, step: int = 1) -> TapWeights:
        """The weights of every `step`-th tap, from the one at an address on."""
        in_group, channel = config.in_channels_per_group, config.out_channels
        tap = step * in_group * channel
        return TapWeights(address, outputs_of(config, plan), in_group, channel, tap)

    def load(self, tap: int) -> list[Val]:
        """A tap's weights, in the order of `products_of`."""
        rows = [self.address + (tap * self.tap + i * self.channel) for i in range(self.in_group)]
        return [value for row in rows for value in load_elements(row, self.outputs)]

    def moved(self, taps: Val) -> TapWeights:
        """The weights from so many taps further on."""
        k = self.address.kernel
        return dataclasses.replace(self, address=self.address + k.mul_wide(taps, self.tap))


@dataclasses.dataclass(frozen=True)
class TapLine:
    """Taps along a row: tap t of pixel p of a strip reads column `p * scale + first + t * step`.

    Attributes:
      taps: the number of taps.
      scale: columns from a pixel to the next.
      step: columns from a tap to the next.
      first: the column that the first tap of the strip's first pixel reads.
    """

    taps: int
    scale: int
    step: int
    first: int = 0

    def columns(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Goes through the columns that are read, each with the (pixel, tap) pairs that read it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for tap in range(self.taps):
            for pixel in range(PIXELS):
                column = pixel * self.scale + self.first + tap * self.step
                found.setdefault(column, []).append((pixel, tap))
        # In the order of taps: a weight is needed for few columns in a row.
        yield from sorted(found.items(), reverse=self.step < 0)

    def multiply(
        self,
        k: Kernel,
        row: PixelRow,
        weights: TapWeights,
        products: Sequence[tuple[int, int, int]],
        sums: Sequence[Sequence[Var]],
    ) -> None:
        """Adds a row's products to the sums of each pixel.

        Args:
          k: the kernel.
          row: what is read; columns are counted from its first one.
          weights: the weights of these taps.
          products: for each product of a tap: (channel of the row, index of the sum, index of the
            weight).
          sums: the sums of each pixel of the strip.
        """
        if not self.taps:
            return
        span = max(n for n in range(1, min(self.taps, _SPAN) + 1) if self.taps % n == 0)
        part = dataclasses.replace(self, taps=span)
        if span == self.taps:
            part._multiply(row, weights.load, products, sums)
            return
        with k.loop(0, self.taps, span, name="tap_x", unroll=False) as tap:
            moved = row.moved(k.bitcast(tap, s32) * self.step)
            part._multiply(moved, weights.moved(tap).load, products, sums)

    def _multiply(
        self,
        row: PixelRow,
        load: Callable[[int], list[Val]],
        products: Sequence[tuple[int, int, int]],
        sums: Sequence[Sequence[Var]],
    ) -> None:
        weights: dict[int, list[Val]] = {}
        for column, readers in self.columns():
            values = row.load(column)
            for pixel, tap in readers:
                if tap not in weights:
                    weights[tap] = load(tap)
                for source, target, weight in products:
                    add_product(sums[pixel][target], values[source], weights[tap][weight])
