"""Flags of XLA for programs that run once or twice."""

from __future__ import annotations

import jax

__all__ = ["cpu_flags"]


def cpu_flags(level: int) -> list[str]:
    """Those that save what takes most of the time there, LLVM's.

    Args:
      level: the level of optimisation: 0 for small programs, 1 for those that would run long.
    """
    flags = [f"--xla_backend_optimization_level={level}"]
    if jax.__version_info__ < (0, 11):  # later ones have other flags
        flags += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
    return flags
