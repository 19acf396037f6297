"""Named cases that tests and benchmarks of oxijax share, and the emulated GPU."""

from oxijax.testing._cases import BENCHMARK_CASES, CASES, GPU_BENCHMARK_CASES, DeformConvCase
from oxijax.testing._conv_cases import CONV_CASES, ConvCase
from oxijax.testing._emulate import emulate_gpu

__all__ = [
    "BENCHMARK_CASES",
    "CASES",
    "CONV_CASES",
    "GPU_BENCHMARK_CASES",
    "ConvCase",
    "DeformConvCase",
    "emulate_gpu",
]
