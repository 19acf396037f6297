"""Units of the sampling kernels, one head of a query each, and their points.

Each lane of a unit calculates the position of one point of a chunk; then all of them read or write
the pixels of all of its points, each its own channels, with what it is told by shuffles.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DType, s32, u32
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.softmax import Softmax
from ptx.kernels.sampling.units import Span, Unit, each_span, each_span_of_level
from ptx.tile.vectors import widen

__all__ = [
    "Chunk",
    "Point",
    "Sample",
    "each_chunk",
    "first_pixels",
    "rounded",
    "weight_of",
]

_FAR = 2.0**30  # beyond any image; with a window's pixel it still is an s32


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A point, as the lane knows it that has calculated it.

    Attributes:
      index: in its arrays.
      places: the first of its pixels along each axis: s32, possibly outside.
      pixel: the same, in the image.
      inside: a bit for each of its pixels, whether it is in the image and the point exists: u32.
      fractions: along each axis, in the type of sums; all NaN if a coordinate is.
      slopes: of the position, with respect to the coordinate, along each axis.
      weight: in the type of sums; None for 1.
    """

    index: Val
    places: Sequence[Val]
    pixel: Val
    inside: Val
    fractions: Sequence[Val]
    slopes: Sequence[Val | float]
    weight: Val | None


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """A point, as all lanes of a unit know it.

    Attributes:
      pixel: the first of its pixels in the image: s32, possibly outside.
      inside: predicates, for each of its pixels.
      factors: the factors of its pixels, with the weight, in the type of sums.
      steps: pixels from one to the next one, along each axis but the last; None where a point is
        one pixel.
    """

    pixel: Val
    inside: Sequence[Val]
    factors: Sequence[Val]
    steps: Sequence[Val] | None

    def addresses(self, first: Pointer, pitch: int) -> list[Pointer]:
        """The addresses of its pixels, from the first pixel and the elements between neighbours."""
        k, pixels = first.kernel, [self.pixel]
        for step in self.steps or ():
            pixels = [at for pixel in pixels for at in (pixel, pixel + step)]
        rows = [first + k.mul_wide(pixel, pitch) for pixel in pixels]
        return rows if self.steps is None else [row + at for row in rows for at in (0, pitch)]


class Chunk:
    """The points of a span, one of which each lane has calculated.

    Attributes:
      span: the span.
      point: the lane's own.
      pixels: the pixels of a point.
    """

    def __init__(self, unit: Unit, span: Span, point: Point):
        self.k, self.config, self.plan = unit.k, unit.config, unit.plan
        self.span, self.point = span, point
        self.factors = self._factors()
        self.pixels = range(len(self.factors))

    def sample(self, number: int) -> Sample:
        """One of the points, for all lanes; all of them come here together."""

        def told(value: Val) -> Val:
            if self.plan.chunk == 1:
                return value
            return self.k.shuffle("idx", value, number, width=self.plan.chunk)

        bits = told(self.point.inside)
        inside = [(bits & (1 << i)).ne(0) for i in self.pixels]
        factors = [told(factor) for factor in self.factors]
        steps = None
        if not self.config.geometry.nearest:
            sizes = self.span.level.size[1:]
            steps = [
                self.k.bitcast(functools.reduce(operator.mul, sizes[axis:]), s32)
                for axis in range(len(sizes))
            ]
        return Sample(told(self.point.pixel), inside, factors, steps)

    def _factors(self) -> list[Val]:
        fractions, weight = self.point.fractions, self.point.weight
        if self.config.geometry.nearest:
            one = 1.0 + functools.reduce(operator.mul, fractions)  # NaN stays
            return [one if weight is None else one * weight]
        first, *others = [(1.0 - fraction, fraction) for fraction in fractions]
        factors = [factor if weight is None else factor * weight for factor in first]
        for pair in others:
            factors = [factor * of_axis for factor in factors for of_axis in pair]
        return factors


def each_chunk(
    unit: Unit,
    arrays: PointArrays,
    softmax: Softmax | None,
    write: Callable[[Chunk], None],
    level: int | None = None,
) -> None:
    """Goes through the points of a unit in chunks.

    Args:
      unit: the unit.
      arrays: where its points are.
      softmax: the softmax of the unit's weights, if they are to be normalised.
      write: writes what is done with a chunk.
      level: the only level whose points are wanted; None for all.
    """

    def of_span(span: Span) -> None:
        write(Chunk(unit, span, point_of(unit, arrays, softmax, span)))

    if level is None:
        each_span(unit, of_span)
    else:
        each_span_of_level(unit, level, of_span)


