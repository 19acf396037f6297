"""Weighted sums of samples on a GPU: each function is the CUDA lowering of a primitive."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from oxijax._core.config import is_deterministic
from oxijax._core.launch import call
from oxijax._core.precision import accumulator, ptx_dtype
from oxijax._sampling.lists import point_lists
from oxijax._sampling.packed import unpack
from oxijax._sampling.places import Across, Window
from oxijax._sampling.points import SampleParams
from ptx.kernels.sampling import (
    BACKWARD_POINTS,
    BACKWARD_VALUE,
    BACKWARD_VALUE_GATHER,
    FORWARD,
    SamplingConfig,
    require_room,
)

__all__ = ["backward_points", "backward_value", "forward"]


def forward(config: SampleParams, value, locations, weights, packed):
    """The sums [N, Q, M, D]."""
    kernel_config = _kernel_config(config, value, locations, weights, packed)
    return call(
        FORWARD, kernel_config, batch="n",
        value=value, locations=locations, weights=weights, packed=packed,
    )  # fmt: skip


def backward_value(config: SampleParams, locations, weights, packed, grad_y):
    """The gradient to the images, summed in float32 by atomic additions.

    Where a fixed order is asked for, from lists without them.
    """
    n, _, heads, channels = grad_y.shape
    if is_deterministic():
        points = unpack(config, heads, locations, weights, packed)
        lists = point_lists(config, *points, accumulator(grad_y))._asdict()
        kernel_config = _kernel_config(config, grad_y, *points, packed=None)
        return call(BACKWARD_VALUE_GATHER, kernel_config, sizes={"n": n}, **lists, grad_y=grad_y)
    kernel_config = _kernel_config(config, grad_y, locations, weights, packed)
    (total,) = call(
        BACKWARD_VALUE, kernel_config, batch="n",
        locations=locations, weights=weights, packed=packed, grad_y=grad_y,
        zeros=jnp.zeros((n, config.pixels, heads, channels), accumulator(grad_y)),
    )  # fmt: skip
    assert total is not None
    return (total.astype(grad_y.dtype),)


def backward_points(config: SampleParams, value, locations, weights, packed, grad_y):
    """The gradients to locations and weights, or to what has both."""
    kernel_config = _kernel_config(config, value, locations, weights, packed)
    require_room(kernel_config)
    return call(
        BACKWARD_POINTS, kernel_config, batch="n",
        value=value, locations=locations, weights=weights, packed=packed, grad_y=grad_y,
    )  # fmt: skip


def _kernel_config(config: SampleParams, images, locations, weights, packed) -> SamplingConfig:
    """The kernels' configuration, for operands or gradients of images [..., M, D]."""
    heads, channels = images.shape[2:]
    place = config.place
    fields: dict[str, Any] = {"place": "across"}
    if not isinstance(place, Across):
        fields = {field.name: getattr(place, field.name) for field in dataclasses.fields(place)}
        fields["place"] = "window" if isinstance(place, Window) else "grid"
    fields["nearest"] = place.nearest
    return SamplingConfig(
        heads, channels, config.levels, config.points, **fields,
        normalize=config.normalize,
        packed=packed is not None,
        float_type=ptx_dtype(images.dtype),
        location_type=ptx_dtype((locations if packed is None else packed).dtype),
        weight_type=None if weights is None else ptx_dtype(weights.dtype),
    )  # fmt: skip
