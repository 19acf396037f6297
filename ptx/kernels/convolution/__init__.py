"""Convolution as an implicit matrix product: forward, and backward to each of its operands."""

from ptx.kernels.convolution.backward_input import (
    backward_input_dynamic_shared,
    backward_input_launch,
    generate_convolution_backward_input_ptx,
)
from ptx.kernels.convolution.backward_weight import (
    backward_weight_dynamic_shared,
    backward_weight_launch,
    backward_weight_parts,
    generate_convolution_backward_weight_ptx,
)
from ptx.kernels.convolution.config import ConvolutionConfig
from ptx.kernels.convolution.configs import CONFIGS
from ptx.kernels.convolution.direct import is_direct
from ptx.kernels.convolution.forward import (
    forward_dynamic_shared,
    forward_launch,
    generate_convolution_forward_ptx,
)
from ptx.kernels.convolution.plan import is_small_grid
from ptx.kernels.convolution.problem import (
    ConvProblem,
    ImplicitGemmConv,
    gemm_k_to_filter_coords,
    gemm_m_to_conv_coords,
    input_coord,
)
from ptx.kernels.convolution.tiles import TileConfig
from ptx.registry import register

__all__ = [
    "ConvProblem",
    "ConvolutionConfig",
    "ImplicitGemmConv",
    "TileConfig",
    "backward_weight_parts",
    "gemm_k_to_filter_coords",
    "gemm_m_to_conv_coords",
    "generate_convolution_backward_input_ptx",
    "generate_convolution_backward_weight_ptx",
    "generate_convolution_forward_ptx",
    "input_coord",
    "is_direct",
    "is_small_grid",
]

for _name, _generate, _dynamic_shared, _launch in (
    ("forward", generate_convolution_forward_ptx, forward_dynamic_shared, forward_launch),
    (
        "backward_input",
        generate_convolution_backward_input_ptx,
        backward_input_dynamic_shared,
        backward_input_launch,
    ),
    (
        "backward_weight",
        generate_convolution_backward_weight_ptx,
        backward_weight_dynamic_shared,
        backward_weight_launch,
    ),
):
    register(
        f"convolution_{_name}",
        CONFIGS,
        _generate,
        dynamic_shared=_dynamic_shared,
        launch=_launch,
    )
