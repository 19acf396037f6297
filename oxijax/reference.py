"""The operations of oxijax in pure JAX, for any order and mode of differentiation."""

from oxijax._conv import conv_reference as conv
from oxijax._deform_conv import deform_conv_reference as deform_conv
from oxijax._gemm import gemm_reference as gemm

__all__ = ["conv", "deform_conv", "gemm"]
