"""Convolution on a GPU: each function is the CUDA lowering of a primitive."""

import dataclasses

import jax
import jax.numpy as jnp

import ptx
from oxijax._conv.reference import ConvParams
from oxijax._core.launch import launch
from ptx.kernels.conv import (
    ConvConfig,
    backward_weight_parts,
    is_direct,
    is_small_grid,
)

__all__ = ["backward_input", "backward_weight", "forward"]

_DTYPES = {"float16": ptx.f16, "bfloat16": ptx.bf16, "float32": ptx.f32, "float64": ptx.f64}


def forward(config: ConvParams, x, weight, bias):
    """The output [N, P, Q, Co]."""
    kernel = _kernel_config(config, x.shape[3], weight.shape[3], x.dtype)
    y = jax.ShapeDtypeStruct((x.shape[0], *config.out_size, weight.shape[3]), x.dtype)
    small = is_small_grid(kernel, y.size // y.shape[3])
    kernel = dataclasses.replace(kernel, small_grid=small)
    weight = weight.reshape(-1, *weight.shape[2:])
    if not is_direct(kernel):
        weight = weight.transpose(2, 0, 1)  # [Co, T, C/G]: what the products run along is together
    operands = [v for v in (x, weight, bias) if v is not None]
    shared = tuple(range(1, len(operands)))
    return tuple(launch("conv_forward", kernel, operands, [y], batch_dims=1, shared=shared))


def backward_input(config: ConvParams, weight, grad_y):
    """The gradient to x."""
    channels = config.groups * weight.shape[2]
    kernel = _kernel_config(config, channels, weight.shape[3], weight.dtype)
    shape = (grad_y.shape[0], *config.image_size, channels)
    small = is_small_grid(kernel, shape[0] * shape[1] * shape[2], backward_input=True)
    kernel = dataclasses.replace(kernel, small_grid=small)
    weight = weight.reshape(-1, *weight.shape[2:])
    like = jax.ShapeDtypeStruct(shape, weight.dtype)
    batch = {"batch_dims": 1, "shared": (0,)}
    return tuple(launch("conv_backward_input", kernel, [weight, grad_y], [like], **batch))


def backward_weight(config: ConvParams, x, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    kernel = _kernel_config(config, x.shape[3], grad_y.shape[3], x.dtype)
    shape = (*config.kernel_size, x.shape[3] // config.groups, grad_y.shape[3])
    parts = backward_weight_parts(kernel, grad_y.size // max(1, grad_y.shape[3]))
    accumulator = jnp.promote_types(x.dtype, jnp.float32)
    like = jax.ShapeDtypeStruct((parts, *shape), accumulator)
    batch = {"batch_dims": 1, "sums": (0,)}
    (partial,) = launch("conv_backward_weight", kernel, [x, grad_y], [like], **batch)
    return (partial.sum(axis=0).astype(x.dtype),)


def _kernel_config(config: ConvParams, channels: int, outputs: int, dtype) -> ConvConfig:
    (pad_h, _), (pad_w, _) = config.padding
    exact = config.precision == jax.lax.Precision.HIGHEST  # HIGH means TF32 on a GPU, as in XLA
    return ConvConfig(
        in_channels=channels,
        out_channels=outputs,
        kernel_h=config.kernel_size[0],
        kernel_w=config.kernel_size[1],
        stride_h=config.strides[0],
        stride_w=config.strides[1],
        pad_h=pad_h,
        pad_w=pad_w,
        dilation_h=config.dilation[0],
        dilation_w=config.dilation[1],
        groups=config.groups,
        float_type=_DTYPES[dtype.name],
        exact=exact and dtype == jnp.float32,
    )
