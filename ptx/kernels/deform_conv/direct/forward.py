"""Forward without tiles, for tiny groups: a thread has a pixel's outputs of whole groups."""

from __future__ import annotations

import contextlib
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.common import Corners
from ptx.kernels.deform_conv.plan import channels_per_position
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.tile.direct import DirectPlan, DirectThread
from ptx.tile.vectors import accumulator_of, load_words, store_vector, vector_width, widen

__all__ = ["direct_forward"]

_WEIGHT_BYTES = 24 * 1024  # of a block: nine blocks fit the SM of an H100


def direct_forward(k: Kernel, config: DeformConvConfig, plan: DirectPlan, p: Any) -> None:
    """Writes the whole kernel; the plan is a `grouped_plan`.

    The weights of a block lie in shared memory, in the order in which threads read them: in global
    memory those of neighbouring channels are `taps` apart.
    """
    offsets = Offsets.of(k, config, p)
    dtype, sum_type = config.float_type, accumulator_of(config.float_type)
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    thread = DirectThread(k, plan)
    pixel = thread.pixel(offsets.geometry, plan)
    channel = thread.unit * plan.channels
    outs = plan.channels // in_group * out_group
    first_out = thread.unit * outs
    k.name(channel=channel, first_out=first_out)

    weights = _Weights(k, config, plan, p.weight, thread.first_unit)
    width = channels_per_position(config, plan.channels)
    sampled = [
        (
            (channel + start) // config.channels_per_offset_group,
            Corners(offsets, p.x + channel + start),
        )
        for start in range(0, plan.channels, width)
    ]
    sums = [k.var(sum_type, 0.0) for _ in range(outs)]
    with weights.chunks() as first_tap:
        weights.fill(first_tap)
        with k.loop(weights.count(first_tap), name="tap", unroll=False) as tap:
            values: list[Val] = []
            for group, corners in sampled:
                position = offsets.position(pixel, group, first_tap + tap, pixel.exists)
                values += corners.sample(pixel, position, width, pixel.exists)
            k.comment("products with each group's weights")
            factors = weights.load(tap, thread.column)
            for out, total in enumerate(sums):
                start = out // out_group * in_group
                for i in range(in_group):
                    total.set(k.fma(values[start + i], factors[out * in_group + i], total))

    k.comment("bias, and the output")
    step = vector_width(dtype, outs)
    at = k.mad_wide(pixel.index, config.out_channels, k.convert(first_out, u64))
    for i in range(0, outs, step):
        results: list[Val] = [total.value() for total in sums[i : i + step]]
        if p.bias is not None:
            added = widen(k, load_words(p.bias + first_out + i, step, where=pixel.exists))
            results = [v + b for v, b in zip(results, added, strict=True)]
        store_vector(p.y + at + i, results, where=pixel.exists)


class _Weights:
    """The weights of a block's channels and of some taps, in shared memory.

    They are [tap, vector, unit, element of the vector]; a unit's vectors together have its outputs'
    weights, each output's input channels together.
    """

    def __init__(
        self,
        k: Kernel,
        config: DeformConvConfig,
        plan: DirectPlan,
        weight: Pointer,
        first_unit: Val,
    ):
        self.k, self.config, self.plan, self.weight = k, config, plan, weight
        dtype, in_group = accumulator_of(config.float_type), config.in_channels_per_group
        self.outs = plan.channels // in_group * config.out_channels_per_group
        self.each = self.outs * in_group  # of a unit and a tap
        self.width = vector_width(dtype, self.each)
        self.first_out = first_unit * self.outs
        most = max(1, _WEIGHT_BYTES // (self.each * plan.across * dtype.bytes))
        self.taps = -(-config.taps // -(-config.taps // most))
        self.array = k.shared("weights", dtype, self.taps * self.each * plan.across)

    @contextlib.contextmanager
    def chunks(self):
        """The first taps of the chunks that there is room for: a loop, or 0."""
        k, taps = self.k, self.config.taps
        if self.taps == taps:
            yield 0
            return
        with k.loop(0, taps, self.taps, name="first_tap") as first:
            k.barrier()  # the taps before are done
            yield first

    def count(self, first_tap: Val | int) -> Val | int:
        """Taps of the chunk."""
        taps = self.config.taps
        if isinstance(first_tap, int) or taps % self.taps == 0:
            return self.taps
        return self.k.min(taps - first_tap, self.taps)

    def fill(self, first_tap: Val | int) -> None:
        """Copies a chunk, and waits for it: [outputs, taps, input channels] in memory."""
        k, config, plan = self.k, self.config, self.plan
        in_group = config.in_channels_per_group
        row = self.taps * in_group  # of an output
        k.comment("weights: from rows of an output each into vectors of a thread each")
        with k.loop(k.tid(), row * self.outs * plan.across, plan.threads, name="weight") as index:
            out, in_row = index // row, index % row
            tap, channel = in_row // in_group, in_row % in_group
            weight_ok = self.first_out + out < config.out_channels
            if config.taps % self.taps:
                weight_ok = weight_ok & (first_tap + tap < config.taps)
            at = k.mad_wide(
                self.first_out + out,
                config.taps * in_group,
                k.convert(first_tap * in_group + in_row, u64),
            )
            (value,) = widen(k, [(self.weight + at).load(where=weight_ok)])
            element = out % self.outs * in_group + channel
            vector = tap * (self.each // self.width) + element // self.width
            slot = (vector * plan.across + out // self.outs) * self.width + element % self.width
            self.array.store(slot, value)
        k.barrier()

    def load(self, tap: Val, column: Val) -> list[Val]:
        """A unit's weights of a tap: outputs, and of each the input channels."""
        vectors, across = self.each // self.width, self.plan.across
        address = self.array + (tap * (vectors * across) + column) * self.width
        values: list[Val] = []
        for vector in range(vectors):
            values += address.load(vector * across * self.width, self.width)
        return values
