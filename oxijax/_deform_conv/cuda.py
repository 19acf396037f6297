"""Deformable convolution on a GPU: each function is the CUDA lowering of a primitive."""

import math

import jax.numpy as jnp

from oxijax._core.config import is_deterministic
from oxijax._core.convolution import ConvParams
from oxijax._core.launch import call
from oxijax._core.precision import accumulator, ptx_dtype
from oxijax._core.sizes import is_known, likely
from oxijax._deform_conv.lists import can_be_listed, sample_lists
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    DeformConvConfig,
    backward_weight_parts,
    gathers,
)

__all__ = ["backward_input", "backward_offset", "backward_weight", "forward"]


def forward(config: ConvParams, x, offset, weight, mask, bias):
    """The output [N, P, Q, Co]."""
    kernel_config = _kernel_config(config, x.shape[3], weight.shape[3], x.dtype, offset, mask)
    return call(
        FORWARD, kernel_config, batch="n",
        products=config.products(x.shape[0], x.shape[3], weight.shape[3]),
        x=x, offset=offset, weight=weight, mask=mask, bias=bias,
    )  # fmt: skip


def backward_input(config: ConvParams, offset, weight, mask, grad_y):
    """The gradient to x, summed in float32 by atomic additions, or from lists without them.

    Where nobody has asked for either, the kernel that should be faster is taken.
    """
    dtype, channels, (h, w) = weight.dtype, config.groups * weight.shape[2], config.image_size
    kernel_config = _kernel_config(config, channels, weight.shape[3], dtype, offset, mask)
    products = config.products(offset.shape[0], channels, weight.shape[3])
    wants_lists, pixels = is_deterministic(), math.prod(offset.shape[:3])
    if wants_lists is None:
        wants_lists = (
            is_known(pixels) and gathers(kernel_config, pixels) and can_be_listed(config, offset)
        )
    if wants_lists:
        lists = sample_lists(config, offset, mask, accumulator(weight))._asdict()
        wide = weight.astype(jnp.float32) if dtype == jnp.float16 else weight  # the kernel says why
        return call(
            BACKWARD_INPUT_GATHER, kernel_config, sizes={"h": h, "w": w}, products=products,
            **lists, weight=wide, grad_y=grad_y,
        )  # fmt: skip
    zeros = jnp.zeros((offset.shape[0], h, w, channels), accumulator(weight))
    (total,) = call(
        BACKWARD_INPUT, kernel_config, batch="n", products=products,
        offset=offset, weight=weight, mask=mask, grad_y=grad_y, zeros=zeros,
    )  # fmt: skip
    assert total is not None
    return (total.astype(dtype),)


def backward_offset(config: ConvParams, x, offset, weight, mask, grad_y):
    """The gradients to offset and mask."""
    kernel_config = _kernel_config(config, x.shape[3], weight.shape[3], x.dtype, offset, mask)
    return call(
        BACKWARD_OFFSET, kernel_config, batch="n",
        products=config.products(x.shape[0], x.shape[3], weight.shape[3]),
        x=x, offset=offset, weight=weight, mask=mask, grad_y=grad_y,
    )  # fmt: skip


def backward_weight(config: ConvParams, x, offset, mask, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    kernel_config = _kernel_config(config, x.shape[3], grad_y.shape[3], x.dtype, offset, mask)
    pixels = likely(math.prod(offset.shape[:3]))
    (partial,) = call(
        BACKWARD_WEIGHT, kernel_config, batch="n",
        sizes={"s": backward_weight_parts(kernel_config, pixels)},
        products=config.products(x.shape[0], x.shape[3], grad_y.shape[3]),
        x=x, offset=offset, mask=mask, grad_y=grad_y,
    )  # fmt: skip
    assert partial is not None
    return (partial.sum(axis=0).astype(x.dtype),)


def _kernel_config(
    config: ConvParams, channels: int, outputs: int, dtype, offset, mask
) -> DeformConvConfig:
    return DeformConvConfig(
        **config.kernel_fields(channels, outputs, dtype),
        offset_groups=offset.shape[3] // (2 * config.taps),
        offset_type=ptx_dtype(offset.dtype),
        mask_type=None if mask is None else ptx_dtype(mask.dtype),
    )
