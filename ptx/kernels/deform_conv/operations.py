"""The operations of a deformable convolution, and their arrays.

`ConvolutionConfig` and `DeformConvConfig` name the dimensions.
"""

from ptx.kernels.conv.operations import BIAS, GRAD_WEIGHT, GRAD_X, GRAD_Y, WEIGHT, X, Y
from ptx.operator import In, Operation, Out

__all__ = [
    "BACKWARD_INPUT",
    "BACKWARD_OFFSET",
    "BACKWARD_SAMPLES",
    "BACKWARD_WEIGHT",
    "BIAS",
    "FORWARD",
    "GRAD_MASK",
    "GRAD_OFFSET",
    "GRAD_X",
    "GRAD_Y",
    "MASK",
    "OFFSET",
    "WEIGHT",
    "X",
    "Y",
]

OFFSET = In("offset", "n p q d", "offset_type")
GRAD_OFFSET = Out("grad_offset", "n p q d", "offset_type")
MASK = In("mask", "n p q m", "mask_type", flag="use_modulation")
GRAD_MASK = Out("grad_mask", "n p q m", "mask_type", flag="use_modulation")
_UNUSED = ("use_bias",)  # by the gradients

FORWARD = Operation("deform_conv_forward", (X, OFFSET, WEIGHT, MASK, BIAS), (Y,))
BACKWARD_INPUT = Operation(
    "deform_conv_backward_input", (OFFSET, WEIGHT, MASK, GRAD_Y), (GRAD_X,), _UNUSED
)
BACKWARD_OFFSET = Operation(
    "deform_conv_backward_offset",
    (X, OFFSET, WEIGHT, MASK, GRAD_Y),
    (GRAD_OFFSET, GRAD_MASK),
    _UNUSED,
)
# Both at once: one loop of XLA's program, two kernels on a GPU.
BACKWARD_SAMPLES = Operation(
    "deform_conv_backward_samples",
    BACKWARD_OFFSET.operands,
    (*BACKWARD_INPUT.results, *BACKWARD_OFFSET.results),
    _UNUSED,
)
BACKWARD_WEIGHT = Operation(
    "deform_conv_backward_weight", (X, OFFSET, MASK, GRAD_Y), (GRAD_WEIGHT,), _UNUSED
)
