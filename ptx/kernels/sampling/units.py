"""Units of the sampling kernels, one head of a query each: the work of neighbouring lanes."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import Extent, Window
from ptx.kernels.sampling.plan import SamplingPlan
from ptx.tile.division import divided

__all__ = [
    "Level",
    "Place",
    "Span",
    "Unit",
    "across_chunk",
    "each_span",
    "each_span_of_level",
    "each_turn",
]


class Place(NamedTuple):
    """Where a unit is: its image, query and head, in range, and whether there is such a unit."""

    image: Val
    query: Val
    head: Val
    exists: Val


class Unit:
    """One head of a query, or of a pixel: the work of neighbouring lanes.

    Args:
      k: the kernel.
      config: the sum.
      plan: the plan of the block.
      p: the kernel's parameters.
      place: where the unit is; None for units in order.
      of_pixels: whether units are of pixels, which then are the queries of their image.

    Attributes:
      index: among the heads of all queries; in range, also where `exists` is off.
      exists: predicate: whether there is such a unit.
      lane: the thread's number among the unit's.
      row: the row of the unit, among the queries of all images.
      head, image, query: of the unit.
      out_pixel: the row and the column of the query in a window's output; else None.
      levels: the levels of an image.
    """

    def __init__(
        self,
        k: Kernel,
        config: SamplingConfig,
        plan: SamplingPlan,
        p: Any,
        place: Place | None = None,
        of_pixels: bool = False,
    ):
        self.k, self.config, self.plan, self.image_pixels = k, config, plan, p.image_pixels
        queries = p.image_pixels if of_pixels else p.queries
        if place is None:
            count = p.batch_size * queries * config.heads
            index = k.ctaid() * plan.units + k.tid() // plan.lanes
            self.exists = index < count
            self.index = k.min(index, count - 1)
            self.lane = k.tid() % plan.lanes
            self.row = self.index // config.heads
            self.head = self.index % config.heads
            if of_pixels:
                self.image, self.query = self.row // queries, self.row % queries
            else:
                self.image, self.query = divided(self.row, queries, p.queries_inverse)
        else:
            self.image, self.query, self.head, self.exists = place
            self.lane = k.tid() % plan.lanes
            self.row = self.image * queries + self.query
            self.index = self.row * config.heads + self.head
        k.name(unit=self.index, head=self.head, image=self.image, query=self.query)
        self.out_pixel: tuple[Val, Val] | None = None
        if isinstance(config.geometry, Window) and not of_pixels:
            line, column = divided(self.query, p.out_width, p.out_width_inverse)
            _, row = divided(line, p.out_height, p.out_height_inverse)  # of one of several outputs
            self.out_pixel = row, column
        self.levels = _levels(k, config, p)

    def pixels(self, images: Pointer, channel: Val | int) -> Pointer:
        """The unit's first pixel in images [N, S, M, D], at a channel of its head."""
        k, config = self.k, self.config
        at = k.convert(self.head * config.channels + channel, u64)
        return images + k.mad_wide(
            self.image * self.image_pixels, config.heads * config.channels, at
        )

    def sums(self, array: Pointer, channel: Val) -> Pointer:
        """A channel of the unit in an array [N, Q, M, D], or of pixels [N, S, M, D]."""
        return array + self.k.mad_wide(
            self.index, self.config.channels, self.k.convert(channel, u64)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """A level of the images.

    Attributes:
      size: along each axis: u32.
      extents: the same, for a geometry.
      first_pixel: the first pixel of the level, u32; None for the first level, which has 0.
    """

    size: tuple[Val, ...]
    extents: tuple[Extent, ...]
    first_pixel: Val | None


def _levels(k: Kernel, config: SamplingConfig, p: Any) -> list[Level]:
    levels, first_pixel = [], None
    sizes = (p.level_depths, p.level_heights, p.level_widths)[-config.dims :]
    for i, size in enumerate(zip(*sizes, strict=True)):
        extents = tuple(
            Extent(number, k.convert(number, config.coordinate_type, "rn"), known == 1)
            for number, known in zip(size, config.levels[i], strict=True)
        )
        levels.append(Level(size, extents, first_pixel))
        pixels = functools.reduce(operator.mul, size)
        first_pixel = pixels if first_pixel is None else first_pixel + pixels
    return levels


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Neighbouring points of a level, one for each lane or for some of them.

    Attributes:
      own: number of the lane's own point among the unit's.
      exists: predicate: whether there is such a point, and the unit.
      count: the number of points.
      number: the index of the span, among the unit's.
      level: the level.
    """

    own: Val
    exists: Val
    count: int
    number: Val | int
    level: Level


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
    for index in range(len(unit.levels)):
        each_span_of_level(unit, index, write)


def each_span_of_level(unit: Unit, index: int, write: Callable[[Span], None]) -> None:
    """`each_span` of the points in one level."""
    k, points, step = unit.k, unit.config.points, unit.plan.chunk
    count, first_point = points[index], sum(points[:index])
    number = sum(-(-count // step) for count in points[:index])
    k.comment(f"{count} points in level {index}")
    span = functools.partial(_span, unit, unit.levels[index])
    whole, rest = divmod(count, step)
    if whole == 1:
        write(span(first_point, step, number))
    elif whole:
        with k.loop(0, whole, name="chunk", unroll=False) as i:
            write(span(i * step + first_point, step, i + number))
    if rest:
        write(span(first_point + whole * step, rest, number + whole))


def _span(unit: Unit, level: Level, start: Val | int, count: int, number: Val | int) -> Span:
    """The span of `count` points from one on."""
    own, exists = unit.lane % unit.plan.chunk + start, unit.exists
    if count < unit.plan.chunk:
        exists = exists & (own < start + count)
    return Span(own, exists, count, number, level)


def across_chunk(unit: Unit, value: Val, join: Callable[[Val, Val], Val]) -> Val:
    """What all lanes that share a chunk have, joined; always in the same order."""
    mask = 1
    while mask < unit.plan.chunk:
        value = join(value, unit.k.shuffle("bfly", value, mask))
        mask *= 2
    return value
