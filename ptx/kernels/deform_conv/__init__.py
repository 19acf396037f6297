"""Deformable convolution (DCNv1, DCNv2): forward, and backward to each of its operands."""

from ptx.isa.targets import Target
from ptx.kernels.deform_conv.backward_data import (
    backward_data_dynamic_shared,
    backward_input_launch,
    backward_offset_launch,
    generate_deformable_conv_backward_input_ptx,
    generate_deformable_conv_backward_offset_ptx,
)
from ptx.kernels.deform_conv.backward_input_gather import (
    backward_input_gather_launch,
    generate_deformable_conv_backward_input_gather_ptx,
)
from ptx.kernels.deform_conv.backward_weight import (
    backward_weight_dynamic_shared,
    backward_weight_launch,
    backward_weight_parts,
    generate_deformable_conv_backward_weight_ptx,
)
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformableConvConfig
from ptx.kernels.deform_conv.forward import (
    forward_dynamic_shared,
    forward_launch,
    generate_deformable_conv_forward_ptx,
)
from ptx.kernels.deform_conv.plan import is_small_grid
from ptx.registry import register

__all__ = [
    "DeformableConvConfig",
    "backward_weight_parts",
    "generate_deformable_conv_backward_input_gather_ptx",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
    "generate_deformable_conv_backward_weight_ptx",
    "generate_deformable_conv_forward_ptx",
    "is_small_grid",
]


def _no_dynamic_shared(config: DeformableConvConfig, target: Target) -> int:
    return 0


for _name, _generate, _dynamic_shared, _launch in (
    (
        "forward",
        generate_deformable_conv_forward_ptx,
        forward_dynamic_shared,
        forward_launch,
    ),
    (
        "backward_input",
        generate_deformable_conv_backward_input_ptx,
        backward_data_dynamic_shared,
        backward_input_launch,
    ),
    (
        "backward_input_gather",
        generate_deformable_conv_backward_input_gather_ptx,
        _no_dynamic_shared,
        backward_input_gather_launch,
    ),
    (
        "backward_offset",
        generate_deformable_conv_backward_offset_ptx,
        backward_data_dynamic_shared,
        backward_offset_launch,
    ),
    (
        "backward_weight",
        generate_deformable_conv_backward_weight_ptx,
        backward_weight_dynamic_shared,
        backward_weight_launch,
    ),
):
    register(
        f"deform_conv_{_name}",
        CONFIGS,
        _generate,
        dynamic_shared=_dynamic_shared,
        launch=_launch,
    )
