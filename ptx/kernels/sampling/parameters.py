"""Parameters that several kernels have, in the operands' own names, and what follows from them.

Dimensions: images n of s pixels with m heads of d channels; queries q with points t of two
coordinates k; p elements of a query where these are packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.isa.dtypes import DType
from ptx.kernel import Array, In, Instance, Out, Size, Sizes
from ptx.kernels.limits import PIXELS, check_count
from ptx.kernels.sampling.config import SamplingConfig

__all__ = [
    "GRAD_POINTS",
    "GRAD_Y",
    "POINTS",
    "SIZES",
    "VALUE",
    "check",
    "entry",
    "grid",
    "known",
    "sum_type",
    "weight_type",
]


def location_type(config: SamplingConfig) -> DType:
    return config.location_type or config.float_type


def weight_type(config: SamplingConfig) -> DType:
    """Of the weights, wherever they lie."""
    return location_type(config) if config.packed else config.weight_type or config.float_type


def sum_type(config: SamplingConfig) -> DType:
    return config.sum_type


class _Locations(Array):
    """Locations, or what is as large, which are there unless they are packed."""

    def is_present(self, config: SamplingConfig) -> bool:
        return not config.packed


class _LocationsIn(_Locations, In):
    """Locations, which a kernel reads."""


class _LocationsOut(_Locations, Out):
    """The gradient to locations."""


VALUE = In("value", "n s m d")
# Either locations, and perhaps weights, or what has both.
POINTS = (
    _LocationsIn("locations", "n q m t k", location_type),
    In("weights", "n q m t", weight_type, flag="use_weights"),
    In("packed", "n q p", location_type, flag="packed"),
)
GRAD_POINTS = (
    _LocationsOut("grad_locations", "n q m t k", location_type),
    Out("grad_weights", "n q m t", weight_type, flag="use_weights"),
    Out("grad_packed", "n q p", location_type, flag="packed"),
)
GRAD_Y = In("grad_y", "n q m d")
SIZES = (
    Size("batch_size", lambda instance: instance.sizes["n"]),
    Size("queries", lambda instance: instance.sizes["q"]),
)


def known(config: SamplingConfig) -> Sizes:
    """The sizes that follow from a configuration."""
    return {
        "s": config.pixels,
        "m": config.heads,
        "d": config.channels,
        "t": sum(config.points),
        "k": 2,
        "p": config.packed_width,
    }


def check(instance: Instance) -> None:
    """Raises ValueError, which names the limit, for sizes that a kernel cannot count."""
    config, n, q = instance.config, instance.sizes["n"], instance.sizes["q"]
    for what, count in (
        (f"pixels of {n} images of levels {config.levels}", n * config.pixels),
        (f"heads of {n} x {q} queries", n * q * config.heads),
    ):
        check_count(what, count, PIXELS)


def grid(instance: Instance) -> tuple[int, int, int]:
    """Blocks of units in x."""
    units = instance.sizes["n"] * instance.sizes["q"] * instance.config.heads
    return -(-units // instance.plan.units), 1, 1


def entry(kernel: str) -> Callable[[SamplingConfig, Any], str]:
    """Names the PTX entry of a kernel: sampling_forward_f32_across, for example."""
    return lambda config, plan: f"sampling_{kernel}_{config.float_type}_{config.place}"
