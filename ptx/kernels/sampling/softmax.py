"""The softmax of the weights of a unit's points."""

from __future__ import annotations

import math
from collections.abc import Callable

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import f32, f64, s32, s64, u64
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.units import Unit, across_chunk
from ptx.tile.vectors import accumulator_of, widen

__all__ = ["Softmax", "exp"]


class Softmax:
    """The softmax over all points of a unit; all of its lanes come here together.

    Args:
      unit: the unit.
      arrays: where its weights are.
    """

    def __init__(self, unit: Unit, arrays: PointArrays):
        k, plan, points = unit.k, unit.plan, sum(unit.config.points)
        self.k = k
        first = arrays.first_weight()
        dtype = accumulator_of(first.dtype)
        k.comment("softmax: the largest weight, and the sum")

        def over_points(
            start: float, add: Callable[[Val, Val], Val], join: Callable[[Val, Val], Val]
        ) -> Val:
            total = k.var(dtype, start)
            with k.loop(
                unit.lane % plan.chunk, points, plan.chunk, name="weight", unroll=False
            ) as t:
                (weight,) = widen(k, [(first + t).load()])
                total.set(add(total, weight))
            return across_chunk(unit, total.value(), join)

        self.largest = over_points(-math.inf, k.max, k.max)
        total = over_points(0.0, lambda so_far, w: so_far + exp(k, w - self.largest), k.add)
        self.scale = 1.0 / total

    def normalized(self, weight: Val) -> Val:
        """The normalised weight."""
        return exp(self.k, weight - self.largest) * self.scale


def exp(k: Kernel, value: Val) -> Val:
    """The exponential of a number that is 0 at most, or NaN; what is below 1e-300 may be 0.

    In f64 by its Taylor series to the 13th power within half a power of 2, to 2 units in the last
    place.
    """
    if value.dtype is f32:
        return k.op("ex2.approx.f32", f32, value * math.log2(math.e))
    assert value.dtype is f64
    near = k.select(value < -700.0, -700.0, value)  # 2 to a normal number's power
    power = k.round(near * math.log2(math.e), "rn")
    # ln(2) in two parts, the first of which has few enough bits for an exact product.
    rest = k.fma(power, -_LN2_HIGH, near)
    rest = k.fma(power, -_LN2_LOW, rest)
    total = k.fma(rest, 1 / math.factorial(13), 1 / math.factorial(12))
    for n in range(11, -1, -1):
        total = k.fma(total, rest, 1 / math.factorial(n))
    exponent = k.convert(k.convert(power, s32, "rz") + 1023, s64)
    scale = k.bitcast(k.bitcast(exponent, u64) << 52, f64)
    return k.select(value < -700.0, 0.0, total * scale)


_LN2_HIGH = math.ldexp(math.floor(math.ldexp(math.log(2), 32)), -32)
_LN2_LOW = 1.9082149292705877e-10