def point_of(unit: Unit, arrays: PointArrays, softmax: Softmax | None, span: Span) -> Point:
    """The lane's own point of a span."""
    k = unit.k
    index = arrays.index(span)
    coordinates = _coordinates(unit, arrays, index, span.exists)
    poison = _poison(unit, coordinates)
    axes = _axes(unit, span, coordinates)
    level, in_image = span.level, axes[0].first
    for size, axis in zip(level.size[1:], axes[1:], strict=True):
        in_image = k.bitcast(size, s32) * in_image + axis.first
    pixel = in_image if level.first_pixel is None else in_image + k.bitcast(level.first_pixel, s32)
    inside = k.var(u32, 0)
    for i, along in enumerate(itertools.product(*(axis.inside for axis in axes))):
        exists = functools.reduce(operator.and_, along, span.exists)
        inside.set(inside | k.select(exists, 1 << i, 0, u32))
    return Point(
        index, [axis.first for axis in axes], pixel, inside.value(),
        [axis.fraction + poison for axis in axes], [axis.slope for axis in axes],
        weight_of(unit, arrays, softmax, span),
    )  # fmt: skip


def first_pixels(unit: Unit, arrays: PointArrays, span: Span) -> list[Val]:
    """The first pixel of the lane's own point of a span along each axis, as `Point` has them.

    Also where there is no such unit: that of the one in range.
    """
    coordinates = _coordinates(unit, arrays, arrays.index(span), None)
    return [axis.first for axis in _axes(unit, span, coordinates)]


def weight_of(unit: Unit, arrays: PointArrays, softmax: Softmax | None, span: Span) -> Val | None:
    """The weight of the lane's own point, in the type of sums; None for 1."""
    k = unit.k
    if arrays.weights is None:
        return None
    (weight,) = widen(k, [(arrays.weights + arrays.index(span)).load(where=span.exists)])
    if softmax is not None:
        weight = softmax.normalized(weight)
    return rounded(k, weight, unit.config.sum_type)


def _coordinates(unit: Unit, arrays: PointArrays, index: Val, where: Val | None) -> list[Val]:
    place = arrays.load_place(index, where)
    return [unit.k.convert(v, unit.config.coordinate_type) for v in place]


def _poison(unit: Unit, coordinates: Sequence[Val]) -> Val:
    """NaN if a coordinate is, which makes the whole sample NaN; its pixels are outside. Else 0."""
    invalid = functools.reduce(operator.or_, [unit.k.isnan(v) for v in coordinates])
    return unit.k.select(invalid, float("nan"), 0.0, unit.config.sum_type)


class _Along(NamedTuple):
    """A point along an axis: its first pixel, its fraction, which pixels are inside; the slope."""

    first: Val
    fraction: Val
    inside: list[Val]
    slope: Val | float


def _axes(unit: Unit, span: Span, coordinates: Sequence[Val]) -> list[_Along]:
    return [_along(unit, span, axis, at) for axis, at in enumerate(reversed(coordinates))]


def _along(unit: Unit, span: Span, axis: int, coordinate: Val) -> _Along:
    k, config, extent = unit.k, unit.config, span.level.extents[axis]
    pixel = None if unit.out_pixel is None else unit.out_pixel[axis]
    position = config.geometry.along(k, axis, coordinate, extent, pixel, span.own)
    real, floor = position.real, k.floor(position.real)
    near = k.min(floor, _FAR)  # of NaN too; what is far below, the conversion keeps there
    first = k.convert(near, s32, "rz")
    if not isinstance(position.whole, int):
        first = first + position.whole
    fraction = k.max(real - floor, 0.0)  # 0 of infinities and NaN
    further = range(1 if config.geometry.nearest else 2)
    inside = [k.bitcast(first + i, u32) < extent.size for i in further]
    slope = position.slope
    if isinstance(slope, Val):
        slope = rounded(k, slope, config.sum_type)
    return _Along(first, rounded(k, fraction, config.sum_type), inside, slope)


def rounded(k: Kernel, value: Val, dtype: DType) -> Val:
    """A float in another type, or as it is."""
    return value if value.dtype is dtype else k.convert(value, dtype, "rn")
