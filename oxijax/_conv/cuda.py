"""Convolution on a GPU: each function is the CUDA lowering of a primitive."""

import math

from oxijax._core.convolution import ConvParams
from oxijax._core.launch import call
from oxijax._core.sizes import likely
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
    return call(
        FORWARD, kernel_config, batch="n", sizes={"p": p, "q": q},
        products=config.products(x.shape[0], x.shape[3], weight.shape[3]),
        x=x, weight=weight, bias=bias,
    )  # fmt: skip


def backward_input(config: ConvParams, weight, grad_y):
    """The gradient to x."""
    channels = config.groups * weight.shape[2]
    kernel_config = _kernel_config(config, channels, weight.shape[3], weight.dtype)
    h, w = config.image_size
    return call(
        BACKWARD_INPUT, kernel_config, batch="n", sizes={"h": h, "w": w},
        products=config.products(grad_y.shape[0], channels, weight.shape[3]),
        weight=weight, grad_y=grad_y,
    )  # fmt: skip


def backward_weight(config: ConvParams, x, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    kernel_config = _kernel_config(config, x.shape[3], grad_y.shape[3], x.dtype)
    pixels = likely(math.prod(grad_y.shape[:3]))
    (parts,) = call(
        BACKWARD_WEIGHT, kernel_config, batch="n",
        sizes={"s": backward_weight_parts(kernel_config, pixels)},
        products=config.products(x.shape[0], x.shape[3], grad_y.shape[3]),
        x=x, grad_y=grad_y,
    )  # fmt: skip
    assert parts is not None
    return (parts.sum(axis=0).astype(x.dtype),)


def _kernel_config(config: ConvParams, channels: int, outputs: int, dtype) -> ConvConfig:
    return ConvConfig(**config.kernel_fields(channels, outputs, dtype))
