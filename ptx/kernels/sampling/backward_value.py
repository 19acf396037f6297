"""Backward to the images: the gradient of each sum is added to the pixels of its samples.

Where queries lie beside each other, as `has_tiles` says, those of a tile are added together first:
see `backward_value_tiles`. The order of the additions is not fixed.
"""

from __future__ import annotations

import math
from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import Instance, KernelDefinition, Out
from ptx.kernels.sampling.backward_value_tiles import write_tiles
from ptx.kernels.sampling.catalog import CONFIGS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import WIDTH, Window
from ptx.kernels.sampling.operations import GRAD_Y, POINTS
from ptx.kernels.sampling.parameters import SIZES, check, entry, grid, text_config
from ptx.kernels.sampling.plan import TILE, SamplingPlan, add_plan
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.points import Chunk, each_chunk
from ptx.kernels.sampling.softmax import Softmax
from ptx.kernels.sampling.units import Unit, each_turn
from ptx.tile.vectors import add_weighted, any_infinite, both, load_elements

__all__ = ["BACKWARD_VALUE"]


def _body(k: Kernel, config: SamplingConfig, plan: SamplingPlan, p: Any) -> None:
    if plan.slice:
        write_tiles(k, config, plan, p)
        return
    unit = Unit(k, config, plan, p)
    arrays = PointArrays(unit, p.locations, p.weights, p.packed)
    softmax = Softmax(unit, arrays) if config.normalize else None
    pitch = config.heads * config.channels

    def turn(channel: Val, channel_ok: Val | None) -> None:
        first = unit.pixels(p.grad_value, channel)
        grads = load_elements(unit.sums(p.grad_y, channel), plan.width)
        infinite = any_infinite(grads)

        def add(chunk: Chunk) -> None:
            for number in range(chunk.span.count):
                sample = chunk.sample(number)
                for address, inside, factor in zip(
                    sample.addresses(first, pitch), sample.inside, sample.factors, strict=True
                ):
                    add_weighted(
                        address, factor, grads, infinite,
                        where=both(inside, channel_ok), together=plan.width,
                    )  # fmt: skip

        each_chunk(unit, arrays, softmax, add)

    each_turn(unit, turn)


def _grid(instance: Instance) -> tuple[int, int, int]:
    """Blocks in x: of units, or of the tiles of all images and heads."""
    config, plan = instance.config, instance.plan
    if not plan.slice:
        return grid(instance)
    sizes = config.levels
    if isinstance(config.geometry, Window):
        columns = config.geometry.out_size[WIDTH]
        sizes = ((-(-instance.sizes["q"] // columns), columns),)
    tiles = sum(math.prod(-(-size // TILE) for size in level) for level in sizes)
    return instance.sizes["n"] * tiles * config.heads, 1, 1


# Configurations whose queries are the pixels of their images.
_ENCODERS = {name: {"q": CONFIGS[name].pixels} for name in ("attention/bf16", "attention/f16")}

BACKWARD_VALUE = KernelDefinition(
    name="sampling_backward_value",
    configs=CONFIGS,
    parameters=(
        *(*POINTS, GRAD_Y, Out("grad_value", "n s m d", "sum_type", initial="zeros")),
        *SIZES,
    ),
    plan=add_plan,
    check=check,
    grid=_grid,
    entry=entry("backward_value"),
    body=_body,
    launch_sizes=_ENCODERS,
    text_config=text_config,
)
