"""The producer of sampled images: bilinear interpolation into a tile."""

from __future__ import annotations

from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s64
from ptx.kernels.deform_conv.sampling import Sample, Sampler, interpolate
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import accumulator_of, load_words, store_vector, widen

__all__ = ["GatherTile", "corner_addresses", "sample_addresses"]


def corner_addresses(
    x: Pointer, corner: Val, channel: Val, channels: int, width: Val
) -> list[Pointer]:
    """Where four corners lie, from the index of the first among all pixels, at a channel."""
    k = x.kernel
    first = x + k.mad_wide(corner, channels, k.convert(channel, s64))
    right = first + channels
    below = k.mul_wide(width, channels)
    return [first, right, first + below, right + below]


def sample_addresses(
    x: Pointer, sample: Sample, channel: Val, channels: int, width: Val
) -> list[Pointer]:
    """Where the four corners of a sample lie, at a channel; only those inside may be read."""
    return corner_addresses(x, sample.corner, channel, channels, width)


class GatherTile:
    """Fills rows of a tile, a pixel each, with channels sampled from the images.

    Args:
      k: the kernel.
      tile: its rows are pixels.
      x: images [N, H, W, C].
      sampler: has the samples of the cursor's chunk when `begin` is called.
      locate: (row, column) of the tile -> row and tap of the sampler, channel, and a predicate:
        whether there is such a channel. Called for the first of `width` columns.
      channels: C.
      in_w: W.
      width: channels that are loaded together.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        tile: SharedTile,
        x: Pointer,
        sampler: Sampler,
        locate: Callable[[Val, Val], tuple[Val, Val, Val, Val]],
        *,
        channels: int,
        in_w: Val,
        width: int,
        threads: int,
    ):
        self.k, self.tile, self.x, self.sampler, self.locate = k, tile, x, sampler, locate
        self.channels, self.in_w, self.width = channels, in_w, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, self.step = k.tid() // across, threads // across
        self.loaded: list[tuple[Val, Sample, list[tuple[Val, ...]]]] = []

    def begin(self, stage: Stage, where: Val | None) -> None:
        self.loaded = []
        for first in range(0, self.tile.layout.rows, self.step):
            row = self.row + first
            sample_row, tap, channel, channel_ok = self.locate(row, self.column)
            sample = self.sampler.read(sample_row, tap)
            if where is not None:
                channel_ok = channel_ok & where
            addresses = sample_addresses(self.x, sample, channel, self.channels, self.in_w)
            words = [
                load_words(address, self.width, where=inside & channel_ok)
                for address, inside in zip(addresses, sample.inside, strict=True)
            ]
            self.loaded.append((row, sample, words))

    def finish(self, stage: Stage) -> None:
        k = self.k
        for row, sample, words in self.loaded:
            dtype = accumulator_of(self.x.dtype)
            weights = sample.weights()
            weights = [k.convert(weight, dtype, "rn") for weight in weights]
            values = interpolate(weights, [widen(k, word) for word in words])
            store_vector(self.tile.at(stage, row, self.column), values)
