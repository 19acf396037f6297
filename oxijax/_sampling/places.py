"""Where points of the sampling operators lie in an image: what these operators differ in.

Each place says, of all coordinates along an axis, the pixel that they mean, as a real number plus
an integer, and by how much that moves when the coordinate does.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["HEIGHT", "WIDTH", "Across", "Grid", "Place", "Position", "Window"]

HEIGHT, WIDTH = 0, 1


class Position(NamedTuple):
    """A position along an axis, `real + whole`, and its derivative with respect to the coordinate.

    What is whole is kept apart, so that the fraction is as exact for a large image as for a small
    one. The derivative is [T, 1, 1], or [T, B, M] where it depends on the coordinate.
    """

    real: jax.Array
    whole: Any
    slope: Any


@dataclasses.dataclass(frozen=True)
class Across:
    """From 0, the image's edge, to 1, its other edge: the centre of pixel i is (i + 0.5) / size.

    Attributes:
      nearest: whether a point is the pixel floor(coordinate * size + 0.5), or the one at the edge.
    """

    nearest: bool

    def along(self, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any) -> Position:
        """The position of coordinates [T, B, M].

        Args:
          axis: HEIGHT or WIDTH.
          coordinate: in float32 or float64.
          sizes: of the image along the axis, for each of the points, [T, 1, 1].
          query: the numbers of the queries, [B].
        """
        size = sizes.astype(coordinate.dtype)
        if self.nearest:
            pixel = jnp.clip(jnp.floor(coordinate * size + 0.5), 0, size - 1)
            return Position(pixel, 0, np.zeros_like(size))
        return Position(coordinate * size - 0.5, 0, size)


@dataclasses.dataclass(frozen=True)
class Window:
    """Offsets in pixels from the taps of a convolution's window, one query for each of its outputs.

    Offset and window are scaled together, about the window's middle. Taps are counted column by
    column.

    Attributes:
      out_size: of the output; pairs are (height, width).
      kernel_size, strides, dilation: of the convolution.
      padding: zeros above and to the left.
      offset_scale: of offsets and window.
      remove_center: the tap in the middle does not exist.
    """

    out_size: tuple[int, int]
    kernel_size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    offset_scale: float
    remove_center: bool
    nearest: ClassVar[bool] = False

    @property
    def taps(self) -> list[tuple[int, int]]:
        """Each tap's row and column in the window."""
        height, width = self.kernel_size
        taps = [(i, j) for j in range(width) for i in range(height)]
        return [t for t in taps if not (self.remove_center and t == (height // 2, width // 2))]

    def along(self, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any) -> Position:
        """See `Across.along`."""
        middle = self.dilation[axis] * (self.kernel_size[axis] - 1) // 2
        taps = [tap[axis] * self.dilation[axis] - middle for tap in self.taps]
        out_width = self.out_size[WIDTH]
        pixel = query % out_width if axis == WIDTH else query // out_width % self.out_size[HEIGHT]
        start = pixel * self.strides[axis] + (middle - self.padding[axis])
        scale = np.asarray(self.offset_scale, coordinate.dtype)
        real = (coordinate + np.asarray(taps, coordinate.dtype)[:, None, None]) * scale
        slope = np.full((len(taps), 1, 1), scale)
        return Position(real, start[:, None].astype(jnp.int32), slope)


@dataclasses.dataclass(frozen=True)
class Grid:
    """From -1 to 1 across the image.

    Attributes:
      align_corners: whether -1 and 1 are the centres of the outermost pixels, not the edges.
      padding_mode: what is outside of the image: "zeros", "border" for the nearest pixel inside, or
        "reflection" for what a mirror at the edge shows.
      nearest: whether a point is the nearest pixel, halves being rounded to even ones.
    """

    align_corners: bool
    padding_mode: str
    nearest: bool

    def along(self, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any) -> Position:
        """See `Across.along`."""
        size = sizes.astype(coordinate.dtype)
        if self.align_corners:
            real, slope = (coordinate + 1) / 2 * (size - 1), (size - 1) / 2
        elif (size == 1).all():  # exactly: XLA would cancel the ones, and kernels round
            real, slope = coordinate / 2, size / 2
        else:
            real, slope = ((coordinate + 1) * size - 1) / 2, size / 2
        if self.padding_mode == "reflection":
            real, sign = self._reflected(real, size)
            slope = slope * sign
        if self.padding_mode == "border":
            # Infinitely far also where the image is one pixel, whose size there is 0.
            real = jnp.where(jnp.isinf(coordinate), coordinate, real)
        if self.padding_mode != "zeros":
            inside = (real > 0) & (real < size - 1)
            # NaN stays; what is cut off at the edge moves no more.
            real, slope = jnp.clip(real, 0, size - 1), jnp.where(inside, slope, 0)
        if self.nearest:
            return Position(jnp.round(real), 0, np.zeros_like(size))
        return Position(real, 0, slope)

    def _reflected(self, real: jax.Array, size: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """The position in the mirrors, and the sign of its derivative."""
        low = np.zeros_like(size) if self.align_corners else np.full_like(size, -0.5)
        span = size - 1 if self.align_corners else size
        distance = jnp.abs(real - low)
        safe = np.where(span > 0, span, 1)
        flips = jnp.floor(distance / safe)
        rest = distance - flips * safe
        back = flips % 2 == 1
        found = jnp.where(back, span - rest, rest) + low
        sign = jnp.where(real < low, -1, 1) * jnp.where(back, -1, 1)
        # One pixel whose centre is at both edges is all there is.
        return jnp.where(span > 0, found, real * 0), jnp.where(span > 0, sign, 0)


Place = Across | Window | Grid
