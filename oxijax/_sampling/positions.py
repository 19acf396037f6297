"""Positions of sampling points in an image: the arithmetic of `ptx.kernels.sampling.geometry`.

It is written apart from the kernels', which it judges.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptx.kernels.sampling.geometry import HEIGHT, WIDTH, Across, Geometry, Grid, Window

__all__ = ["Position", "position", "reflected"]


class Position(NamedTuple):
    """A position along an axis, `real + whole`, and its derivative with respect to the coordinate.

    What is whole is kept apart, so that the fraction is as exact for a large image as for a small
    one. The derivative is [T, 1, 1], or [T, B, M] where it depends on the coordinate.
    """

    real: jax.Array
    whole: Any
    slope: Any


@functools.singledispatch
def position(
    geometry: Geometry, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any
) -> Position:
    """The position of coordinates [T, B, M].

    Args:
      geometry: where points lie.
      axis: the axis of the image.
      coordinate: in float32 or float64.
      sizes: the sizes of the image along the axis, for each of the points, [T, 1, 1].
      query: the numbers of the queries, [B].
    """
    raise TypeError(f"no positions of {geometry!r}")


@position.register
def _(
    geometry: Across, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any
) -> Position:
    size = sizes.astype(coordinate.dtype)
    if geometry.nearest:
        pixel = jnp.clip(jnp.floor(coordinate * size + 0.5), 0, size - 1)
        return Position(pixel, 0, np.zeros_like(size))
    return Position(coordinate * size - 0.5, 0, size)


@position.register
def _(
    geometry: Window, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any
) -> Position:
    middle = geometry.middle(axis)
    taps = [tap[axis] * geometry.dilation[axis] - middle for tap in geometry.taps]
    out_width = geometry.out_size[WIDTH]
    pixel = query % out_width if axis == WIDTH else query // out_width % geometry.out_size[HEIGHT]
    start = pixel * geometry.strides[axis] + (middle - geometry.padding[axis])
    scale = np.asarray(geometry.offset_scale, coordinate.dtype)
    real = (coordinate + np.asarray(taps, coordinate.dtype)[:, None, None]) * scale
    slope = np.full((len(taps), 1, 1), scale)
    return Position(real, start[:, None].astype(jnp.int32), slope)


@position.register
def _(geometry: Grid, axis: int, coordinate: jax.Array, sizes: np.ndarray, query: Any) -> Position:
    size = sizes.astype(coordinate.dtype)
    if geometry.coordinates == "pixel":
        real, slope = coordinate, np.ones_like(size)
    elif geometry.coordinates == "unit":
        real, slope = coordinate * size - 0.5, size
    elif geometry.align_corners:
        real, slope = (coordinate + 1) / 2 * (size - 1), (size - 1) / 2
    elif (size == 1).all():  # exactly: XLA would cancel the ones, and kernels round
        real, slope = coordinate / 2, size / 2
    else:
        real, slope = ((coordinate + 1) * size - 1) / 2, size / 2
    if geometry.padding_mode == "reflection":
        real, sign = reflected(geometry, real, size)
        slope = slope * sign
    if geometry.padding_mode == "border":
        # Infinitely far also where the image is one pixel, whose size there is 0.
        real = jnp.where(jnp.isinf(coordinate), coordinate, real)
    if geometry.padding_mode != "zeros":
        inside = (real > 0) & (real < size - 1)
        # NaN stays; what is cut off at the edge moves no more.
        real, slope = jnp.clip(real, 0, size - 1), jnp.where(inside, slope, 0)
    if geometry.nearest:
        return Position(jnp.round(real), 0, np.zeros_like(size))
    return Position(real, 0, slope)


def reflected(geometry: Grid, real: jax.Array, size: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Positions in the mirrors of "reflection", and the sign of their derivatives."""
    low = np.zeros_like(size) if geometry.align_corners else np.full_like(size, -0.5)
    span = size - 1 if geometry.align_corners else size
    distance = jnp.abs(real - low)
    safe = np.where(span > 0, span, 1)
    flips = jnp.floor(distance / safe)
    rest = distance - flips * safe
    back = flips % 2 == 1
    found = jnp.where(back, span - rest, rest) + low
    sign = jnp.where(real < low, -1, 1) * jnp.where(back, -1, 1)
    # One pixel whose centre is at both edges is all there is.
    return jnp.where(span > 0, found, real * 0), jnp.where(span > 0, sign, 0)
