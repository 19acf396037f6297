"""Named cases that tests and benchmarks of oxijax share."""

from oxijax.testing._cases import BENCHMARK_CASES, CASES, DeformConvCase

__all__ = ["BENCHMARK_CASES", "CASES", "DeformConvCase"]
