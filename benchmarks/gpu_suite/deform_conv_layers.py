"""The layers of deformable convolution that are timed: their operands, and their work."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from gpu_suite.layers import DTYPES, Work
from oxijax.testing import GPU_BENCHMARK_CASES, DeformConvCase
from ptx.kernels.deform_conv.catalog import NETWORKS
from ptx.kernels.layer_model import OFFSET_DEVIATION

__all__ = ["layers", "operands", "trains", "work"]


def layers(tiny: bool) -> dict[str, DeformConvCase]:
    """The layers by name; tiny ones with fewer channels, and images of a few pixels."""
    if not tiny:
        return dict(GPU_BENCHMARK_CASES)
    return {
        name: dataclasses.replace(
            case, x=(1, 4, 5, 32), out_channels=32, offset_groups=min(case.offset_groups, 2)
        )
        for name, case in GPU_BENCHMARK_CASES.items()
    }


def trains(case: DeformConvCase) -> bool:
    """Whether a layer has a backward pass."""
    return case.name not in NETWORKS or NETWORKS[case.name].trains


def operands(case: DeformConvCase, dtype: str, seed: jax.Array) -> tuple[jax.Array | None, ...]:
    """X, offset, weight, mask, bias and grad_y, of normal values."""
    samples = math.prod(case.kernel_size) * case.offset_groups
    in_group = case.x[3] // case.groups
    fan_in = math.prod(case.kernel_size) * in_group
    keys = iter(jax.random.split(jax.random.key(seed), 6))

    def normal(shape, scale=1.0):
        return (scale * jax.random.normal(next(keys), shape)).astype(dtype)

    return (
        normal(case.x),
        normal((*case.y[:3], 2 * samples), OFFSET_DEVIATION),
        normal((*case.kernel_size, in_group, case.out_channels), fan_in**-0.5),
        jnp.abs(normal((*case.y[:3], samples))) if case.mask else None,
        normal((case.out_channels,)) if case.bias else None,
        normal(case.y),
    )


def work(case: DeformConvCase, operation: str, dtype: str) -> Work:
    """What an operation on a layer has to do; a backward pass has three products."""
    taps, pixels = math.prod(case.kernel_size), math.prod(case.y[:3])
    in_group = case.x[3] // case.groups
    product = 2 * pixels * taps * in_group * case.out_channels
    x, y = math.prod(case.x), math.prod(case.y)
    weight = taps * in_group * case.out_channels
    samples = pixels * taps * case.offset_groups
    offsets = samples * (3 if case.mask else 2)  # offset and mask
    bias = case.out_channels if case.bias else 0
    forward = x + offsets + weight + bias + y
    elements = {
        "forward": forward,
        "backward_input": offsets + weight + y + x,
        "backward_offset": x + offsets + weight + y + offsets,
        "backward_weight": x + offsets + y + weight,
        # Forward; then all of it and grad_y are read, and all gradients written.
        "forward_backward": forward + forward + x + offsets + weight + bias,
    }[operation]
    products = 3 if operation == "forward_backward" else 1
    return Work(product * products, elements * DTYPES[dtype])
