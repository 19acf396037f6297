"""Shared parts of the four direct kernels, for layers of tiny groups, in ordinary arithmetic.

A thread has a pixel and a few neighbouring channels. It calculates positions in registers, and
keeps the sums of its own groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.samples.positions import Offsets, Position, interpolate
from ptx.tile.pixels import OutputPixel
from ptx.tile.vectors import accumulator_of, load_elements, load_words, vector_width, widen

__all__ = ["Corners", "Outputs", "OutputsOfChannels", "inside_of", "weights_of"]


class Corners:
    """The four corners of samples in an array like the images [N, H, W, C].

    Args:
      offsets: the source of the positions.
      array: the array's first pixel, at the channel of interest.
    """

    def __init__(self, offsets: Offsets, array: Pointer):
        self.k, self.array, self.offsets = offsets.k, array, offsets
        self.channels = offsets.config.in_channels
        self.pitch = self.channels * array.dtype.bytes
        self.below = self.k.mul_wide(offsets.geometry.in_w, self.pitch)

    def addresses(self, pixel: OutputPixel, position: Position) -> list[Pointer]:
        """The addresses of a sample's corners; only those inside may be accessed."""
        corner = self.offsets.corner(pixel, position)
        first = self.array.add_bytes(self.k.mul_wide(corner, self.pitch))
        below = first.add_bytes(self.below)
        return [first, first + self.channels, below, below + self.channels]

    def load(
        self, pixel: OutputPixel, position: Position, channels: int, where: Val
    ) -> list[list[Val]]:
        """The four corners' channels, 0 outside of the image or where the predicate is off."""
        k, dtype = self.k, self.array.dtype
        width = vector_width(dtype, channels)
        corners = []
        for address, inside in zip(
            self.addresses(pixel, position), inside_of(position, where), strict=True
        ):
            words: list[Val] = []
            for i in range(0, channels, width):
                words += load_words(address + i, width, where=inside)
            corners.append(words)
        return [widen(k, words) for words in corners]

    def sample(
        self, pixel: OutputPixel, position: Position, channels: int, where: Val
    ) -> list[Val]:
        """The sampled channels, with the mask."""
        loaded = self.load(pixel, position, channels, where)
        return interpolate(weights_of(self.k, position, self.array), loaded)


def inside_of(position: Position, where: Val) -> Iterable[Val]:
    """Predicates: which corners are inside, and the thread has something to do."""
    rows = [row & where for row in position.inside_y]
    return [row & column for row in rows for column in position.inside_x]


def weights_of(k: Kernel, position: Position, array: Pointer) -> list[Val]:
    """The corners' weights, with the mask, in the type that the array is calculated with."""
    dtype = accumulator_of(array.dtype)
    return [k.convert(weight, dtype, "rn") for weight in position.weights()]


@dataclasses.dataclass(frozen=True, eq=False)
class Outputs:
    """Neighbouring outputs that some of a thread's channels are multiplied with.

    Attributes:
      first: the index of the first one among all.
      count: the number of outputs.
      base: the index of the first channel in its group.
      rows: for each of the group's channels from there: (index among the thread's channels, index
        of its group's first output among these), for each group.
    """

    first: Val
    count: int
    base: Val | int
    rows: Sequence[Sequence[tuple[int, int]]]


class OutputsOfChannels:
    """The outputs of the groups that a thread's channels belong to, and their gradients.

    Args:
      k: the kernel.
      config: the convolution.
      channel: the thread's first channel, a multiple of `count`.
      count: the number of neighbouring channels, which need be neither whole groups nor of one.
    """

    def __init__(self, k: Kernel, config: DeformConvConfig, channel: Val, count: int):
        self.k, self.config, self.count = k, config, count
        in_group, self.out_group = config.in_channels_per_group, config.out_channels_per_group
        if count % in_group == 0:
            groups = range(count // in_group)
            rows = [
                [(g * in_group + row, g * self.out_group) for g in groups]
                for row in range(in_group)
            ]
            first = channel // in_group * self.out_group
            self.outputs = [Outputs(first, len(groups) * self.out_group, 0, rows)]
            return
        shared = max(s for s in range(1, in_group + 1) if count % s == 0 and in_group % s == 0)
        self.outputs = []
        for start in range(0, count, shared):
            group = (channel + start) // in_group
            rows = [[(start + row, 0)] for row in range(shared)]
            base = (channel + start) % in_group
            self.outputs.append(Outputs(group * self.out_group, self.out_group, base, rows))

    def load(self, grad_y: Pointer, pixel: Val, where: Val) -> list[list[Val]]:
        """The gradients of each of `outputs` of a pixel; 0 where the predicate is off."""
        k, config = self.k, self.config
        return [
            load_elements(
                grad_y + k.mad_wide(pixel, config.out_channels, k.convert(outputs.first, u64)),
                outputs.count,
                where=where,
            )
            for outputs in self.outputs
        ]

    def weighted(self, weight: Pointer, tap: Val, gradients: Sequence[Sequence[Val]]) -> list[Val]:
        """Gcol of a tap for each channel: gradients times weights [T, C/G, Co]."""
        k, config = self.k, self.config
        sums: list[Val | None] = [None] * self.count
        for outputs, values in zip(self.outputs, gradients, strict=True):
            row = tap * config.in_channels_per_group + outputs.base
            at = k.mad_wide(row, config.out_channels, k.convert(outputs.first, u64))
            for row_index, channels in enumerate(outputs.rows):
                address = weight + at + row_index * config.out_channels
                weights = load_elements(address, outputs.count)
                for channel, start in channels:
                    for o in range(start, start + self.out_group):
                        total, value = sums[channel], values[o]
                        sums[channel] = (
                            value * weights[o] if total is None else k.fma(value, weights[o], total)
                        )
        return [total for total in sums if total is not None]

    def of_channels(self) -> list[list[tuple[int, int]]]:
        """For each channel its group's outputs: (index in `outputs`, index in these)."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for index, outputs in enumerate(self.outputs):
            for channel, start in (pair for row in outputs.rows for pair in row):
                found[channel] += [(index, start + o) for o in range(self.out_group)]
        return found
