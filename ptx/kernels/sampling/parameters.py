"""Shared parts of the definitions of the sampling kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.definition import Instance, Size
from ptx.isa.dtypes import DType
from ptx.kernels.limits import PIXELS, check_count
from ptx.kernels.sampling.config import SamplingConfig

__all__ = ["SIZES", "check", "entry", "grid", "weight_type"]


def weight_type(config: SamplingConfig) -> DType:
    """The type of the weights, in an array of their own or packed with the locations."""
    packed = config.location_type if config.packed else config.weight_type
    return packed or config.float_type


SIZES = (
    Size("batch_size", lambda instance: instance.sizes["n"]),
    Size("queries", lambda instance: instance.sizes["q"]),
)


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
    return lambda config, plan: f"sampling_{kernel}_{config.float_type}_{config.geometry.label}"
