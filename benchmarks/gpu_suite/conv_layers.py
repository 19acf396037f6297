"""The layers of convolution that are timed: their operands, their work, and XLA's convolution."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from gpu_suite.layers import DTYPES, Work
from oxijax.testing import CONV_GPU_BENCHMARK_CASES, ConvCase, DeformConvCase

__all__ = ["has_few_channels", "layers", "operands", "work", "xla_conv"]

_FEW_CHANNELS = 64
_DRY_RUN = ("ResNet50-conv1", "ResNet50-conv3-shortcut")


def layers(tiny: bool) -> dict[str, ConvCase]:
    """The layers by name; tiny ones are some, with fewer channels, and images of a few pixels."""
    if not tiny:
        return dict(CONV_GPU_BENCHMARK_CASES)
    return {name: _tiny(CONV_GPU_BENCHMARK_CASES[name]) for name in _DRY_RUN}


def _tiny(case: ConvCase) -> ConvCase:
    return dataclasses.replace(case, x=(1, 6, 7, min(case.x[3], 32)), out_channels=32)


def has_few_channels(case: ConvCase) -> bool:
    """Whether too few channels go in or come out to keep tensor cores busy."""
    return min(case.x[-1], case.out_channels) <= _FEW_CHANNELS


def operands(case: ConvCase, dtype: str, seed: jax.Array) -> tuple[jax.Array, ...]:
    """X, weight and grad_y, of normal values."""
    in_group = case.x[-1] // case.groups
    fan_in = math.prod(case.kernel_size) * in_group
    shapes = case.x, (*case.kernel_size, in_group, case.out_channels), case.y
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    x, weight, grad_y = (jax.random.normal(*one) for one in zip(keys, shapes, strict=True))
    return x.astype(dtype), (weight * fan_in**-0.5).astype(dtype), grad_y.astype(dtype)


def work(case: ConvCase, operation: str, dtype: str) -> Work:
    """What an operation on a layer has to do; it is one product.

    Pixels that strides leave out are not read, but their gradients are written, as zeros.
    """
    x, y = math.prod(case.x), math.prod(case.y)
    weight = math.prod(case.kernel_size) * case.x[-1] // case.groups * case.out_channels
    read = case.x[0] * case.x[-1] * math.prod(map(len, _read_places(case)))
    elements = {
        "forward": read + weight + y,
        "backward_input": y + weight + x,
        "backward_weight": read + y + weight,
    }[operation]
    return Work(2 * case.multiply_adds, elements * DTYPES[dtype])


def _read_places(case: ConvCase) -> list[set[int]]:
    """Along each spatial dimension, the places that some tap of some output reads."""
    window = zip(case.kernel_size, case.strides, case.dilation, case.pads, strict=True)
    return [
        {
            place
            for p in range(outputs)
            for k in range(taps)
            if 0 <= (place := p * stride - before + k * dilation) < size
        }
        for size, outputs, (taps, stride, dilation, (before, _)) in zip(
            case.x[1:-1], case.out_size, window, strict=True
        )
    ]


def xla_conv(case: ConvCase | DeformConvCase, padding: Any) -> Callable[..., jax.Array]:
    """XLA's convolution (x, weight, bias=None) -> y with a layer's arguments: cuDNN's on a GPU."""

    def conv(x, weight, bias=None):
        y = jax.lax.conv_general_dilated(
            x,
            weight,
            case.strides,
            padding,
            rhs_dilation=case.dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=case.groups,
        )
        return y if bias is None else y + bias

    return conv
