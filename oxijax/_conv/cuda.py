"""Lowering of the conv primitive that needs more on a GPU than its kernel."""

import math

from oxijax._convolution import ConvParams
from oxijax._core.arguments.checks import likely
from oxijax._core.launch import call
from ptx.kernels.conv import BACKWARD_WEIGHT, backward_weight_parts

__all__ = ["backward_weight"]


def backward_weight(params: ConvParams, x, grad_y):
    """The gradient to the weights, summed in float32 over parts of the pixels."""
    pixels = likely(math.prod(grad_y.shape[:3]))
    (parts,) = call(
        BACKWARD_WEIGHT, params.op, batch="n",
        sizes={"s": backward_weight_parts(params.op, pixels)},
        x=x, grad_y=grad_y,
    )  # fmt: skip
    assert parts is not None
    return (parts.sum(axis=0).astype(x.dtype),)
