"""Forward: weighted sums of samples."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import KernelDefinition
from ptx.kernels.sampling.catalog import CONFIGS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.operations import POINTS, VALUE, Y
from ptx.kernels.sampling.parameters import SIZES, check, entry, grid, text_config
from ptx.kernels.sampling.plan import SamplingPlan, read_plan
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.points import Chunk, each_chunk
from ptx.kernels.sampling.softmax import Softmax
from ptx.kernels.sampling.units import Unit, each_turn
from ptx.tile.vectors import both, load_words, store_vector, widen

__all__ = ["FORWARD"]


def _body(k: Kernel, config: SamplingConfig, plan: SamplingPlan, p: Any) -> None:
    unit = Unit(k, config, plan, p)
    arrays = PointArrays(unit, p.locations, p.weights, p.packed)
    softmax = Softmax(unit, arrays) if config.normalize else None
    pitch = config.heads * config.channels

    def turn(channel: Val, channel_ok: Val | None) -> None:
        first = unit.pixels(p.value, channel)
        sums = [k.var(config.sum_type, 0.0) for _ in range(plan.width)]

        def add(chunk: Chunk) -> None:
            for number in range(chunk.span.count):
                sample = chunk.sample(number)
                for address, inside, factor in zip(
                    sample.addresses(first, pitch), sample.inside, sample.factors, strict=True
                ):
                    words = load_words(address, plan.width, where=inside)
                    for total, element in zip(sums, widen(k, words), strict=True):
                        total.set(k.fma(factor, element, total))

        each_chunk(unit, arrays, softmax, add)
        store_vector(unit.sums(p.y, channel), sums, where=both(unit.exists, channel_ok))

    each_turn(unit, turn)


FORWARD = KernelDefinition(
    name="sampling_forward",
    configs=CONFIGS,
    parameters=(VALUE, *POINTS, Y, *SIZES),
    plan=read_plan,
    check=check,
    grid=grid,
    entry=entry("forward"),
    body=_body,
    text_config=text_config,
)
