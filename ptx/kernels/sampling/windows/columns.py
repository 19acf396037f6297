"""Columns of windows, along the images' first axis: each thread has one, of samples or pixels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import s32, u32, u64
from ptx.kernels.sampling.geometry import Extent
from ptx.kernels.sampling.points import rounded
from ptx.kernels.sampling.windows.config import WindowsConfig
from ptx.tile.vectors import widen

__all__ = ["Column", "Pixel", "each_column"]

_FAR = 2.0**30  # beyond any image


class Pixel(NamedTuple):
    """The number of a pixel, s32, and the predicate whether it is in the image."""

    number: Val
    inside: Val


@contextlib.contextmanager
def each_column(k: Kernel, config: WindowsConfig, p: Any, more: int) -> Iterator[Column]:
    """The code of a thread's column, in a `with`: threads that have none skip it.

    Args:
      k: the kernel.
      config: the windows.
      p: the kernel's parameters.
      more: 0 for columns of samples; 1 for those of the pixels between which samples lie, of which
        there is one more along each axis.
    """
    rows, *sides = (size + more for size in config.window)
    index = k.ctaid() * k.ntid() + k.tid()
    with k.if_(index < p.batch_size * p.queries * math.prod(sides)):
        places: list[Val] = []
        for side in reversed(sides):
            places.insert(0, index % side)
            index = index // side
        yield Column(k, config, p, index, places, rows)


class Column:
    """A thread's column of a window.

    Args:
      k: the kernel.
      config: the windows.
      p: the kernel's parameters.
      window: its window, among those of all images.
      places: where it lies in its window, along each axis but the first.
      rows: its samples or pixels.

    Attributes:
      places, rows: the same.
      fractions: how far samples lie behind the pixel before them, along each axis, in the type of
        sums; NaN where the coordinate is.
    """

    def __init__(
        self, k: Kernel, config: WindowsConfig, p: Any, window: Val, places: list[Val], rows: int
    ):
        self.k, self.config = k, config
        self.window, self.places, self.rows = window, places, rows
        self._image = window // p.queries
        k.name(window=self.window, image=self._image)
        self._image_pixels = p.image_pixels
        self._extents = [
            Extent(size, k.convert(size, config.coordinate_type, "rn"), False)
            for size in (p.depth, p.height, p.width)[-config.dims :]
        ]
        center = p.centers + k.mul_wide(self.window, config.dims)
        words = [center.load(axis) for axis in reversed(range(config.dims))]
        coordinates = [k.convert(word, config.coordinate_type) for word in widen(k, words)]
        self._floors = [k.floor(coordinate) for coordinate in coordinates]
        self.fractions: list[Val] = []
        for coordinate, floor in zip(coordinates, self._floors, strict=True):
            # Infinitely far it is a pixel's middle.
            fraction = k.select(coordinate.eq(floor), 0.0, coordinate - floor)
            self.fractions.append(rounded(k, fraction, config.sum_type))

    def pixel(self, axis: int, place: Val | int) -> Pixel:
        """A pixel of the window along an axis, from 0."""
        k, config, extent = self.k, self.config, self._extents[axis]
        if isinstance(place, Val):
            place = k.convert(place, config.coordinate_type, "rn")
        step = place - float(config.radius[axis])
        at = config.grid.inside(k, self._floors[axis] + step, extent)
        number = k.convert(k.min(at, _FAR), s32, "rz")  # of NaN too
        return Pixel(number, k.bitcast(number, u32) < extent.size)

    def join(self, *pixels: Pixel) -> Pixel:
        """The pixel of the image, or of a part of it, that is these along the axes."""
        (number, inside), *others = pixels
        for axis, other in enumerate(others, self.config.dims - len(others)):
            size = self.k.bitcast(self._extents[axis].size, s32)
            number, inside = number * size + other.number, inside & other.inside
        return Pixel(number, inside)

    def address(self, images: Pointer, pixel: Pixel) -> Pointer:
        """The address of a pixel of the window's image."""
        first = images + self.k.mul_wide(self._image * self._image_pixels, 1)
        return first + self.k.mul_wide(pixel.number, 1)

    def sample(self, samples: Pointer, row: Val, places: list[Val]) -> Pointer:
        """The address of a sample of the window in an array of all of them."""
        for place, size in zip(places, self.config.window[1:], strict=True):
            row = row * size + place
        at = self.k.convert(row, u64)
        return samples + self.k.mad_wide(self.window, math.prod(self.config.window), at)
