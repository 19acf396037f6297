"""Convolution as an implicit matrix product: forward, and backward to each of its operands."""

from ptx import registry
from ptx.kernels.conv.backward_input import BACKWARD_INPUT
from ptx.kernels.conv.backward_weight import BACKWARD_WEIGHT, backward_weight_parts
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.forward import FORWARD

__all__ = ["BACKWARD_INPUT", "BACKWARD_WEIGHT", "FORWARD", "ConvConfig", "backward_weight_parts"]

for _kernel in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT):
    registry.register(_kernel)
