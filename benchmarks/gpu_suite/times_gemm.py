"""Section times-gemm: gemm's kernels against XLA's own product, which is cuBLAS's or Triton's."""

import jax
import jax.numpy as jnp

from gpu_suite.gemm_layers import (
    DTYPES,
    gemm,
    is_narrow,
    operands,
    products,
    strategy,
    wanted,
    work,
)
from gpu_suite.layers import LAUNCH_FLOOR
from gpu_suite.recorder import Recorder
from gpu_suite.times_against_xla import Family
from gpu_suite.times_against_xla import run as run_family
from oxijax.testing import GemmCase

__all__ = ["run"]


def run(recorder: Recorder) -> None:
    jax.config.update("jax_enable_x64", True)  # the process is this section's own
    cases = products(recorder.mode.tiny)
    strategies = {case.name: {dtype: strategy(case, dtype) for dtype in DTYPES} for case in cases}
    recorder.put("strategies", value=strategies)
    family = Family(
        layers=cases,
        few_pixels=GemmCase(LAUNCH_FLOOR, 64, 16, 16),
        is_small=is_narrow,
        operands=operands,
        work=work,
        ours=gemm,
        xla=lambda case: jnp.matmul,
        operations={"product": lambda function: function},
        wanted=wanted,
    )
    run_family(recorder, family, list(DTYPES))
