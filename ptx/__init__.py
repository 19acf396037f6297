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

# Where those names of `__all__` are that only those need who have kernels written.
_KERNEL_MODULES = (
    "ptx.kernels.conv",
    "ptx.oxicuda.bandwidth_gemm",
    "ptx.oxicuda.deformable",
    "ptx.oxicuda.implicit_gemm",
    "ptx.oxicuda.intensity",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in map(importlib.import_module, _KERNEL_MODULES):
            if name in module.__all__:
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
