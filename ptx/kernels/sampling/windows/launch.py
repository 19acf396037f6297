"""Shared parts of the definitions of the kernels of windows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ptx.definition import Instance, Size
from ptx.kernels.limits import PIXELS, check_count
from ptx.kernels.sampling.parameters import BATCH_SIZE
from ptx.kernels.sampling.windows.config import WindowsConfig

__all__ = ["SIZES", "check", "entry", "grid", "text_config"]


def text_config(config: WindowsConfig) -> WindowsConfig:
    """The configuration without the size of images, which are parameters."""
    return dataclasses.replace(config, size=(1,) * config.dims)


def _size(name: str, axis: int) -> Size:
    """The size of an image along an axis, counted from the last one, -1."""
    return Size(
        name,
        lambda instance: instance.config.size[axis],
        lambda config, plan: config.dims >= -axis,
    )


SIZES = (
    *(BATCH_SIZE, Size("queries", lambda instance: instance.sizes["q"])),
    Size("image_pixels", lambda instance: instance.config.pixels),
    *(_size("depth", -3), _size("height", -2), _size("width", -1)),
)


def check(instance: Instance) -> None:
    """Raises ValueError, which names the limit, for sizes that a kernel cannot count."""
    config, n, q = instance.config, instance.sizes["n"], instance.sizes["q"]
    if config.channels != 1:
        raise ValueError(f"windows of samples must have 1 channel, got {config.channels}")
    columns = math.prod(size + 1 for size in config.window[1:])
    for what, count in (
        (f"pixels of {n} images of {config.size}", n * config.pixels),
        (f"columns of {n} x {q} windows", n * q * columns),
    ):
        check_count(what, count, PIXELS)


def grid(more: int) -> Callable[[Instance], tuple[int, int, int]]:
    """Blocks of columns in x; for `more` see `Column`."""

    def blocks(instance: Instance) -> tuple[int, int, int]:
        columns = math.prod(size + more for size in instance.config.window[1:])
        count = instance.sizes["n"] * instance.sizes["q"] * columns
        return -(-count // instance.plan.threads), 1, 1

    return blocks


def entry(kernel: str) -> Callable[[WindowsConfig, Any], str]:
    """Names the PTX entry of a kernel: sampling_windows_forward_f32_2d, for example."""
    return lambda config, plan: f"sampling_windows_{kernel}_{config.float_type}_{config.dims}d"
