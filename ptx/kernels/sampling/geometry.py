"""Sampling geometries: they map a coordinate along an axis of an image to a position in pixels.

They are all that the sampling operators differ in. Axes are counted from 0, as sizes are: the last
one is the width. Sizes of images and outputs are known when a kernel is launched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32

__all__ = ["HEIGHT", "WIDTH", "Across", "Extent", "Geometry", "Grid", "Position", "Window"]

HEIGHT, WIDTH = 0, 1


@dataclasses.dataclass(frozen=True, eq=False)
class Extent:
    """The size of an image along an axis.

    Attributes:
      size: u32.
      real: the same in the type of coordinates.
      is_one: whether it is 1, which is known when the kernel is written. Only `Grid` may ask.
    """

    size: Val
    real: Val
    is_one: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Position:
    """A position along an axis, in pixels, `real + whole`.

    What is whole is kept apart, so that the fraction is as exact for a large image as for a small
    one.

    Attributes:
      real: the type of the coordinate's type.
      whole: an s32, or 0.
      slope: the derivative of the position with respect to the coordinate.
    """

    real: Val
    whole: Val | int
    slope: Val | float


@dataclasses.dataclass(frozen=True)
class Across:
    """From 0, the image's edge, to 1, its other edge: the centre of pixel i is (i + 0.5) / size.

    Attributes:
      nearest: whether a point is the pixel floor(coordinate * size + 0.5), or the one at the edge;
        else it lies between pixels.
    """

    label: ClassVar[str] = "across"

    nearest: bool = False

    def validate(self, dims: int, points: Sequence[int]) -> None:
        """Raises ValueError that names the field at fault, if one is."""

    def along(
        self, k: Kernel, axis: int, coordinate: Val, extent: Extent, pixel: Val | None, point: Val
    ) -> Position:
        """The position of a point.

        Args:
          k: the kernel.
          axis: the axis of the image.
          coordinate: f32 or f64.
          extent: the size of the image, along the axis.
          pixel: the row or column of the query in the output of a window; else None.
          point: its number in its query and head.
        """
        position = coordinate * extent.real
        if self.nearest:
            return Position(_clipped(k, k.floor(position + 0.5), extent.real - 1.0), 0, 0.0)
        return Position(position - 0.5, 0, extent.real)


@dataclasses.dataclass(frozen=True)
class Window:
    """Offsets in pixels from the taps of a convolution's window, one query for each of its outputs.

    Images have two dimensions, and pairs are (height, width).

    Offset and window are scaled together, about the window's middle. Taps are counted column by
    column.

    Attributes:
      out_size: the size of the output.
      kernel_size, strides, dilation: of the convolution.
      padding: zeros above and to the left.
      offset_scale: the scale of offsets and window.
      remove_center: whether the window lacks the tap in its middle.
    """

    label: ClassVar[str] = "window"
    nearest: ClassVar[bool] = False

    out_size: tuple[int, int]
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    offset_scale: float = 1.0
    remove_center: bool = False

    @property
    def taps(self) -> list[tuple[int, int]]:
        """Each tap's row and column in the window."""
        height, width = self.kernel_size
        taps = [(i, j) for j in range(width) for i in range(height)]
        return [t for t in taps if not (self.remove_center and t == (height // 2, width // 2))]

    def middle(self, axis: int) -> int:
        """Pixels from the window's first tap to its middle."""
        return self.dilation[axis] * (self.kernel_size[axis] - 1) // 2

    def validate(self, dims: int, points: Sequence[int]) -> None:
        """See `Across.validate`."""
        if dims != 2:
            raise ValueError(f"levels of a window must have two sizes, got {dims}")
        for axis in (HEIGHT, WIDTH):
            reach = self.dilation[axis] * self.kernel_size[axis]
            if max(self.out_size[axis] * self.strides[axis], self.padding[axis]) + reach >= 2**30:
                raise ValueError(
                    "out_size * strides, and padding, must be below 2**30 with the window, got "
                    f"{self.out_size}, {self.strides} and {self.padding}"
                )
        for name in ("kernel_size", "strides", "dilation"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if min(self.out_size) < 1 or min(self.padding) < 0:
            raise ValueError(
                f"out_size must be positive and padding not negative, got {self.out_size} and "
                f"{self.padding}"
            )
        taps = self.kernel_size[HEIGHT] * self.kernel_size[WIDTH] - self.remove_center
        if tuple(points) != (taps,):
            raise ValueError(f"points of a window must be its {taps} taps, got {tuple(points)}")

    def along(
        self, k: Kernel, axis: int, coordinate: Val, extent: Extent, pixel: Val | None, point: Val
    ) -> Position:
        """See `Across.along`."""
        assert pixel is not None
        height, width = self.kernel_size
        if self.remove_center:
            center = width // 2 * height + height // 2
            point = k.select(point >= center, point + 1, point)
        line = point % height if axis == HEIGHT else point // height
        tap = k.bitcast(line * self.dilation[axis], s32) - self.middle(axis)
        start = k.bitcast(pixel * self.strides[axis], s32)
        start = start + (self.middle(axis) - self.padding[axis])
        scale = float(self.offset_scale)
        real = (coordinate + k.convert(tap, coordinate.dtype, "rn")) * scale
        return Position(real, start, scale)


@dataclasses.dataclass(frozen=True)
class Grid:
    """From -1 to 1 across the image, or other coordinates.

    Attributes:
      align_corners: whether -1 and 1 are the centres of the outermost pixels, not the edges; also
        where mirrors are, whatever the coordinates.
      padding_mode: what is outside of the image: "zeros", "border" for the nearest pixel inside, or
        "reflection" for what a mirror at the edge shows.
      nearest: whether a point is the nearest pixel, halves being rounded to even ones.
      coordinates: "normalized", from -1 to 1; "unit", from 0 to 1 from edge to edge; or "pixel",
        from 0, the centre of the first pixel.
    """

    label: ClassVar[str] = "grid"

    align_corners: bool = False
    padding_mode: str = "zeros"
    nearest: bool = False
    coordinates: str = "normalized"

    def validate(self, dims: int, points: Sequence[int]) -> None:
        """See `Across.validate`."""
        if self.padding_mode not in ("zeros", "border", "reflection"):
            raise ValueError(
                f'padding_mode must be "zeros", "border" or "reflection", got {self.padding_mode!r}'
            )
        if self.coordinates not in ("normalized", "unit", "pixel"):
            raise ValueError(
                f'coordinates must be "normalized", "unit" or "pixel", got {self.coordinates!r}'
            )

    def along(
        self, k: Kernel, axis: int, coordinate: Val, extent: Extent, pixel: Val | None, point: Val
    ) -> Position:
        """See `Across.along`."""
        last = extent.real - 1.0
        slope: Val | float
        if self.coordinates == "pixel":
            real, slope = coordinate, 1.0
        elif self.coordinates == "unit":
            real, slope = coordinate * extent.real - 0.5, extent.real
        elif self.align_corners:
            real, slope = (coordinate + 1.0) * 0.5 * last, last * 0.5
        elif extent.is_one:  # exactly, as in the program for XLA, which would cancel the ones
            real, slope = coordinate * 0.5, 0.5
        else:
            real, slope = ((coordinate + 1.0) * extent.real - 1.0) * 0.5, extent.real * 0.5
        if self.padding_mode == "reflection":
            real, slope = self._reflected(k, real, extent, slope)
        if self.padding_mode == "border" and self.align_corners and extent.is_one:
            # All there is, also for an infinite coordinate, of which the product with 0 is none.
            real = k.select(coordinate.ne(coordinate), coordinate, 0.0)
        if self.padding_mode != "zeros":
            inside = (real > 0.0) & (real < last)
            real = _clipped(k, real, last)
            slope = k.select(inside, slope, 0.0, coordinate.dtype)
        if self.nearest:
            return Position(k.round(real, "rn"), 0, 0.0)
        return Position(real, 0, slope)

    def inside(self, k: Kernel, pixel: Val, extent: Extent) -> Val:
        """The number of a pixel, a whole float, where the padding mode has it.

        With align_corners=False. What is outside of the image after that is NaN or infinite, or of
        zeros.
        """
        if self.padding_mode == "zeros":
            return pixel
        if self.padding_mode == "reflection":
            pixel, _ = self._mirrored(k, pixel, extent)
        return _clipped(k, pixel, extent.real - 1.0)

    def _reflected(
        self, k: Kernel, real: Val, extent: Extent, slope: Val | float
    ) -> tuple[Val, Val | float]:
        """The position in mirrors at the edges, and its slope."""
        if self.align_corners and extent.is_one:
            return real * 0.0, 0.0  # one pixel, whose centre is at both edges
        found, back = self._mirrored(k, real, extent)
        low = 0.0 if self.align_corners else -0.5
        return found, k.select((real < low) ^ back, -slope, slope, real.dtype)

    def _mirrored(self, k: Kernel, real: Val, extent: Extent) -> tuple[Val, Val]:
        """The position in mirrors at the edges, and whether an odd number of them beyond one is."""
        low, span = (0.0, extent.real - 1.0) if self.align_corners else (-0.5, extent.real)
        distance = abs(real - low)
        flips = k.floor(distance / span)
        rest = distance - flips * span
        half = flips * 0.5
        back = k.floor(half).ne(half)
        return k.select(back, span - rest, rest) + low, back


Geometry = Across | Window | Grid


def _clipped(k: Kernel, real: Val, last: Val) -> Val:
    """The position, or that of the pixel at the edge; NaN stays."""
    return k.select(real < 0.0, 0.0, k.select(real > last, last, real))
