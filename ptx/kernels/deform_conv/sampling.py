"""Where taps sample: positions of pixels and taps, and what a block keeps of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s32, u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.tile.pixels import Geometry, OutputPixel, pixel_index
from ptx.tile.vectors import load_words, widen

__all__ = ["Offsets", "Position", "Sample", "Sampler", "interpolate"]

_SAMPLE_BYTES = 12 * 1024  # of shared memory for what a block keeps of samples
_FAR = 2.0**30  # beyond any image; base + _FAR still is an s32


@dataclasses.dataclass(frozen=True, eq=False)
class Position:
    """Where a tap of an output pixel samples.

    Attributes:
      y, x: of the upper left corner: s32, possibly outside of the image.
      ly, lx: fractions, of the coordinate type; both NaN if one of the offsets is.
      inside_y, inside_x: predicates: whether its row and the next, its column and the next, are
        inside.
      mask: of the coordinate type; None without modulation.
      index: of the tap among all mask values; its offsets are twice as far.
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
        """Of the corners, with the mask."""
        hy, hx = 1.0 - self.ly, 1.0 - self.lx
        ly, lx = self.ly, self.lx
        if self.mask is not None:
            hy, ly = hy * self.mask, ly * self.mask
        return hy * hx, hy * lx, ly * hx, ly * lx


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
        """Where a tap samples, for an offset group; nothing is read where `where` is off."""
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

    def index(self, pixel: Val, group: Val | int, tap: Val) -> Val:
        """Of a tap of an output pixel, among all mask values."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One tap of one output pixel.

    Attributes:
      ly, lx: fractions of the position, of the coordinate type.
      mask: 1 without modulation.
      corner: index of the upper left corner among the pixels of all images; where corners are
        outside of the image it may be of no pixel.
      inside: predicates: whether the corners (y, x), (y, x+1), (y+1, x), (y+1, x+1) are inside.
    """

    ly: Val
    lx: Val
    mask: Val
    corner: Val
    inside: tuple[Val, Val, Val, Val]

    def weights(self) -> tuple[Val, Val, Val, Val]:
        """Of the corners, with the mask."""
        hy, hx = 1.0 - self.ly, 1.0 - self.lx
        a, b, c, d = hy * hx, hy * self.lx, self.ly * hx, self.ly * self.lx
        return a * self.mask, b * self.mask, c * self.mask, d * self.mask


class Sampler:
    """Calculates samples, one thread each, and keeps them for the whole block.

    Args:
      offsets: where they come from.
      rows: pixels that are kept.
      taps: taps that are kept of each pixel.
      threads: of the block.
    """

    def __init__(self, offsets: Offsets, *, rows: int, taps: int, threads: int):
        self.offsets, self.k, self.config = offsets, offsets.k, offsets.config
        self.row_count, self.tap_count, self.threads = rows, taps, threads
        k, dtype = self.k, self.config.coordinate_type
        count = rows * taps
        self.fractions = [k.shared(f"sample_{name}", dtype, count) for name in ("ly", "lx")]
        self.masks = None if offsets.mask is None else k.shared("sample_mask", dtype, count)
        self.corners = k.shared("sample_corner", s32, count)
        self.insides = k.shared("sample_inside", u32, count)

    @staticmethod
    def taps_that_fit(config: DeformConvConfig, rows: int) -> int:
        """How many taps of `rows` pixels fit `_SAMPLE_BYTES`: all, or at least one."""
        each = rows * (3 * config.coordinate_type.bytes + 8)
        return max(1, min(config.taps, _SAMPLE_BYTES // each))

    def fill(self, first_pixel: Val, group: Val | int, first_tap: Val | int) -> None:
        """Calculates the samples of `rows` pixels and `taps` taps from the first ones.

        A barrier has to follow before they are read, and to precede where they are overwritten.

        Args:
          first_pixel: of all outputs; what lies beyond the last one samples nothing.
          group: offset group.
          first_tap: what lies beyond the last one samples nothing.
        """
        k, config, sizes = self.k, self.config, self.offsets.geometry
        k.comment("samples: a thread for each pixel and tap")
        with k.loop(k.tid(), self.row_count * self.tap_count, self.threads, name="sample") as e:
            pixel = sizes.pixel(first_pixel + e % self.row_count)
            tap = e // self.row_count + first_tap
            sample_ok = pixel.there
            if self.tap_count > 1 or isinstance(first_tap, Val):
                sample_ok = sample_ok & (tap < config.taps)
            position = self.offsets.position(pixel, group, tap, sample_ok)
            k.comment("which corners are in the image")
            bits = k.var(u32, 0)
            for corner_index, inside in enumerate(position.inside()):
                bits.set(bits | k.select(inside & sample_ok, 1 << corner_index, 0, u32))
            corner = pixel_index(pixel.image, position.y, position.x, sizes.in_h, sizes.in_w)
            self.fractions[0].store(e, position.ly)
            self.fractions[1].store(e, position.lx)
            self.corners.store(e, k.select(bits.eq(0), 0, corner))
            self.insides.store(e, bits)
            if self.masks is not None and position.mask is not None:
                self.masks.store(e, position.mask)

    def read(self, row: Val, tap: Val | int) -> Sample:
        """The sample of a row and a tap, both counted from the first that was filled."""
        k = self.k
        at = row + tap * self.row_count
        bits = self.insides.load(at)
        inside = [(bits & (1 << corner_index)).ne(0) for corner_index in range(4)]
        ly, lx = (fraction.load(at) for fraction in self.fractions)
        one = k.var(self.config.coordinate_type, 1.0)
        mask = one if self.masks is None else self.masks.load(at)
        return Sample(ly, lx, mask, self.corners.load(at), (*inside,))  # pyright: ignore


def interpolate(weights: Sequence[Val], corners: Sequence[Sequence[Val]]) -> list[Val]:
    """The weighted sums of four corners' channels, all of one type: one sum for each channel."""
    sums = []
    for elements in zip(*corners, strict=True):
        total = weights[0] * elements[0]
        for weight, element in zip(weights[1:], elements[1:], strict=True):
            total = total.kernel.fma(weight, element, total)
        sums.append(total)
    return sums
