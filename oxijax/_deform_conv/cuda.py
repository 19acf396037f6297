"""Lowerings of the deform_conv primitives that need more on a GPU than their kernel."""

import math

import jax.numpy as jnp

from oxijax._convolution import ConvParams
from oxijax._core.arguments.checks import is_known, likely
from oxijax._core.arguments.precision import accumulator
from oxijax._core.config import is_deterministic
from oxijax._core.launch import call
from oxijax._deform_conv.lists import can_be_listed, sample_lists, sum_scale
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    backward_weight_parts,
    gathers,
)

__all__ = ["backward_input", "backward_samples", "backward_weight"]


def backward_input(params: ConvParams, offset, weight, mask, grad_y):
    """The gradient to x, summed in float32 by atomic additions, or from lists without them.

    By default, the kernel that is expected to be faster is used.
    """
    h, w = params.size("h", "w")
    wants_lists, pixels = is_deterministic(), math.prod(offset.shape[:3])
    if wants_lists is None:
        wants_lists = (
            is_known(pixels) and gathers(params.op, pixels) and can_be_listed(params, offset)
        )
    if wants_lists:
        lists = sample_lists(params, offset, mask, accumulator(weight))
        scale = None
        if not params.op.sums_fit:
            scale = sum_scale(params, lists, mask, grad_y)
            lists = lists._replace(corner_weights=lists.corner_weights / scale)
        return call(
            BACKWARD_INPUT_GATHER, params.op, sizes={"h": h, "w": w},
            **lists._asdict(), sum_scale=scale, weight=weight, grad_y=grad_y,
        )  # fmt: skip
    zeros = jnp.zeros((offset.shape[0], h, w, params.op.in_channels), accumulator(weight))
    (total,) = call(
        BACKWARD_INPUT, params.op, batch="n",
        offset=offset, weight=weight, mask=mask, grad_y=grad_y, zeros=zeros,
    )  # fmt: skip
    assert total is not None
    return (total.astype(weight.dtype),)


def backward_samples(params: ConvParams, x, offset, weight, mask, grad_y):
    """The gradients to x, offset and mask, by a kernel for x and one for the others."""
    (grad_x,) = backward_input(params, offset, weight, mask, grad_y)
    others = call(
        BACKWARD_OFFSET, params.op, batch="n",
        x=x, offset=offset, weight=weight, mask=mask, grad_y=grad_y,
    )  # fmt: skip
    return grad_x, *others


def backward_weight(params: ConvParams, x, offset, mask, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    pixels = likely(math.prod(offset.shape[:3]))
    (partial,) = call(
        BACKWARD_WEIGHT, params.op, batch="n",
        sizes={"s": backward_weight_parts(params.op, pixels)},
        x=x, offset=offset, mask=mask, grad_y=grad_y,
    )  # fmt: skip
    assert partial is not None
    return (partial.sum(axis=0).astype(x.dtype),)
