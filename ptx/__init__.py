"""PTX kernels from Python: builder, targets, assembler gate, emulator.

Knows GPUs and numpy, and nothing of JAX. Kernels are imported when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING

from ptx.builder import ATOMS, Atom, Fragment, Kernel, Pointer, Val, Var
from ptx.isa import dtypes
from ptx.isa.assembler import AssemblyError, assemble
from ptx.isa.dtypes import *  # noqa: F403
from ptx.isa.targets import TARGETS, Target, UnsupportedError, target_for

if TYPE_CHECKING:
    from ptx.oxicuda.convolutions import (
        ConvConfig,
        ConvProblem,
        DeformableConvConfig,
        ImplicitGemmConv,
        TileConfig,
        gemm_k_to_filter_coords,
        gemm_m_to_conv_coords,
        generate_conv_backward_input_ptx,
        generate_conv_backward_weight_ptx,
        generate_conv_forward_ptx,
        generate_deformable_conv_backward_input_ptx,
        generate_deformable_conv_backward_offset_ptx,
        generate_deformable_conv_backward_weight_ptx,
        generate_deformable_conv_forward_ptx,
        input_coord,
    )
    from ptx.oxicuda.matrix_products import (
        ArithmeticIntensityAnalysis,
        BandwidthGemmConfig,
        BandwidthPrecision,
        BandwidthStrategy,
        BandwidthTileConfig,
        analyze_intensity,
        generate_bandwidth_gemm_ptx,
        is_bandwidth_limited,
        select_bandwidth_tiles,
    )

__all__ = [
    "ATOMS",
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
    "select_bandwidth_tiles",
    "target_for",
]

__all__ += dtypes.__all__

# The modules of the names that need kernels, in which `__getattr__` looks them up.
_KERNEL_MODULES = ("ptx.oxicuda.convolutions", "ptx.oxicuda.matrix_products")


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in map(importlib.import_module, _KERNEL_MODULES):
            if name in module.__all__:
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
