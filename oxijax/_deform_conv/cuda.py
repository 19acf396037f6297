"""Deformable convolution on a GPU: each function is the CUDA lowering of a primitive."""

import dataclasses

import jax
import jax.numpy as jnp

import ptx
from oxijax._core.config import is_deterministic
from oxijax._core.launch import launch
from oxijax._deform_conv.lists import sample_lists
from oxijax._deform_conv.reference import DeformConvParams
from ptx.kernels.deform_conv import (
    DeformableConvConfig,
    backward_weight_parts,
    is_small_grid,
)

__all__ = ["backward_input", "backward_offset", "backward_weight", "forward"]

_DTYPES = {"float16": ptx.f16, "bfloat16": ptx.bf16, "float32": ptx.f32, "float64": ptx.f64}


def forward(config: DeformConvParams, x, offset, weight, mask, bias):
    """The output [N, P, Q, Co]."""
    kernel = _kernel_config(config, x.shape[3], offset, weight, mask, bias is not None)
    y = jax.ShapeDtypeStruct((*offset.shape[:3], weight.shape[3]), x.dtype)
    small = is_small_grid(kernel, y.size // y.shape[3])
    kernel = dataclasses.replace(kernel, small_grid=small)
    # [Co, T, C/G]: what the products run along lies together.
    weight = weight.reshape(-1, *weight.shape[2:]).transpose(2, 0, 1)
    operands = [v for v in (x, offset, weight, mask, bias) if v is not None]
    shared = (2,) if bias is None else (2, len(operands) - 1)
    batch = {"batch_dims": 1, "shared": shared}
    return tuple(launch("deform_conv_forward", kernel, operands, [y], **batch))


def backward_input(config: DeformConvParams, offset, weight, mask, grad_y):
    """The gradient to x, summed in float32 by atomic additions, or from lists without them."""
    channels = config.groups * weight.shape[2]
    kernel = _kernel_config(config, channels, offset, weight, mask)
    shape = (offset.shape[0], *config.image_size, channels)
    if is_deterministic():
        return (_gather_backward_input(config, kernel, offset, weight, mask, grad_y, shape),)
    zeros = jnp.zeros(shape, jnp.promote_types(grad_y.dtype, jnp.float32))
    operands = [v for v in (offset, weight, mask, grad_y, zeros) if v is not None]
    like = jax.ShapeDtypeStruct(shape, zeros.dtype)
    aliases = {len(operands) - 1: 0}
    batch = {"aliases": aliases, "batch_dims": 1, "shared": (1,)}
    (total,) = launch("deform_conv_backward_input", kernel, operands, [like], **batch)
    return (total.astype(weight.dtype),)


def _gather_backward_input(
    config: DeformConvParams, kernel: DeformableConvConfig, offset, weight, mask, grad_y, shape
) -> jax.Array:
    """The gradient to x: each of its pixels gathers from the samples that read it."""
    lists = sample_lists(config, offset, mask, jnp.promote_types(grad_y.dtype, jnp.float32))
    wide = jnp.float32 if weight.dtype == jnp.float16 else weight.dtype  # the kernel says why
    operands = [*lists, weight.astype(wide), grad_y]
    like = jax.ShapeDtypeStruct(shape, weight.dtype)
    (grad_x,) = launch("deform_conv_backward_input_gather", kernel, operands, [like])
    return grad_x


def backward_offset(config: DeformConvParams, x, offset, weight, mask, grad_y):
    """The gradients to offset and mask."""
    kernel = _kernel_config(config, x.shape[3], offset, weight, mask)
    operands = [v for v in (x, offset, weight, mask, grad_y) if v is not None]
    results = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (offset, mask) if v is not None]
    batch = {"batch_dims": 1, "shared": (2,)}
    outs = launch("deform_conv_backward_offset", kernel, operands, results, **batch)
    return (*outs, None) if mask is None else tuple(outs)


def backward_weight(config: DeformConvParams, x, offset, mask, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    shape = (*config.kernel_size, x.shape[3] // config.groups, grad_y.shape[3])
    weight = jax.ShapeDtypeStruct(shape, x.dtype)
    kernel = _kernel_config(config, x.shape[3], offset, weight, mask)
    operands = [v for v in (x, offset, mask, grad_y) if v is not None]
    pixels = offset.shape[0] * offset.shape[1] * offset.shape[2]
    parts = backward_weight_parts(kernel, pixels)
    accumulator = jnp.promote_types(x.dtype, jnp.float32)
    partial = jax.ShapeDtypeStruct((parts, *shape), accumulator)
    batch = {"batch_dims": 1, "sums": (0,)}
    (partial,) = launch("deform_conv_backward_weight", kernel, operands, [partial], **batch)
    return (partial.sum(axis=0).astype(x.dtype),)


def _kernel_config(
    config: DeformConvParams, channels: int, offset, weight, mask, bias: bool = False
) -> DeformableConvConfig:
    kernel_h, kernel_w = config.kernel_size
    (pad_h, _), (pad_w, _) = config.padding
    exact = config.precision == jax.lax.Precision.HIGHEST  # HIGH means TF32 on a GPU, as in XLA
    return DeformableConvConfig(
        in_channels=channels,
        out_channels=weight.shape[3],
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
        use_modulation=mask is not None,
        use_bias=bias,
        float_type=_DTYPES[weight.dtype.name],
        offset_type=_DTYPES[offset.dtype.name],
        mask_type=None if mask is None else _DTYPES[mask.dtype.name],
        exact=exact and weight.dtype == jnp.float32,
    )
