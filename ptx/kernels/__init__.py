"""The kernels that the package ships: importing this registers each in `ptx.registry`."""

from ptx.kernels import conv, deform_conv, gemm, sampling

__all__ = ["conv", "deform_conv", "gemm", "sampling"]
