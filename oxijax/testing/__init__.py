"""Named cases that tests and benchmarks of oxijax share, and the emulated GPU."""

from oxijax.testing._conv_cases import CONV_CASES, CONV_GPU_BENCHMARK_CASES, ConvCase
from oxijax.testing._deform_conv_cases import (
    BENCHMARK_CASES,
    CASES,
    GPU_BENCHMARK_CASES,
    IMAGE_SIZE_CASES,
    DeformConvCase,
)
from oxijax.testing._emulate import emulate_gpu
from oxijax.testing._gemm_cases import GEMM_CASES, GemmCase

__all__ = [
    "BENCHMARK_CASES",
    "CASES",
    "CONV_CASES",
    "CONV_GPU_BENCHMARK_CASES",
    "GEMM_CASES",
    "GPU_BENCHMARK_CASES",
    "IMAGE_SIZE_CASES",
    "ConvCase",
    "DeformConvCase",
    "GemmCase",
    "emulate_gpu",
]
