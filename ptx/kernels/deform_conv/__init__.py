"""Deformable convolution (DCNv1, DCNv2): forward, and backward to each of its operands."""

from ptx.kernels.deform_conv.backward_data import BACKWARD_INPUT, BACKWARD_OFFSET
from ptx.kernels.deform_conv.backward_input_gather import BACKWARD_INPUT_GATHER, gathers
from ptx.kernels.deform_conv.backward_weight import BACKWARD_WEIGHT, backward_weight_parts
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.forward import FORWARD
from ptx.registry import register

__all__ = [
    "BACKWARD_INPUT",
    "BACKWARD_INPUT_GATHER",
    "BACKWARD_OFFSET",
    "BACKWARD_WEIGHT",
    "CONFIGS",
    "FORWARD",
    "DeformConvConfig",
    "backward_weight_parts",
    "gathers",
]

for _kernel in (FORWARD, BACKWARD_INPUT, BACKWARD_INPUT_GATHER, BACKWARD_OFFSET, BACKWARD_WEIGHT):
    register(_kernel)
