"""Backward to locations and weights, from the dots of a sample's pixels: each is written once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import Instance, KernelDefinition
from ptx.isa.targets import TARGETS
from ptx.kernels.sampling.catalog import CONFIGS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.operations import GRAD_POINTS, GRAD_Y, POINTS, VALUE
from ptx.kernels.sampling.parameters import SIZES, check, entry, grid, text_config
from ptx.kernels.sampling.plan import SHARED_BYTES, SamplingPlan, chunks, kept_bytes, points_plan
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.points import Chunk, Point, each_chunk, weight_of
from ptx.kernels.sampling.softmax import Softmax
from ptx.kernels.sampling.units import Span, Unit, across_chunk, each_span, each_turn
from ptx.tile.vectors import both, load_elements, load_words, widen

__all__ = ["BACKWARD_POINTS", "require_room"]


def _body(k: Kernel, config: SamplingConfig, plan: SamplingPlan, p: Any) -> None:
    unit = Unit(k, config, plan, p)
    gradients = _Gradients(unit, p)

    def grads_of(channel: Val) -> list[Val]:
        return load_elements(unit.sums(p.grad_y, channel), plan.width)

    grads: list[Val] = []  # of all levels, where a lane has one vector
    if plan.turns == 1 and len(config.levels) > 1:
        each_turn(unit, lambda channel, _: grads.extend(grads_of(channel)))

    def of_chunk(chunk: Chunk) -> None:
        points = range(chunk.span.count)
        dots = [[k.var(config.sum_type, 0.0) for _ in chunk.pixels] for _ in points]

        def turn(channel: Val, channel_ok: Val | None) -> None:
            own = grads or grads_of(channel)
            first = unit.pixels(p.value, channel)
            for number in points:
                sample = chunk.sample(number)
                addresses = sample.addresses(first, config.heads * config.channels)
                for address, inside, dot in zip(
                    addresses, sample.inside, dots[number], strict=True
                ):
                    words = load_words(address, plan.width, where=both(inside, channel_ok))
                    for element, grad in zip(widen(k, words), own, strict=True):
                        dot.set(k.fma(element, grad, dot))

        each_turn(unit, turn)
        gradients.store(chunk, _own_dots(unit, dots))

    each_chunk(unit, gradients.arrays, gradients.softmax, of_chunk)
    gradients.finish()


def _own_dots(unit: Unit, dots: Sequence[Sequence[Val]]) -> Sequence[Val]:
    """The dots of the lane's own point, added up over all lanes, always in the same order.

    Each step halves the points that a lane has partial sums of, and the lanes whose sums are apart.
    Lanes without a point get those of another.
    """
    k, plan = unit.k, unit.plan
    half = plan.chunk // 2
    while half:
        upper = (unit.lane & half).ne(0)
        dots = [
            _halved(k, low, dots[i + half] if i + half < len(dots) else None, upper, half)
            for i, low in enumerate(dots[:half])
        ]
        half //= 2
    (own,) = dots
    mask = plan.chunk
    while mask < plan.lanes:
        own = [dot + k.shuffle("bfly", dot, mask) for dot in own]
        mask *= 2
    return own


def _halved(
    k: Kernel, low: Sequence[Val], high: Sequence[Val] | None, upper: Val, distance: int
) -> list[Val]:
    """The point of two that a lane keeps, with the values that a lane at some distance has of it.

    Where there is no second one, both lanes get the first.
    """
    if high is None:
        return [a + k.shuffle("bfly", a, distance) for a in low]
    return [
        k.select(upper, b, a) + k.shuffle("bfly", k.select(upper, a, b), distance)
        for a, b in zip(low, high, strict=True)
    ]


def _of_point(point: Point, dots: Sequence[Val]) -> tuple[Val, list[Val]]:
    """The gradients to a point's weight, and to its coordinate along each axis.

    They follow from the dots of the gradient of the sum with the channels of each of its pixels.
    """
    k, fractions = dots[0].kernel, point.fractions
    axes = range(len(fractions))
    if len(dots) == 1:
        poison = functools.reduce(operator.add, fractions)  # 0, or NaN, whatever the weight
        return dots[0] * (1.0 + functools.reduce(operator.mul, fractions)), [poison for _ in axes]
    rest = [1.0 - fraction for fraction in fractions]

    def interpolated(values: Sequence[Val], along: Sequence[int]) -> Val:
        """Values at the corners of a cube along some axes, interpolated along all of them."""
        for axis in reversed(along):
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [k.fma(rest[axis], low, fractions[axis] * high) for low, high in pairs]
        (value,) = values
        return value

    gradients = []
    of_weight = interpolated(dots, axes)
    for axis, slope in enumerate(point.slopes):
        distance = 1 << (len(axes) - 1 - axis)  # between neighbours along the axis
        steps = [dots[i + distance] - dot for i, dot in enumerate(dots) if not i & distance]
        gradient = interpolated(steps, [other for other in axes if other != axis]) * slope
        gradients.append(gradient)
    if len(axes) == 1:  # no other axis's fraction has NaN
        gradients = [k.fma(fractions[0], 0.0, gradient) for gradient in gradients]
    if point.weight is not None:
        gradients = [gradient * point.weight for gradient in gradients]
    return of_weight, gradients


class _Gradients:
    """The gradients to locations and weights in global memory.

    Through a softmax, that to a weight needs those of all points of its unit.

    Attributes:
      arrays: where the unit's points are.
      softmax: the softmax of the unit's weights, if they are to be normalised.
    """

    def __init__(self, unit: Unit, p: Any):
        self.unit = unit
        self.arrays = PointArrays(unit, p.locations, p.weights, p.packed)
        self.written = PointArrays(unit, p.grad_locations, p.grad_weights, p.grad_packed)
        k, config, plan = unit.k, unit.config, unit.plan
        self.softmax: Softmax | None = None
        if config.normalize:
            self.softmax = Softmax(unit, self.arrays)
            self.mean = k.var(config.sum_type, 0.0)
            # Of each thread's own points: no other thread reads them.
            count = chunks(config, plan) * plan.threads
            self.kept = k.shared("weight_gradients", config.sum_type, count)

    def store(self, chunk: Chunk, dots: Sequence[Val]) -> None:
        """Writes those of the lane's own point, from the dots of its pixels."""
        k, point, span = self.unit.k, chunk.point, chunk.span
        grad_weight, of_axes = _of_point(point, dots)
        dtype = self.written.locations.dtype
        values = [k.convert(value, dtype, "rn") for value in reversed(of_axes)]
        place = self.written.place(point.index)
        self.written.store_place(place, values, self._writes(span))
        if point.weight is None:
            return
        if self.softmax is None:
            self._store_weight(span, grad_weight)
            return
        share = k.select(span.exists, grad_weight * point.weight, 0.0)
        self.mean.set(self.mean + share)
        self._slot(span).store(0, grad_weight)

    def finish(self) -> None:
        """Writes what needs the gradients of all points, and what no point has."""
        self.written.store_padding()
        softmax = self.softmax
        if softmax is None:
            return
        self.unit.k.comment("through the softmax")
        mean = across_chunk(self.unit, self.mean.value(), self.unit.k.add)

        def through(span: Span) -> None:
            weight = weight_of(self.unit, self.arrays, softmax, span)
            assert weight is not None
            self._store_weight(span, weight * (self._slot(span).load() - mean))

        each_span(self.unit, through)

    def _writes(self, span: Span) -> Val:
        """Whether the thread is the one that writes its own point: others may have it too."""
        plan = self.unit.plan
        return (
            span.exists & (self.unit.lane < plan.chunk) if plan.chunk < plan.lanes else span.exists
        )

    def _slot(self, span: Span) -> Pointer:
        return self.kept + (self.unit.k.tid() + span.number * self.unit.plan.threads)

    def _store_weight(self, span: Span, value: Val) -> None:
        weights = self.written.weights
        assert weights is not None
        rounded = self.unit.k.convert(value, weights.dtype, "rn")
        (weights + self.written.index(span)).store(0, rounded, where=self._writes(span))


def require_room(config: SamplingConfig) -> None:
    """Raises ValueError where the points of a softmax are more than a block has room for."""
    needed = kept_bytes(config, points_plan(config, TARGETS["sm_75"], None))
    if config.normalize and needed > SHARED_BYTES:
        raise ValueError(
            f"normalize with {config.points} points takes {needed} bytes of a GPU's shared memory, "
            f"and {SHARED_BYTES} are there: give a softmax of the weights instead"
        )


def _check(instance: Instance) -> None:
    check(instance)
    require_room(instance.config)


BACKWARD_POINTS = KernelDefinition(
    name="sampling_backward_points",
    configs=CONFIGS,
    parameters=(
        *(VALUE, *POINTS, GRAD_Y),
        *GRAD_POINTS,
        *SIZES,
    ),
    plan=points_plan,
    check=_check,
    grid=grid,
    entry=entry("backward_points"),
    body=_body,
    text_config=text_config,
)
