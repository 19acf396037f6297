"""Output pixels: their indices and their positions in images."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import Size
from ptx.isa.dtypes import u32

__all__ = ["NO_PIXEL", "SIZES", "Geometry", "OutputPixel", "PixelWalk", "pixel_index"]

NO_PIXEL = 0xFFFFFFFF  # what stands for the index of a pixel where there is none


def _size_of(name: str, dim: str) -> Size:
    return Size(name, lambda instance: instance.sizes[dim])


# Parameters of kernels on images n of h x w pixels, whose outputs have p x q pixels.
SIZES = tuple(map(_size_of, ("batch_size", "in_h", "in_w", "out_h", "out_w"), "nhwpq"))


def pixel_index(image: Val, y: Val, x: Val, height: Val, width: Val) -> Val:
    """The index of a pixel among those of all images.

    It is signed where y and x are: such a pixel may lie outside of its image.
    """
    k, dtype = y.kernel, y.dtype
    image, height, width = (k.bitcast(value, dtype) for value in (image, height, width))
    return (image * height + y) * width + x


@dataclasses.dataclass(frozen=True, eq=False)
class OutputPixel:
    """One pixel of the outputs.

    Attributes:
      index: its index among the pixels of all outputs.
      image, y, x: its image, row and column.
      exists: predicate: whether there is such a pixel.
    """

    index: Val
    image: Val
    y: Val
    x: Val
    exists: Val


@dataclasses.dataclass(frozen=True, eq=False)
class Geometry:
    """The sizes that a kernel learns when it is launched.

    Attributes:
      images: number of images.
      in_h, in_w: height and width of the images.
      out_h, out_w: height and width of the output.
      pixels: pixels of all outputs together.
    """

    images: Val
    in_h: Val
    in_w: Val
    out_h: Val
    out_w: Val
    pixels: Val

    @staticmethod
    def of(p: Any) -> Geometry:
        """The geometry that a kernel's parameters `SIZES` give."""
        pixels = p.batch_size * p.out_h * p.out_w
        return Geometry(p.batch_size, p.in_h, p.in_w, p.out_h, p.out_w, pixels)

    def pixel(self, index: Val) -> OutputPixel:
        """The pixel of an index."""
        x, row = index % self.out_w, index // self.out_w
        return OutputPixel(index, row // self.out_h, row % self.out_h, x, index < self.pixels)


class PixelWalk:
    """An output pixel that goes on by the same number of pixels each time, without divisions."""

    def __init__(self, k: Kernel, sizes: Geometry, first: Val, step: int):
        self.k, self.sizes, self.step = k, sizes, step
        start = sizes.pixel(first)
        self.index = k.var(u32, start.index, "pixel")
        self.image, self.y, self.x = (
            k.var(u32, value) for value in (start.image, start.y, start.x)
        )
        count = k.var(u32, step).value()
        self.columns, rows = count % sizes.out_w, count // sizes.out_w
        self.rows, self.images = rows % sizes.out_h, rows // sizes.out_h

    def pixel(self, exists: Val) -> OutputPixel:
        return OutputPixel(self.index, self.image, self.y, self.x, exists)

    def advance(self) -> None:
        k, sizes = self.k, self.sizes
        self.index += self.step
        self.x += self.columns
        next_row = self.x >= sizes.out_w
        self.x -= k.select(next_row, sizes.out_w, 0, u32)
        self.y += self.rows + k.select(next_row, 1, 0, u32)
        next_image = self.y >= sizes.out_h
        self.y -= k.select(next_image, sizes.out_h, 0, u32)
        self.image += self.images + k.select(next_image, 1, 0, u32)
