"""Convolution as an implicit matrix product: forward, and backward to each of its operands."""

from ptx.kernels.conv.backward_input import (
    backward_input_dynamic_shared,
    backward_input_launch,
    generate_conv_backward_input_ptx,
)
from ptx.kernels.conv.backward_weight import (
    backward_weight_dynamic_shared,
    backward_weight_launch,
    backward_weight_parts,
    generate_conv_backward_weight_ptx,
)
from ptx.kernels.conv.catalog import CONFIGS
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct import is_direct
from ptx.kernels.conv.forward import (
    forward_dynamic_shared,
    forward_launch,
    generate_conv_forward_ptx,
)
from ptx.kernels.conv.plan import is_small_grid
from ptx.oxicuda.implicit_gemm import (
    ConvProblem,
    ImplicitGemmConv,
    gemm_k_to_filter_coords,
    gemm_m_to_conv_coords,
    input_coord,
)
from ptx.oxicuda.tile_config import TileConfig
from ptx.registry import register

__all__ = [
    "ConvConfig",
    "ConvProblem",
    "ImplicitGemmConv",
    "TileConfig",
    "backward_weight_parts",
    "gemm_k_to_filter_coords",
    "gemm_m_to_conv_coords",
    "generate_conv_backward_input_ptx",
    "generate_conv_backward_weight_ptx",
    "generate_conv_forward_ptx",
    "input_coord",
    "is_direct",
    "is_small_grid",
]

for _name, _generate, _dynamic_shared, _launch in (
    ("forward", generate_conv_forward_ptx, forward_dynamic_shared, forward_launch),
    (
        "backward_input",
        generate_conv_backward_input_ptx,
        backward_input_dynamic_shared,
        backward_input_launch,
    ),
    (
        "backward_weight",
        generate_conv_backward_weight_ptx,
        backward_weight_dynamic_shared,
        backward_weight_launch,
    ),
):
    register(
        f"conv_{_name}",
        CONFIGS,
        _generate,
        dynamic_shared=_dynamic_shared,
        launch=_launch,
    )
