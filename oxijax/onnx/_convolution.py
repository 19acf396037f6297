"""Convolutions as nodes of ONNX, whose images are NCHW and whose weights are OIHW."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._convolution import ConvParams
from oxijax.onnx._node import node

__all__ = ["conv", "deform_conv"]


def conv(
    opset: int, params: ConvParams, x: jax.Array, weight: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """`conv_forward` as Conv."""
    return _convolution("Conv", params, x, weight, bias)


def deform_conv(
    opset: int,
    params: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> jax.Array:
    """`deform_conv_forward` as DeformConv: in one dtype, the widest of its operands."""
    operands = [v for v in (x, offset, weight, mask, bias) if v is not None]
    dtype = functools.reduce(jnp.promote_types, (v.dtype for v in operands))
    offset = _nchw(offset.astype(dtype))
    mask = None if mask is None else _nchw(mask.astype(dtype))
    bias = None if bias is None else bias.astype(dtype)
    y = _convolution(
        *("DeformConv", params, x.astype(dtype), weight.astype(dtype), bias, offset, mask),
        offset_group=offset.shape[1] // (2 * params.op.taps),
    )
    return y.astype(x.dtype)


def _convolution(
    operator: str,
    params: ConvParams,
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    offset: jax.Array | None = None,
    mask: jax.Array | None = None,
    **attributes: Any,
) -> jax.Array:
    (top, bottom), (left, right) = params.op.padding
    operands = (_nchw(x), weight.transpose(3, 2, 0, 1))
    operands += (bias,) if offset is None else (offset, bias, mask)
    while operands[-1] is None:
        operands = operands[:-1]
    y = node(
        operator,
        operands,
        (x.shape[0], weight.shape[3], *params.size("p", "q")),
        dilations=params.op.dilation,
        group=params.op.groups,
        kernel_shape=params.op.kernel_size,
        pads=(top, left, bottom, right),
        strides=params.op.strides,
        **attributes,
    )
    return y.transpose(0, 2, 3, 1)


def _nchw(images: jax.Array) -> jax.Array:
    return images.transpose(0, 3, 1, 2)
