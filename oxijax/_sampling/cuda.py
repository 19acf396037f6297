"""Weighted sums of samples on a GPU: each function is the CUDA lowering of a primitive."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from oxijax._core.config import is_deterministic
from oxijax._core.launch import call
from oxijax._core.precision import ptx_dtype
from oxijax._sampling.lists import point_lists
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


def forward(config: SampleParams, value, locations, weights):
    """The sums [N, Q, M, D]."""
    kernel_config = _kernel_config(config, value.shape[2:], value.dtype, locations, weights)
    return call(
        FORWARD, kernel_config, batch="n", value=value, locations=locations, weights=weights
    )


def backward_value(config: SampleParams, locations, weights, grad_y):
    """The gradient to the images, summed in float32 by atomic additions.

    Where a fixed order is asked for, from lists without them.
    """
    n, _, heads, channels = grad_y.shape
    kernel_config = _kernel_config(config, grad_y.shape[2:], grad_y.dtype, locations, weights)
    accumulator = jnp.promote_types(grad_y.dtype, jnp.float32)
    if is_deterministic():
        lists = point_lists(config, locations, weights, accumulator)._asdict()
        return call(BACKWARD_VALUE_GATHER, kernel_config, sizes={"n": n}, **lists, grad_y=grad_y)
    (total,) = call(
        BACKWARD_VALUE, kernel_config, batch="n",
        locations=locations, weights=weights, grad_y=grad_y,
        zeros=jnp.zeros((n, config.pixels, heads, channels), accumulator),
    )  # fmt: skip
    assert total is not None
    return (total.astype(grad_y.dtype),)


def backward_points(config: SampleParams, value, locations, weights, grad_y):
    """The gradients to locations and weights."""
    kernel_config = _kernel_config(config, value.shape[2:], value.dtype, locations, weights)
    require_room(kernel_config)
    return call(
        BACKWARD_POINTS, kernel_config, batch="n",
        value=value, locations=locations, weights=weights, grad_y=grad_y,
    )  # fmt: skip


def _kernel_config(
    config: SampleParams, head: tuple[int, int], dtype, locations, weights
) -> SamplingConfig:
    place = config.place
    fields: dict[str, Any] = {"place": "across"}
    if not isinstance(place, Across):
        fields = {field.name: getattr(place, field.name) for field in dataclasses.fields(place)}
        fields["place"] = "window" if isinstance(place, Window) else "grid"
    fields["nearest"] = place.nearest
    return SamplingConfig(
        *head, config.levels, config.points, **fields,
        normalize=config.normalize,
        float_type=ptx_dtype(dtype),
        location_type=ptx_dtype(locations.dtype),
        weight_type=None if weights is None else ptx_dtype(weights.dtype),
    )  # fmt: skip
