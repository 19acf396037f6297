"""PTX kernels from Python: builder, targets, assembler gate, emulator.

Knows GPUs and numpy, and nothing of JAX. Kernels are imported when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING

from ptx.builder import ATOMS, Atom, Fragment, Kernel, Pointer, Val, Var
from ptx.isa.assembler import AssemblyError, assemble
from ptx.isa.dtypes import (
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
from ptx.isa.targets import TARGETS, Target, UnsupportedError, target_for

if TYPE_CHECKING:
    from ptx.kernels.conv import ConvConfig
    from ptx.oxicuda.bandwidth_gemm import (
        BandwidthGemmConfig,
        BandwidthTileConfig,
        generate_bandwidth_gemm_ptx,
        select_bandwidth_tiles,
    )
    from ptx.oxicuda.deformable import (
        DeformableConvConfig,
        generate_deformable_conv_backward_input_ptx,
        generate_deformable_conv_backward_offset_ptx,
        generate_deformable_conv_backward_weight_ptx,
        generate_deformable_conv_forward_ptx,
    )
    from ptx.oxicuda.implicit_gemm import (
        ConvProblem,
        ImplicitGemmConv,
        TileConfig,
        gemm_k_to_filter_coords,
        gemm_m_to_conv_coords,
        generate_conv_backward_input_ptx,
        generate_conv_backward_weight_ptx,
        generate_conv_forward_ptx,
        input_coord,
    )
    from ptx.oxicuda.intensity import (
        ArithmeticIntensityAnalysis,
        BandwidthPrecision,
        BandwidthStrategy,
        analyze_intensity,
        is_bandwidth_limited,
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
    "ConvConfig",
    "ConvProblem",
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
    "generate_conv_backward_input_ptx",
    "generate_conv_backward_weight_ptx",
    "generate_conv_forward_ptx",
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
    "ConvProblem": "ptx.oxicuda.implicit_gemm",
    "ConvConfig": "ptx.kernels.conv",
    "ImplicitGemmConv": "ptx.oxicuda.implicit_gemm",
    "TileConfig": "ptx.oxicuda.implicit_gemm",
    "gemm_k_to_filter_coords": "ptx.oxicuda.implicit_gemm",
    "gemm_m_to_conv_coords": "ptx.oxicuda.implicit_gemm",
    "generate_conv_backward_input_ptx": "ptx.oxicuda.implicit_gemm",
    "generate_conv_backward_weight_ptx": "ptx.oxicuda.implicit_gemm",
    "generate_conv_forward_ptx": "ptx.oxicuda.implicit_gemm",
    "input_coord": "ptx.oxicuda.implicit_gemm",
    "DeformableConvConfig": "ptx.oxicuda.deformable",
    "generate_deformable_conv_backward_input_ptx": "ptx.oxicuda.deformable",
    "generate_deformable_conv_backward_offset_ptx": "ptx.oxicuda.deformable",
    "generate_deformable_conv_backward_weight_ptx": "ptx.oxicuda.deformable",
    "generate_deformable_conv_forward_ptx": "ptx.oxicuda.deformable",
    "ArithmeticIntensityAnalysis": "ptx.oxicuda.intensity",
    "BandwidthPrecision": "ptx.oxicuda.intensity",
    "BandwidthStrategy": "ptx.oxicuda.intensity",
    "analyze_intensity": "ptx.oxicuda.intensity",
    "is_bandwidth_limited": "ptx.oxicuda.intensity",
    "BandwidthGemmConfig": "ptx.oxicuda.bandwidth_gemm",
    "BandwidthTileConfig": "ptx.oxicuda.bandwidth_gemm",
    "generate_bandwidth_gemm_ptx": "ptx.oxicuda.bandwidth_gemm",
    "select_bandwidth_tiles": "ptx.oxicuda.bandwidth_gemm",
}


def __getattr__(name: str) -> object:
    if name not in _KERNEL_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_KERNEL_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
