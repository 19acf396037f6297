"""The positions that taps of pixels sample, and the four corners around each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s32, s64, u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.tile.pixels import Geometry, OutputPixel, pixel_index
from ptx.tile.vectors import load_words, widen

__all__ = ["Offsets", "Position", "corner_weights", "interpolate"]

_FAR = 2.0**30  # beyond any image; base + _FAR still is an s32


@dataclasses.dataclass(frozen=True, eq=False)
class Position:
    """The position that a tap of an output pixel samples.

    Attributes:
      y, x: row and column of the upper left corner: s32, possibly outside of the image.
      ly, lx: fractions, of the coordinate type; both NaN if one of the offsets is.
      inside_y, inside_x: predicates: whether its row and the next, its column and the next, are
        inside.
      mask: the mask's value, of the coordinate type; None without modulation.
      index: the tap's index among all mask values; its offsets are twice as far.
    """

    y: Val
    x: Val
    ly: Val
    lx: Val
    inside_y: tuple[Val, Val]
    inside_x: tuple[Val, Val]
    mask: Val | None
    index: Val

    def inside(self) -> tuple[Val, Val, Val, Val]:
        """Predicates of the corners (y, x), (y, x+1), (y+1, x), (y+1, x+1)."""
        (a, b), (c, d) = self.inside_y, self.inside_x
        return a & c, a & d, b & c, b & d

    def weights(self) -> tuple[Val, Val, Val, Val]:
        """The weights of the corners, with the mask."""
        return corner_weights(self.ly, self.lx, self.mask)


@dataclasses.dataclass(frozen=True, eq=False)
class Offsets:
    """Offsets and mask in global memory, and the positions that they make.

    The offset is split into integer and fraction before the pixel's position is added, so that
    the fraction is exact at any image size.

    Attributes:
      k: the kernel.
      config: the convolution.
      geometry: its sizes.
      offset: [pixels, offset channels].
      mask: [pixels, mask channels], or None.
    """

    k: Kernel
    config: DeformConvConfig
    geometry: Geometry
    offset: Pointer
    mask: Pointer | None

    @staticmethod
    def of(k: Kernel, config: DeformConvConfig, p: Any) -> Offsets:
        """The offsets and mask, if there is one, among a kernel's parameters."""
        return Offsets(k, config, Geometry.of(p), p.offset, p.mask)

    def position(self, pixel: OutputPixel, group: Val | int, tap: Val, where: Val) -> Position:
        """The position of a tap for an offset group; nothing is read where `where` is off."""
        k, config, sizes = self.k, self.config, self.geometry
        index = self.index(pixel.index, group, tap)
        pair = (self.offset + index) + index  # two offsets for each mask value
        offset_y, offset_x = widen(k, load_words(pair, 2, where=where))
        tap_y, tap_x = tap // config.kernel_w, tap % config.kernel_w
        y, ly = self._split(
            offset_y, pixel.y * config.stride_h + tap_y * config.dilation_h, config.pad_h
        )
        x, lx = self._split(
            offset_x, pixel.x * config.stride_w + tap_x * config.dilation_w, config.pad_w
        )
        nothing = (ly + lx) * 0.0  # or NaN: a tap with one NaN offset is NaN in both
        mask = None
        if self.mask is not None:
            mask = self._coordinate((self.mask + index).load(where=where))
        return Position(
            y,
            x,
            ly + nothing,
            lx + nothing,
            self._inside(y, sizes.in_h),
            self._inside(x, sizes.in_w),
            mask,
            index,
        )

    def _inside(self, line: Val, size: Val) -> tuple[Val, Val]:
        """Whether a row, or column, and the next one are in the image; below 0 is far beyond."""
        k = self.k
        return k.bitcast(line, u32) < size, k.bitcast(line + 1, u32) < size

    def corner(self, pixel: OutputPixel, position: Position) -> Val:
        """The index of a position's upper left corner among the pixels of all images: s32."""
        sizes = self.geometry
        return pixel_index(pixel.image, position.y, position.x, sizes.in_h, sizes.in_w)

    def corner_addresses(self, array: Pointer, corner: Val, channel: Val) -> list[Pointer]:
        """The addresses of four corners' channel in an array [N, H, W, C].

        Only those of corners inside of the image may be accessed.

        Args:
          array: the array.
          corner: the index of the upper left one; see `corner`.
          channel: the channel.
        """
        k, channels = self.k, self.config.in_channels
        first = array + k.mad_wide(corner, channels, k.convert(channel, s64))
        right = first + channels
        below = k.mul_wide(self.geometry.in_w, channels)
        return [first, right, first + below, right + below]

    def index(self, pixel: Val, group: Val | int, tap: Val) -> Val:
        """The index of an output pixel's tap among all mask values."""
        k, config = self.k, self.config
        channel = k.convert(tap + group * config.taps, u64)
        return k.mad_wide(pixel, config.mask_channels, channel)

    def _split(self, offset: Val, line: Val, pad: int) -> tuple[Val, Val]:
        """Integer part of the position and its fraction; NaN and what is far stay outside."""
        k, offset = self.k, self._coordinate(offset)
        floor = k.floor(offset)
        near = k.min(floor, _FAR)  # of NaN too; what is far below, the conversion keeps there
        fraction = k.select(abs(offset) > _FAR, 0.0, offset - floor)
        return k.bitcast(line, s32) - pad + k.convert(near, s32, "rz"), fraction

    def _coordinate(self, value: Val) -> Val:
        dtype = self.config.coordinate_type
        return value if value.dtype is dtype else self.k.convert(value, dtype)


def corner_weights(ly: Val, lx: Val, mask: Val | None) -> tuple[Val, Val, Val, Val]:
    """The weights of the corners of a position, times the mask where there is one."""
    hy, hx = 1.0 - ly, 1.0 - lx
    if mask is not None:
        hy, ly = hy * mask, ly * mask
    return hy * hx, hy * lx, ly * hx, ly * lx


def interpolate(weights: Sequence[Val], corners: Sequence[Sequence[Val]]) -> list[Val]:
    """The weighted sums of four corners' channels, all of one type: one sum for each channel."""
    sums = []
    for elements in zip(*corners, strict=True):
        total = weights[0] * elements[0]
        for weight, element in zip(weights[1:], elements[1:], strict=True):
            total = total.kernel.fma(weight, element, total)
        sums.append(total)
    return sums
