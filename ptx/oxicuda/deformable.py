"""OxiCUDA's names for deformable convolution: a configuration, and a text for each kernel."""

from ptx.isa.targets import Target
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    DeformConvConfig,
)

__all__ = [
    "DeformableConvConfig",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
    "generate_deformable_conv_backward_weight_ptx",
    "generate_deformable_conv_forward_ptx",
]

DeformableConvConfig = DeformConvConfig


def generate_deformable_conv_forward_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the forward kernel; its header has the parameters.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    return FORWARD.write(config, target).text


def generate_deformable_conv_backward_input_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the images; raises as `generate_deformable_conv_forward_ptx`."""
    return BACKWARD_INPUT.write(config, target).text


def generate_deformable_conv_backward_offset_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradients to offset and mask; raises as the forward one."""
    return BACKWARD_OFFSET.write(config, target).text


def generate_deformable_conv_backward_weight_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the weights, in parts; raises as the forward one."""
    return BACKWARD_WEIGHT.write(config, target).text
