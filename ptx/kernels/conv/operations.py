"""The operations of a convolution, and their arrays: `ConvolutionConfig` names the dimensions."""

from ptx.operator import In, Operation, Out

__all__ = [
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "BIAS",
    "FORWARD",
    "GRAD_WEIGHT",
    "GRAD_X",
    "GRAD_Y",
    "WEIGHT",
    "X",
    "Y",
]

X, WEIGHT, BIAS = In("x", "n h w c"), In("weight", "i j e o"), In("bias", "o", flag="use_bias")
Y, GRAD_Y = Out("y", "n p q o"), In("grad_y", "n p q o")
GRAD_X, GRAD_WEIGHT = Out("grad_x", "n h w c"), Out("grad_weight", "i j e o")

FORWARD = Operation("conv_forward", (X, WEIGHT, BIAS), (Y,))
BACKWARD_INPUT = Operation("conv_backward_input", (WEIGHT, GRAD_Y), (GRAD_X,), ("use_bias",))
BACKWARD_WEIGHT = Operation("conv_backward_weight", (X, GRAD_Y), (GRAD_WEIGHT,), ("use_bias",))
