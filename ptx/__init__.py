"""PTX kernels from Python: builder, targets, assembler gate, emulator.

Knows GPUs and numpy, and nothing of JAX. Kernels are imported when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING

from ptx.assembler import AssemblyError, assemble
from ptx.builder import ATOMS, Atom, Fragment, Kernel, Pointer, Val, Var
from ptx.dtypes import (
    DTYPES,
    DType,
    b8,
    b16,
    b32,
    b64,
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    pred,
    s8,
    s16,
    s32,
    s64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from ptx.targets import TARGETS, Target, UnsupportedError, target_for

if TYPE_CHECKING:
    from ptx.kernels.convolution import (
        ConvolutionConfig,
        ConvProblem,
        ImplicitGemmConv,
        TileConfig,
        gemm_k_to_filter_coords,
        gemm_m_to_conv_coords,
        generate_convolution_backward_input_ptx,
        generate_convolution_backward_weight_ptx,
        generate_convolution_forward_ptx,
        input_coord,
    )
    from ptx.kernels.deformable import (
        DeformableConvConfig,
        generate_deformable_conv_backward_input_ptx,
        generate_deformable_conv_backward_offset_ptx,
        generate_deformable_conv_backward_weight_ptx,
        generate_deformable_conv_forward_ptx,
    )
    from ptx.kernels.gemm.analysis import (
        ArithmeticIntensityAnalysis,
        BandwidthPrecision,
        BandwidthStrategy,
        analyze_intensity,
        is_bandwidth_limited,
    )
    from ptx.kernels.gemm.problem import (
        BandwidthGemmConfig,
        BandwidthTileConfig,
        generate_bandwidth_gemm_ptx,
        select_bandwidth_tiles,
    )

__all__ = [
    "ATOMS",
    "DTYPES",
    "TARGETS",
    "ArithmeticIntensityAnalysis",
    "AssemblyError",
    "Atom",
    "BandwidthGemmConfig",
    "BandwidthPrecision",
    "BandwidthStrategy",
    "BandwidthTileConfig",
    "ConvProblem",
    "ConvolutionConfig",
    "DType",
    "DeformableConvConfig",
    "Fragment",
    "ImplicitGemmConv",
    "Kernel",
    "Pointer",
    "Target",
    "TileConfig",
    "UnsupportedError",
    "Val",
    "Var",
    "analyze_intensity",
    "assemble",
    "b8",
    "b16",
    "b32",
    "b64",
    "bf16",
    "bf16x2",
    "f16",
    "f16x2",
    "f32",
    "f64",
    "gemm_k_to_filter_coords",
    "gemm_m_to_conv_coords",
    "generate_bandwidth_gemm_ptx",
    "generate_convolution_backward_input_ptx",
    "generate_convolution_backward_weight_ptx",
    "generate_convolution_forward_ptx",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
    "generate_deformable_conv_backward_weight_ptx",
    "generate_deformable_conv_forward_ptx",
    "input_coord",
    "is_bandwidth_limited",
    "pred",
    "s8",
    "s16",
    "s32",
    "s64",
    "select_bandwidth_tiles",
    "target_for",
    "tf32",
    "u8",
    "u16",
    "u32",
    "u64",
]

_KERNEL_MODULES = {  # where to find what only those need who have kernels written
    "ConvProblem": "ptx.kernels.convolution",
    "ConvolutionConfig": "ptx.kernels.convolution",
    "ImplicitGemmConv": "ptx.kernels.convolution",
    "TileConfig": "ptx.kernels.convolution",
    "gemm_k_to_filter_coords": "ptx.kernels.convolution",
    "gemm_m_to_conv_coords": "ptx.kernels.convolution",
    "generate_convolution_backward_input_ptx": "ptx.kernels.convolution",
    "generate_convolution_backward_weight_ptx": "ptx.kernels.convolution",
    "generate_convolution_forward_ptx": "ptx.kernels.convolution",
    "input_coord": "ptx.kernels.convolution",
    "DeformableConvConfig": "ptx.kernels.deformable",
    "generate_deformable_conv_backward_input_ptx": "ptx.kernels.deformable",
    "generate_deformable_conv_backward_offset_ptx": "ptx.kernels.deformable",
    "generate_deformable_conv_backward_weight_ptx": "ptx.kernels.deformable",
    "generate_deformable_conv_forward_ptx": "ptx.kernels.deformable",
    "ArithmeticIntensityAnalysis": "ptx.kernels.gemm.analysis",
    "BandwidthPrecision": "ptx.kernels.gemm.analysis",
    "BandwidthStrategy": "ptx.kernels.gemm.analysis",
    "analyze_intensity": "ptx.kernels.gemm.analysis",
    "is_bandwidth_limited": "ptx.kernels.gemm.analysis",
    "BandwidthGemmConfig": "ptx.kernels.gemm.problem",
    "BandwidthTileConfig": "ptx.kernels.gemm.problem",
    "generate_bandwidth_gemm_ptx": "ptx.kernels.gemm.problem",
    "select_bandwidth_tiles": "ptx.kernels.gemm.problem",
}


def __getattr__(name: str) -> object:
    if name not in _KERNEL_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_KERNEL_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
