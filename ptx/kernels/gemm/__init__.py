"""The kernel of bandwidth-optimised GEMM."""

from ptx.kernels.gemm.config import STRATEGIES, GemmConfig, MatrixProduct
from ptx.kernels.gemm.definitions import GEMM
from ptx.kernels.gemm.plan import choose
from ptx.registry import register

__all__ = ["GEMM", "STRATEGIES", "GemmConfig", "MatrixProduct", "choose"]

register(GEMM)
