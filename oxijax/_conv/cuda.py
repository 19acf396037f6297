"""Convolution on a GPU: each function is the CUDA lowering of a primitive."""

import math

from oxijax._conv.reference import ConvParams
from oxijax._core.launch import call
from oxijax._core.precision import is_exact, ptx_dtype
from ptx.kernels.conv import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    ConvConfig,
    backward_weight_parts,
)

__all__ = ["backward_input", "backward_weight", "forward"]


def forward(config: ConvParams, x, weight, bias):
    """The output [N, P, Q, Co]."""
    kernel_config = _kernel_config(config, x.shape[3], weight.shape[3], x.dtype)
    p, q = config.out_size
    sizes = {"p": p, "q": q}
    return call(FORWARD, kernel_config, batch="n", sizes=sizes, x=x, weight=weight, bias=bias)


def backward_input(config: ConvParams, weight, grad_y):
    """The gradient to x."""
    channels = config.groups * weight.shape[2]
    kernel_config = _kernel_config(config, channels, weight.shape[3], weight.dtype)
    h, w = config.image_size
    sizes = {"h": h, "w": w}
    return call(BACKWARD_INPUT, kernel_config, batch="n", sizes=sizes, weight=weight, grad_y=grad_y)


def backward_weight(config: ConvParams, x, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    kernel_config = _kernel_config(config, x.shape[3], grad_y.shape[3], x.dtype)
    sizes = {"s": backward_weight_parts(kernel_config, math.prod(grad_y.shape[:3]))}
    (parts,) = call(BACKWARD_WEIGHT, kernel_config, batch="n", sizes=sizes, x=x, grad_y=grad_y)
    assert parts is not None
    return (parts.sum(axis=0).astype(x.dtype),)


def _kernel_config(config: ConvParams, channels: int, outputs: int, dtype) -> ConvConfig:
    (pad_h, _), (pad_w, _) = config.padding
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
        float_type=ptx_dtype(dtype),
        exact=is_exact(config.precision, dtype),
    )
