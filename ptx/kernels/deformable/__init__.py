"""Deformable convolution (DCNv1, DCNv2): forward, and backward to each of its operands."""

from ptx.kernels.deformable.backward_data import (
    backward_input_launch,
    backward_offset_launch,
    generate_deformable_conv_backward_input_ptx,
    generate_deformable_conv_backward_offset_ptx,
)
from ptx.kernels.deformable.backward_weight import (
    backward_weight_launch,
    generate_deformable_conv_backward_weight_ptx,
)
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.kernels.deformable.forward import (
    forward_dynamic_shared,
    forward_launch,
    generate_deformable_conv_forward_ptx,
)
from ptx.registry import register

__all__ = [
    "DeformableConvConfig",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
    "generate_deformable_conv_backward_weight_ptx",
    "generate_deformable_conv_forward_ptx",
]

_CONFIGS = {"default": DeformableConvConfig(16, 16)}

register(
    "deformable_conv_forward",
    _CONFIGS,
    generate_deformable_conv_forward_ptx,
    dynamic_shared=forward_dynamic_shared,
    launch=forward_launch,
)
for _name, _generate, _launch in (
    ("backward_input", generate_deformable_conv_backward_input_ptx, backward_input_launch),
    ("backward_offset", generate_deformable_conv_backward_offset_ptx, backward_offset_launch),
    ("backward_weight", generate_deformable_conv_backward_weight_ptx, backward_weight_launch),
):
    register(f"deformable_conv_{_name}", _CONFIGS, _generate, launch=_launch)
