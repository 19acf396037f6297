"""Units of the sampling kernels, one head of a query each, and their points.

Each lane of a unit calculates the position of one point of a chunk; then all of them read or write
the pixels of all of its points, each its own channels, with what it is told by shuffles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DType, s32, u32, u64
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import HEIGHT, WIDTH
from ptx.kernels.sampling.plan import SamplingPlan
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.softmax import Softmax
from ptx.tile.vectors import widen

__all__ = [
    "Chunk",
    "Point",
    "Sample",
    "Span",
    "Unit",
    "each_chunk",
    "each_span",
    "each_turn",
    "weight_of",
]

_FAR = 2.0**30  # beyond any image; with a window's pixel it still is an s32


class Unit:
    """One head of a query, or of a pixel: the work of neighbouring lanes.

    Args:
      k: the kernel.
      config: the sum.
      plan: of the block.
      images: how many.
      queries: of an image; where units are of pixels, its pixels.

    Attributes:
      index: among the heads of all queries; in range, also where `exists` is off.
      exists: predicate: whether there is such a unit.
      lane: the thread's number among the unit's.
      row: of the unit, among the queries of all images.
      head, image, query: of the unit.
    """

    def __init__(
        self,
        k: Kernel,
        config: SamplingConfig,
        plan: SamplingPlan,
        images: Val,
        queries: Val | int,
    ):
        self.k, self.config, self.plan = k, config, plan
        count = images * queries * config.heads
        index = k.ctaid() * plan.units + k.tid() // plan.lanes
        self.exists = index < count
        self.index = k.min(index, count - 1)
        self.lane = k.tid() % plan.lanes
        self.row = self.index // config.heads
        self.head = self.index % config.heads
        self.image, self.query = self.row // queries, self.row % queries
        k.name(unit=self.index, head=self.head, image=self.image, query=self.query)

    def pixels(self, images: Pointer, channel: Val) -> Pointer:
        """The unit's first pixel in images [N, S, M, D], at a channel of its head."""
        k, config = self.k, self.config
        at = k.convert(self.head * config.channels + channel, u64)
        return images + k.mad_wide(self.image * config.pixels, config.heads * config.channels, at)

    def sums(self, array: Pointer, channel: Val) -> Pointer:
        """A channel of the unit in an array [N, Q, M, D], or of pixels [N, S, M, D]."""
        return array + self.k.mad_wide(
            self.index, self.config.channels, self.k.convert(channel, u64)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A point, as the lane knows it that has calculated it.

    Attributes:
      index: in its arrays.
      pixel: the first of its pixels in the image: s32, possibly outside.
      inside: a bit for each of its pixels, whether it is in the image and the point exists: u32.
      ly, lx: fractions, in the type of sums; both NaN if a coordinate is.
      slope_y, slope_x: of the position, with respect to the coordinate.
      weight: in the type of sums; None for 1.
    """

    index: Val
    pixel: Val
    inside: Val
    ly: Val
    lx: Val
    slope_y: Val | float
    slope_x: Val | float
    weight: Val | None


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """A point, as all lanes of a unit know it.

    Attributes:
      pixel: the first of its pixels in the image: s32, possibly outside.
      inside: predicates, for each of its pixels.
      factors: of its pixels, with the weight, in the type of sums.
      steps: elements from the first pixel to each.
    """

    pixel: Val
    inside: Sequence[Val]
    factors: Sequence[Val]
    steps: Sequence[int]

    def addresses(self, first: Pointer, pitch: int) -> list[Pointer]:
        """Of its pixels, from an image's first one and the elements from one to the next."""
        at = first + first.kernel.mul_wide(self.pixel, pitch)
        return [at + step for step in self.steps]


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Neighbouring points of a level, one for each lane or for some of them.

    Attributes:
      own: number of the lane's own point among the unit's.
      exists: predicate: whether there is such a point, and the unit.
      count: of the points.
      number: of the span, among the unit's.
      size: height and width of the level's images.
      first_pixel: of the level.
    """

    own: Val
    exists: Val
    count: int
    number: Val | int
    size: tuple[int, int]
    first_pixel: int


class Chunk:
    """The points of a span, one of which each lane has calculated.

    Attributes:
      span: the span.
      point: the lane's own.
      steps: elements from the first pixel of a point to each.
    """

    def __init__(self, unit: Unit, span: Span, point: Point):
        self.k, self.config, self.plan = unit.k, unit.config, unit.plan
        self.span, self.point = span, point
        pitch = self.config.heads * self.config.channels
        below = span.size[WIDTH] * pitch
        self.steps = [0] if self.config.geometry.nearest else [0, pitch, below, below + pitch]
        self.factors = self._factors()

    def sample(self, number: int) -> Sample:
        """One of the points, for all lanes; all of them come here together."""

        def told(value: Val) -> Val:
            if self.plan.chunk == 1:
                return value
            return self.k.shuffle("idx", value, number, width=self.plan.chunk)

        bits = told(self.point.inside)
        inside = [(bits & (1 << i)).ne(0) for i in range(len(self.steps))]
        factors = [told(factor) for factor in self.factors]
        return Sample(told(self.point.pixel), inside, factors, self.steps)

    def _factors(self) -> list[Val]:
        ly, lx, weight = self.point.ly, self.point.lx, self.point.weight
        if self.config.geometry.nearest:
            one = 1.0 + ly * lx  # NaN stays
            return [one if weight is None else one * weight]
        hy, hx = 1.0 - ly, 1.0 - lx
        if weight is not None:
            hy, ly = hy * weight, ly * weight
        return [hy * hx, hy * lx, ly * hx, ly * lx]


def each_turn(unit: Unit, turn: Callable[[Val, Val | None], None]) -> None:
    """Gives the lanes of a unit all channels of its head.

    Args:
      unit: the unit.
      turn: writes what is done with some: (the lane's first channel, in range; the predicate
        whether the lane has channels, None if it always has).
    """
    k, plan = unit.k, unit.plan

    def take(vector: Val) -> None:
        vector_ok = None
        if plan.vectors % plan.lanes:
            vector_ok, vector = vector < plan.vectors, k.min(vector, plan.vectors - 1)
        turn(vector * plan.width, vector_ok)

    if plan.turns == 1:
        take(unit.lane)
        return
    with k.loop(0, plan.turns * plan.lanes, plan.lanes, name="vector", unroll=False) as first:
        take(first + unit.lane)


def each_span(unit: Unit, write: Callable[[Span], None]) -> None:
    """Goes through the points of a unit in spans; `write` writes what is done with one."""
    k, config, step = unit.k, unit.config, unit.plan.chunk
    first_point = first_pixel = number = 0
    for size, count in zip(config.levels, config.points, strict=True):
        k.comment(f"{count} points in images of {size[HEIGHT]} x {size[WIDTH]}")
        span = functools.partial(_span, unit, size, first_pixel)
        whole, rest = divmod(count, step)
        if whole == 1:
            write(span(first_point, step, number))
        elif whole:
            with k.loop(0, whole, name="chunk", unroll=False) as i:
                write(span(i * step + first_point, step, i + number))
        if rest:
            write(span(first_point + whole * step, rest, number + whole))
        first_point, first_pixel = first_point + count, first_pixel + size[HEIGHT] * size[WIDTH]
        number += whole + bool(rest)


def _span(
    unit: Unit,
    size: tuple[int, int],
    first_pixel: int,
    start: Val | int,
    count: int,
    number: Val | int,
) -> Span:
    """The span of `count` points from one on."""
    own, exists = unit.lane % unit.plan.chunk + start, unit.exists
    if count < unit.plan.chunk:
        exists = exists & (own < start + count)
    return Span(own, exists, count, number, size, first_pixel)


def each_chunk(
    unit: Unit, arrays: PointArrays, softmax: Softmax | None, write: Callable[[Chunk], None]
) -> None:
    """Goes through the points of a unit in chunks.

    Args:
      unit: the unit.
      arrays: where its points are.
      softmax: of the unit's weights, if they are to be normalised.
      write: writes what is done with a chunk.
    """
    each_span(unit, lambda span: write(Chunk(unit, span, point_of(unit, arrays, softmax, span))))


def point_of(unit: Unit, arrays: PointArrays, softmax: Softmax | None, span: Span) -> Point:
    """The lane's own point of a span."""
    k, config = unit.k, unit.config
    index = arrays.index(span)
    pair = arrays.load_pair(index, span.exists)
    x, y = (k.convert(v, config.coordinate_type) for v in pair)
    # One NaN coordinate makes the whole sample NaN. Its pixels are outside.
    poison = k.select(k.isnan(x) | k.isnan(y), float("nan"), 0.0, config.sum_type)
    first_y, ly, inside_y, slope_y = _along(unit, span, HEIGHT, y)
    first_x, lx, inside_x, slope_x = _along(unit, span, WIDTH, x)
    pixel = first_y * span.size[WIDTH] + (first_x + span.first_pixel)
    inside = k.var(u32, 0)
    for i, (row_ok, column_ok) in enumerate((r, c) for r in inside_y for c in inside_x):
        inside.set(inside | k.select(span.exists & row_ok & column_ok, 1 << i, 0, u32))
    return Point(
        index, pixel, inside.value(), ly + poison, lx + poison, slope_y, slope_x,
        weight_of(unit, arrays, softmax, span),
    )  # fmt: skip


def weight_of(unit: Unit, arrays: PointArrays, softmax: Softmax | None, span: Span) -> Val | None:
    """The weight of the lane's own point, in the type of sums; None for 1."""
    k = unit.k
    if arrays.weights is None:
        return None
    (weight,) = widen(k, [(arrays.weights + arrays.index(span)).load(where=span.exists)])
    if softmax is not None:
        weight = softmax.normalized(weight)
    return _rounded(k, weight, unit.config.sum_type)


def _along(
    unit: Unit, span: Span, axis: int, coordinate: Val
) -> tuple[Val, Val, list[Val], Val | float]:
    """First pixel, fraction, which pixels are inside, and the slope, along an axis."""
    k, config, size = unit.k, unit.config, span.size[axis]
    position = config.geometry.along(k, axis, coordinate, size, unit.query, span.own)
    real, floor = position.real, k.floor(position.real)
    near = k.min(floor, _FAR)  # of NaN too; what is far below, the conversion keeps there
    first = k.convert(near, s32, "rz")
    if not isinstance(position.whole, int):
        first = first + position.whole
    fraction = k.select(abs(real) <= _FAR, real - floor, 0.0)
    further = range(1 if config.geometry.nearest else 2)
    inside = [k.bitcast(first + i, u32) < size for i in further]
    slope = position.slope
    if isinstance(slope, Val):
        slope = _rounded(k, slope, config.sum_type)
    return first, _rounded(k, fraction, config.sum_type), inside, slope


def _rounded(k: Kernel, value: Val, dtype: DType) -> Val:
    return value if value.dtype is dtype else k.convert(value, dtype, "rn")
