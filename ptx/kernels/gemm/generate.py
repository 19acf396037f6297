"""The kernel of each strategy, by its configuration."""

from __future__ import annotations

from ptx.isa.targets import TARGETS, Target
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.split import split_dynamic_shared, split_gemm, split_launch
from ptx.kernels.gemm.streaming import stream_dynamic_shared, stream_launch, streaming_gemm
from ptx.launch import Launch
from ptx.registry import Shapes

__all__ = ["gemm_dynamic_shared", "gemm_launch", "generate_gemm_ptx"]


def generate_gemm_ptx(config: GemmConfig, target: Target | str = "sm_80") -> str:
    """The PTX of a product's kernel: `streaming_gemm` or `split_gemm`.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    return (streaming_gemm if config.parts is None else split_gemm)(config, target)


def gemm_launch(config: GemmConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for large and small operand, c, alpha, beta and result."""
    return (stream_launch if config.parts is None else split_launch)(config, target, shapes)


def gemm_dynamic_shared(config: GemmConfig, target: Target) -> int:
    """Bytes of dynamic shared memory."""
    return (stream_dynamic_shared if config.parts is None else split_dynamic_shared)(config, target)
