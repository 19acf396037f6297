"""Lowerings of the sampling primitives that need more on a GPU than their kernel."""

import jax.numpy as jnp

from oxijax._core.arguments.precision import accumulator
from oxijax._core.config import is_deterministic
from oxijax._core.launch import call
from oxijax._sampling.lists import point_lists
from oxijax._sampling.packed import unpack
from oxijax._sampling.points import SampleParams
from ptx.kernels.sampling import (
    BACKWARD_POINTS,
    BACKWARD_VALUE,
    BACKWARD_VALUE_GATHER,
    require_room,
)

__all__ = ["backward_points", "backward_samples", "backward_value"]


def backward_value(params: SampleParams, locations, weights, packed, grad_y):
    """The gradient to the images, summed in float32 by atomic additions.

    Where a fixed order is asked for, from lists without them.
    """
    n, _, heads, channels = grad_y.shape
    if is_deterministic():
        points = unpack(params.op, heads, locations, weights, packed)
        lists = point_lists(params.op, *points, accumulator(grad_y))._asdict()
        return call(BACKWARD_VALUE_GATHER, params.op, sizes={"n": n}, **lists, grad_y=grad_y)
    (total,) = call(
        BACKWARD_VALUE, params.op, batch="n",
        locations=locations, weights=weights, packed=packed, grad_y=grad_y,
        zeros=jnp.zeros((n, params.op.pixels, heads, channels), accumulator(grad_y)),
    )  # fmt: skip
    assert total is not None
    return (total.astype(grad_y.dtype),)


def backward_points(params: SampleParams, value, locations, weights, packed, grad_y):
    """The gradients to locations and weights, or to what has both."""
    require_room(params.op)
    return call(
        BACKWARD_POINTS, params.op, batch="n",
        value=value, locations=locations, weights=weights, packed=packed, grad_y=grad_y,
    )  # fmt: skip


def backward_samples(params: SampleParams, value, locations, weights, packed, grad_y):
    """The gradients to the images and to their points, by a kernel for each."""
    points = locations, weights, packed
    (grad_value,) = backward_value(params, *points, grad_y)
    return grad_value, *backward_points(params, value, *points, grad_y)
