"""Where taps sample: fractions, mask and corners of pixels and taps, in shared memory."""

from __future__ import annotations

import dataclasses

from ptx.builder import Kernel, Pointer, Val
from ptx.dtypes import s32, u32, u64
from ptx.kernels.deformable.config import DeformableConvConfig

__all__ = ["Geometry", "Sample", "Sampler"]

_FAR = 2.0**30  # beyond any image; base + _FAR still is an s32


@dataclasses.dataclass(frozen=True, eq=False)
class Geometry:
    """The sizes that a kernel learns when it is launched.

    Attributes:
      in_h, in_w: of the images.
      out_h, out_w: of the output.
      pixels: of all outputs together.
    """

    in_h: Val
    in_w: Val
    out_h: Val
    out_w: Val
    pixels: Val

    @staticmethod
    def declare(k: Kernel) -> Geometry:
        """Declares the parameters batch_size, in_h, in_w, out_h and out_w, all u32."""
        names = ("batch_size", "in_h", "in_w", "out_h", "out_w")
        images, in_h, in_w, out_h, out_w = (k.param(name, u32) for name in names)
        return Geometry(in_h, in_w, out_h, out_w, images * out_h * out_w)


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
        """Of the corners, without the mask."""
        hy, hx = 1.0 - self.ly, 1.0 - self.lx
        return hy * hx, hy * self.lx, self.ly * hx, self.ly * self.lx


class Sampler:
    """Calculates samples, one thread each, and keeps them for the whole block.

    The offset is split into integer and fraction before the pixel's position is added, so that
    the fraction is exact at any image size.

    Args:
      k: the kernel.
      config: the convolution.
      geometry: its sizes.
      offset: [pixels, offset channels].
      mask: [pixels, mask channels], or None.
      rows: pixels that are kept.
      taps: taps that are kept of each pixel.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        config: DeformableConvConfig,
        geometry: Geometry,
        offset: Pointer,
        mask: Pointer | None,
        *,
        rows: int,
        taps: int,
        threads: int,
    ):
        self.k, self.config, self.geometry = k, config, geometry
        self.offset, self.mask = offset, mask
        self.row_count, self.tap_count, self.threads = rows, taps, threads
        dtype = config.coordinate_type
        count = rows * taps
        self.fractions = [k.shared(f"sample_{name}", dtype, count) for name in ("ly", "lx")]
        self.masks = None if mask is None else k.shared("sample_mask", dtype, count)
        self.corners = k.shared("sample_corner", s32, count)
        self.insides = k.shared("sample_inside", u32, count)

    @staticmethod
    def taps_that_fit(config: DeformableConvConfig, rows: int, bytes_: int) -> int:
        """How many taps of `rows` pixels fit so many bytes: all, or at least one."""
        each = rows * (3 * config.coordinate_type.bytes + 8)
        return max(1, min(config.taps, bytes_ // each))

    def fill(self, first_pixel: Val, group: Val | int, first_tap: Val | int) -> None:
        """Calculates the samples of `rows` pixels and `taps` taps from the first ones.

        A barrier has to follow before they are read, and to precede where they are overwritten.

        Args:
          first_pixel: of all outputs; what lies beyond the last one samples nothing.
          group: offset group.
          first_tap: what lies beyond the last one samples nothing.
        """
        k, config, sizes = self.k, self.config, self.geometry
        k.comment("samples: a thread for each pixel and tap")
        with k.loop(k.tid(), self.row_count * self.tap_count, self.threads, name="sample") as e:
            pixel = first_pixel + e % self.row_count
            tap = e // self.row_count + first_tap
            there = pixel < sizes.pixels
            if self.tap_count > 1 or isinstance(first_tap, Val):
                there = there & (tap < config.taps)
            index = k.mad_wide(pixel, config.mask_channels, self._wide(group, tap))
            out_x, row = pixel % sizes.out_w, pixel // sizes.out_w
            out_y, image = row % sizes.out_h, row // sizes.out_h
            pair = (self.offset + index) + index  # two offsets for each mask value
            tap_y, tap_x = tap // config.kernel_w, tap % config.kernel_w
            axes = (
                (pair.load(0, where=there), out_y, config.stride_h, config.pad_h),
                (pair.load(1, where=there), out_x, config.stride_w, config.pad_w),
            )
            steps = ((tap_y, config.dilation_h), (tap_x, config.dilation_w))
            (y, ly), (x, lx) = (
                self._split(offset, self._base(out, stride, pad, t, dilation))
                for (offset, out, stride, pad), (t, dilation) in zip(axes, steps, strict=True)
            )
            nothing = (ly + lx) * 0.0  # or NaN: a tap with one NaN offset is NaN in both
            ly, lx = ly + nothing, lx + nothing
            k.comment("which corners are in the image")
            height, width = (k.bitcast(size, s32) for size in (sizes.in_h, sizes.in_w))
            inside_y = ((y >= 0) & (y < height), (y >= -1) & (y < height - 1))
            inside_x = ((x >= 0) & (x < width), (x >= -1) & (x < width - 1))
            bits = k.var(u32, 0)
            for number, (a, b) in enumerate((a, b) for a in inside_y for b in inside_x):
                bits.set(bits | k.select(a & b & there, 1 << number, 0, u32))
            corner = (k.bitcast(image, s32) * height + y) * width + x
            self.fractions[0].store(e, ly)
            self.fractions[1].store(e, lx)
            self.corners.store(e, k.select(bits.eq(0), 0, corner))
            self.insides.store(e, bits)
            if self.masks is not None and self.mask is not None:
                value = (self.mask + index).load(where=there)
                self.masks.store(e, self._coordinate(value))

    def read(self, row: Val, tap: Val | int) -> Sample:
        """The sample of a row and a tap, both counted from the first that was filled."""
        k = self.k
        at = row + tap * self.row_count
        bits = self.insides.load(at)
        inside = [(bits & (1 << number)).ne(0) for number in range(4)]
        ly, lx = (place.load(at) for place in self.fractions)
        one = k.var(self.config.coordinate_type, 1.0)
        mask = one if self.masks is None else self.masks.load(at)
        return Sample(ly, lx, mask, self.corners.load(at), (*inside,))  # pyright: ignore

    def _wide(self, group: Val | int, tap: Val) -> Val:
        k = self.k
        return k.convert(tap + group * self.config.taps, u64)

    def _base(self, out: Val, stride: int, pad: int, tap: Val, dilation: int) -> Val:
        """Where the tap samples without its offset."""
        return self.k.bitcast(out * stride + tap * dilation, s32) - pad

    def _split(self, offset: Val, base: Val) -> tuple[Val, Val]:
        """Integer part of the position and its fraction; NaN and what is far stay outside."""
        k = self.k
        offset = self._coordinate(offset)
        floor = k.floor(offset)
        near = k.max(k.min(floor, _FAR), -_FAR)
        fraction = k.select(abs(offset) > _FAR, 0.0, offset - floor)
        return base + k.convert(near, s32, "rz"), fraction

    def _coordinate(self, value: Val) -> Val:
        dtype = self.config.coordinate_type
        return value if value.dtype is dtype else self.k.convert(value, dtype)
