"""Backward to the images without atomics: each pixel gathers from the samples that read it.

The lists of those samples are made beforehand, by sorting. A point lies in a cell: the square of
four pixels that it interpolates, or two pixels of a line or eight of a volume, named by the first
one, so that a pixel is a corner of as many cells. A point that is a pixel lies in that one's cell,
and has no other. All sums have an order that depends on the lists alone, and each result is written
once.

Cells are those of an image with a border of `CELL_BORDER` pixels, of all levels after each other
and of all images, and for each the heads. The lists are:

- starts [z], where the list of each cell starts, and in the end where the last one ends.
- order [i], the points of all queries and heads, sorted by their cells.
- corner_weights [i, u], in the same order, bilinear weights times the point's of the corners u:
  (y, x), (y, x+1), (y+1, x), (y+1, x+1), for example, or of the pixel.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import In, Instance, KernelDefinition, Size, Sizes
from ptx.isa.dtypes import u32, u64
from ptx.kernels.limits import PIXELS, check_count
from ptx.kernels.sampling.catalog import CONFIGS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.operations import GRAD_VALUE, GRAD_Y
from ptx.kernels.sampling.parameters import BATCH_SIZE, IMAGE_SIZES, check, entry, text_config
from ptx.kernels.sampling.plan import SamplingPlan, read_plan
from ptx.kernels.sampling.units import Unit, each_turn
from ptx.tile.vectors import both, load_elements, store_vector

__all__ = ["BACKWARD_VALUE_GATHER", "CELL_BORDER", "cells_of"]

CELL_BORDER = 2  # cells around an image, on each side


def cells_of(config: SamplingConfig) -> int:
    """Cells of one head of an image."""
    return sum(_cells(level) for level in config.levels)


def _cells(level: Sequence[Any]) -> Any:
    """Cells of a level, whose sizes are ints or registers."""
    return functools.reduce(operator.mul, [size + 2 * CELL_BORDER for size in level])


def _body(k: Kernel, config: SamplingConfig, plan: SamplingPlan, p: Any) -> None:
    unit = Unit(k, config, plan, p, of_pixels=True)
    cell, pitches = _cell(unit)
    steps: list[Any] = [0] if config.geometry.nearest else [0, 1]
    for pitch in () if config.geometry.nearest else pitches:
        steps += [pitch if i == 0 else pitch + step for i, step in enumerate(steps)]
    of_unit = sum(config.points)

    def turn(channel: Val, channel_ok: Val | None) -> None:
        sums = [k.var(config.sum_type, 0.0) for _ in range(plan.width)]
        for corner, step in enumerate(steps):
            k.comment(f"points of which the pixel is corner {corner}")
            of_corner = (cell - step) * config.heads + unit.head
            # Nothing is read outside of the lists, whatever is in them.
            start, end = ((p.starts + of_corner).load(i) for i in range(2))
            end = k.min(end, p.points)
            with k.loop(start, end, name="entry", unroll=False) as entry:
                point = k.min((p.order + entry).load(), p.points - 1)
                source = point // of_unit
                weights = p.corner_weights + k.mul_wide(entry, len(steps))
                weight = weights.load(corner)
                at = k.mad_wide(source, config.channels, k.convert(channel, u64))
                grads = load_elements(p.grad_y + at, plan.width)
                for total, grad in zip(sums, grads, strict=True):
                    total.set(k.fma(weight, grad, total))
        place = unit.sums(p.grad_value, channel)
        store_vector(place, sums, where=both(unit.exists, channel_ok))

    each_turn(unit, turn)


def _cell(unit: Unit) -> tuple[Val, list[Val]]:
    """The cell of the unit's pixel among those of a head of all images, and pitches.

    These are cells from one to the next one along the axes but the last, from the last but one on.
    """
    k, (first, *others) = unit.k, unit.levels
    sizes = [k.var(u32, size) for size in first.size[1:]]
    pixel, cells = k.var(u32, unit.query), k.var(u32, 0)
    first_cell = _cells(first.size)
    for level in others:
        assert level.first_pixel is not None
        with k.if_(unit.query >= level.first_pixel):
            for size, own in zip(sizes, level.size[1:], strict=True):
                size.set(own)
            pixel.set(unit.query - level.first_pixel)
            cells.set(first_cell)
        first_cell = first_cell + _cells(level.size)
    pitches: list[Val] = []
    for size in reversed(sizes):
        pitch = size + 2 * CELL_BORDER
        pitches.append(pitch * pitches[-1] if pitches else pitch)
    rest, places = pixel.value(), []
    for size in reversed(sizes):
        rest, place = rest // size, rest % size
        places.append(place + CELL_BORDER)
    *places, last = [rest + CELL_BORDER, *reversed(places)]
    cell = unit.image * first_cell + cells
    for place, pitch in zip(places, reversed(pitches), strict=True):
        cell = cell + place * pitch
    return cell + last, pitches


def _grid(instance: Instance) -> tuple[int, int, int]:
    config = instance.config
    units = instance.sizes["n"] * config.pixels * config.heads
    return -(-units // instance.plan.units), 1, 1


def _check(instance: Instance) -> None:
    check(instance)
    config, sizes = instance.config, instance.sizes
    n, q, heads = sizes["n"], sizes["q"], config.heads
    cells, points = n * cells_of(config) * heads, n * q * heads * sum(config.points)
    check_count(f"cells of {heads} heads of {n} images of levels {config.levels}", cells, PIXELS)
    check_count(f"points of {heads} heads of {n} x {q} queries", points, PIXELS)
    for name, expected in (("z", cells + 1), ("i", points)):
        if sizes[name] != expected:
            raise ValueError(f"lists must have {name} = {expected}, got {sizes[name]}")


def _known(config: SamplingConfig) -> Sizes:
    return {"u": config.corners}


BACKWARD_VALUE_GATHER = KernelDefinition(
    name="sampling_backward_value_gather",
    configs=CONFIGS,
    parameters=(
        *(In("starts", "z", u32), In("order", "i", u32), In("corner_weights", "i u", "sum_type")),
        *(GRAD_Y, GRAD_VALUE, BATCH_SIZE, *IMAGE_SIZES),
        Size("points", lambda instance: instance.sizes["i"]),
    ),
    known=_known,
    plan=read_plan,
    check=_check,
    grid=_grid,
    entry=entry("backward_value_gather"),
    body=_body,
    text_config=text_config,
)
