"""Shared parts of the definitions of the sampling kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ptx.definition import Instance, Size
from ptx.isa.dtypes import DType
from ptx.kernels.limits import PIXELS, check_count
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import HEIGHT, WIDTH, Grid, Window
from ptx.tile.division import inverse

__all__ = [
    "BATCH_SIZE",
    "IMAGE_SIZES",
    "SIZES",
    "check",
    "entry",
    "grid",
    "text_config",
    "weight_type",
]


def weight_type(config: SamplingConfig) -> DType:
    """The type of the weights, in an array of their own or packed with the locations."""
    packed = config.location_type if config.packed else config.weight_type
    return packed or config.float_type


def text_config(config: SamplingConfig) -> SamplingConfig:
    """The configuration without the sizes of images and outputs, which are parameters.

    Of a grid the text depends on which of them are 1.
    """
    geometry = config.geometry
    if isinstance(geometry, Window):
        geometry = dataclasses.replace(geometry, out_size=(1, 1))
    known = 2 if isinstance(geometry, Grid) else 1
    levels = tuple(tuple(min(size, known) for size in level) for level in config.levels)
    return dataclasses.replace(config, levels=levels, geometry=geometry)


def _level_sizes(name: str, axis: int) -> Size:
    """The sizes of all levels along an axis, counted from the last one, -1."""
    return Size(
        name,
        lambda instance: [level[axis] for level in instance.config.levels],
        lambda config, plan: config.dims >= -axis,
        count=lambda config: len(config.levels),
    )


def _out_sizes(name: str, axis: int) -> tuple[Size, Size]:
    """The size of a window's output along an axis, and its inverse."""

    def size(instance: Instance) -> int:
        return instance.config.geometry.out_size[axis]

    return Size(name, size, _has_window), _inverse(f"{name}_inverse", size, _has_window)


def _inverse(
    name: str,
    divisor: Callable[[Instance], int],
    present: Callable[[Any, Any], bool] = lambda config, plan: True,
) -> Size:
    """The factor and the shift by which numbers are divided by a size."""
    return Size(name, lambda instance: inverse(divisor(instance)), present, count=lambda config: 2)


def _has_window(config: SamplingConfig, plan: Any) -> bool:
    return isinstance(config.geometry, Window)


BATCH_SIZE = Size("batch_size", lambda instance: instance.sizes["n"])
IMAGE_SIZES = (
    Size("image_pixels", lambda instance: instance.config.pixels),
    _level_sizes("level_depths", -3),
    *(_level_sizes("level_heights", -2), _level_sizes("level_widths", -1)),
)
SIZES = (
    *(BATCH_SIZE, Size("queries", lambda instance: instance.sizes["q"])),
    _inverse("queries_inverse", lambda instance: instance.sizes["q"]),
    *(*IMAGE_SIZES, *_out_sizes("out_height", HEIGHT), *_out_sizes("out_width", WIDTH)),
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
    """Names the PTX entry of a kernel: sampling_forward_f32_across, or _across_3d, for example."""

    def name(config: SamplingConfig, plan: Any) -> str:
        dims = "" if config.dims == 2 else f"_{config.dims}d"
        return f"sampling_{kernel}_{config.float_type}_{config.geometry.label}{dims}"

    return name
