"""The kernels of bandwidth-optimised GEMM."""

from ptx.kernels.gemm.catalog import CONFIGS
from ptx.kernels.gemm.config import STRATEGIES, GemmConfig
from ptx.kernels.gemm.generate import gemm_dynamic_shared, gemm_launch, generate_gemm_ptx
from ptx.kernels.gemm.plan import choose
from ptx.registry import register

__all__ = ["STRATEGIES", "GemmConfig", "choose", "generate_gemm_ptx"]

register(
    "gemm",
    CONFIGS,
    generate_gemm_ptx,
    dynamic_shared=gemm_dynamic_shared,
    launch=gemm_launch,
)
