"""Deformable convolution on a GPU: each function is the CUDA lowering of a primitive."""

import math

import jax.numpy as jnp

from oxijax._core.config import is_deterministic
from oxijax._core.launch import call
from oxijax._core.precision import is_exact, ptx_dtype
from oxijax._deform_conv.lists import sample_lists
from oxijax._deform_conv.reference import DeformConvParams
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    DeformConvConfig,
    backward_weight_parts,
)

__all__ = ["backward_input", "backward_offset", "backward_weight", "forward"]


def forward(config: DeformConvParams, x, offset, weight, mask, bias):
    """The output [N, P, Q, Co]."""
    kernel_config = _kernel_config(config, x.shape[3], weight.shape[3], x.dtype, offset, mask)
    return call(
        FORWARD, kernel_config, batch="n", x=x, offset=offset, weight=weight, mask=mask, bias=bias
    )


def backward_input(config: DeformConvParams, offset, weight, mask, grad_y):
    """The gradient to x, summed in float32 by atomic additions, or from lists without them."""
    dtype, channels, (h, w) = weight.dtype, config.groups * weight.shape[2], config.image_size
    kernel_config = _kernel_config(config, channels, weight.shape[3], dtype, offset, mask)
    accumulator = jnp.promote_types(dtype, jnp.float32)
    if is_deterministic():
        lists = sample_lists(config, offset, mask, accumulator)._asdict()
        wide = weight.astype(jnp.float32) if dtype == jnp.float16 else weight  # the kernel says why
        sizes = {"h": h, "w": w}
        return call(
            BACKWARD_INPUT_GATHER, kernel_config, sizes=sizes, **lists, weight=wide, grad_y=grad_y
        )
    zeros = jnp.zeros((offset.shape[0], h, w, channels), accumulator)
    (total,) = call(
        BACKWARD_INPUT, kernel_config, batch="n",
        offset=offset, weight=weight, mask=mask, grad_y=grad_y, zeros=zeros,
    )  # fmt: skip
    assert total is not None
    return (total.astype(dtype),)


def backward_offset(config: DeformConvParams, x, offset, weight, mask, grad_y):
    """The gradients to offset and mask."""
    kernel_config = _kernel_config(config, x.shape[3], weight.shape[3], x.dtype, offset, mask)
    return call(
        BACKWARD_OFFSET, kernel_config, batch="n",
        x=x, offset=offset, weight=weight, mask=mask, grad_y=grad_y,
    )  # fmt: skip


def backward_weight(config: DeformConvParams, x, offset, mask, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    kernel_config = _kernel_config(config, x.shape[3], grad_y.shape[3], x.dtype, offset, mask)
    sizes = {"s": backward_weight_parts(kernel_config, math.prod(offset.shape[:3]))}
    (partial,) = call(
        BACKWARD_WEIGHT, kernel_config, batch="n", sizes=sizes,
        x=x, offset=offset, mask=mask, grad_y=grad_y,
    )  # fmt: skip
    assert partial is not None
    return (partial.sum(axis=0).astype(x.dtype),)


def _kernel_config(
    config: DeformConvParams, channels: int, outputs: int, dtype, offset, mask
) -> DeformConvConfig:
    kernel_h, kernel_w = config.kernel_size
    (pad_h, _), (pad_w, _) = config.padding
    return DeformConvConfig(
        in_channels=channels,
        out_channels=outputs,
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        stride_h=config.strides[0],
        stride_w=config.strides[1],
        pad_h=pad_h,
        pad_w=pad_w,
        dilation_h=config.dilation[0],
        dilation_w=config.dilation[1],
        groups=config.groups,
        offset_groups=offset.shape[3] // (2 * kernel_h * kernel_w),
        float_type=ptx_dtype(dtype),
        offset_type=ptx_dtype(offset.dtype),
        mask_type=None if mask is None else ptx_dtype(mask.dtype),
        exact=is_exact(config.precision, dtype),
    )
