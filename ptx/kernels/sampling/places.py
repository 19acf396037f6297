"""Where points lie along an axis of an image: what the sampling operators differ in."""

from __future__ import annotations

import dataclasses

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32
from ptx.kernels.sampling.config import HEIGHT, WIDTH, SamplingConfig

__all__ = ["Position", "along"]


@dataclasses.dataclass(frozen=True, eq=False)
class Position:
    """A position along an axis, in pixels, `real + whole`.

    What is whole is kept apart, so that the fraction is as exact for a large image as for a small
    one.

    Attributes:
      real: of the coordinate's type.
      whole: an s32, or 0.
      slope: the derivative of the position with respect to the coordinate.
    """

    real: Val
    whole: Val | int
    slope: Val | float


def along(
    k: Kernel,
    config: SamplingConfig,
    axis: int,
    coordinate: Val,
    size: int,
    query: Val,
    point: Val,
) -> Position:
    """The position of a point.

    Args:
      k: the kernel.
      config: says where points lie.
      axis: HEIGHT or WIDTH.
      coordinate: f32 or f64.
      size: of the image, along the axis.
      query: its number in its image.
      point: its number in its query and head.
    """
    if config.place == "window":
        return _in_window(k, config, axis, coordinate, query, point)
    if config.place == "grid":
        return _in_grid(k, config, coordinate, size)
    pixel = coordinate * float(size)
    if config.nearest:
        return Position(_clipped(k, k.floor(pixel + 0.5), size), 0, 0.0)
    return Position(pixel - 0.5, 0, float(size))


def _in_window(
    k: Kernel, config: SamplingConfig, axis: int, coordinate: Val, query: Val, point: Val
) -> Position:
    height, width = config.kernel_size
    if config.remove_center:
        center = width // 2 * height + height // 2
        point = k.select(point >= center, point + 1, point)
    line = point % height if axis == HEIGHT else point // height
    tap = k.bitcast(line * config.dilation[axis], s32) - config.middle(axis)
    columns = config.out_size[WIDTH]
    pixel = query % columns if axis == WIDTH else query // columns % config.out_size[HEIGHT]
    start = k.bitcast(pixel * config.strides[axis], s32)
    start = start + (config.middle(axis) - config.padding[axis])
    scale = float(config.offset_scale)
    real = (coordinate + k.convert(tap, coordinate.dtype, "rn")) * scale
    return Position(real, start, scale)


def _in_grid(k: Kernel, config: SamplingConfig, coordinate: Val, size: int) -> Position:
    last = float(size - 1)
    if config.align_corners:
        real, slope = (coordinate + 1.0) * 0.5 * last, last / 2
    elif size == 1:  # exactly, as in the program for XLA, which would cancel the ones
        real, slope = coordinate * 0.5, 0.5
    else:
        real, slope = ((coordinate + 1.0) * float(size) - 1.0) * 0.5, size / 2
    if config.padding_mode == "reflection":
        real, slope = _reflected(k, config, real, size, slope)
    if config.padding_mode == "border" and config.align_corners and size == 1:
        # All there is, also for an infinite coordinate, of which the product with 0 is none.
        real = k.select(coordinate.ne(coordinate), coordinate, 0.0)
    if config.padding_mode != "zeros":
        inside = (real > 0.0) & (real < last)
        real = _clipped(k, real, size)
        slope = k.select(inside, slope, 0.0, coordinate.dtype)
    if config.nearest:
        return Position(k.round(real, "rn"), 0, 0.0)
    return Position(real, 0, slope)


def _reflected(
    k: Kernel, config: SamplingConfig, real: Val, size: int, slope: float
) -> tuple[Val, Val | float]:
    """The position in mirrors at the edges, and its slope."""
    low, span = (0.0, size - 1.0) if config.align_corners else (-0.5, float(size))
    if span == 0:
        return real * 0.0, 0.0  # one pixel, whose centre is at both edges
    distance = abs(real - low)
    flips = k.floor(distance / span)
    rest = distance - flips * span
    half = flips * 0.5
    back = k.floor(half).ne(half)
    found = k.select(back, span - rest, rest) + low
    sign = k.select((real < low) ^ back, -slope, slope, real.dtype)
    return found, sign


def _clipped(k: Kernel, real: Val, size: int) -> Val:
    """The position, or that of the pixel at the edge; NaN stays."""
    last = float(size - 1)
    return k.select(real < 0.0, 0.0, k.select(real > last, last, real))
