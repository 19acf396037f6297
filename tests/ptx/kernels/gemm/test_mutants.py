"""Mutants of a GEMM kernel of each strategy: how many are noticed, and why not all."""

import functools
from typing import ClassVar

import pytest
from support.gemm_kernels import GemmProblem
from support.mutant_reasons import TILE_ENGINE
from support.mutant_study import MutantStudy
from support.mutants import Reason, Result

from ptx.isa.dtypes import bf16

pytestmark = pytest.mark.proof


_fused = functools.partial(GemmProblem, float_type=bf16, bits=3, alpha=-0.5, use_c=True)
_split = functools.partial(GemmProblem, float_type=bf16, bits=3, transpose_b=True)
# Partial tiles of rows, columns and K, blocks with more turns than stages, and several products.
PROBES = {
    "shallow_k": (
        _fused(730, 152, 30, "shallow_k", beta=2.0, blocks=1),
        _fused(330, 152, 30, "shallow_k", batch=2, shared="b", beta=0.0, blocks=1, seed=1),
        _fused(154, 152, 30, "shallow_k", beta=2.0, blocks=1, seed=2),
    ),
    "cache_persistent": (
        _fused(330, 56, 150, "cache_persistent", transpose_a=True, batch=2, beta=2.0, blocks=2),
        _fused(
            330, 56, 150, "cache_persistent", transpose_a=True, batch=2, shared="a", beta=0.0,
            blocks=1, seed=1,
        ),
        _fused(58, 56, 150, "cache_persistent", transpose_a=True, beta=2.0, blocks=1, seed=2),
    ),
    "warp_parallel": (
        _split(150, 120, 1222, "warp_parallel", batch=2),
        _split(150, 120, 1222, "warp_parallel", batch=2, shared="b", seed=1),
    ),
}  # fmt: skip

OPERAND = "ptx.kernels.gemm.operands.Matrix.at"
LARGE_CHUNK = "ptx.kernels.gemm.streaming.streaming_gemm.<locals>.large_at"
SPLIT = "ptx.kernels.gemm.split.split_gemm"

EQUIVALENT = [
    *TILE_ENGINE,
    Reason(
        "what lies beyond K is 0 in both operands, or is not loaded",
        OPERAND,
        "and setp mul mad cvt",
        "source constant operator operands",
    ),
    Reason(
        "what an operand does not have is multiplied with 0, or is of a row that is not stored",
        OPERAND,
        "and",
        "source",
        Result.OTHER,
    ),
    Reason(
        "where an operand has no such row or column, its address does not matter",
        LARGE_CHUNK,
        "add",
        "source",
    ),
    Reason(
        "where an operand has no such row or column, its address does not matter",
        f"{SPLIT}.<locals>.at.<locals>.locate",
        "add",
        "source",
    ),
    Reason(
        "one turn more begins chunks that nobody reads",
        "ptx.kernels.gemm.streaming.streaming_gemm",
        "add",
        "source",
        Result.NEAR,
    ),
    Reason("chunks are counted as wholes", SPLIT, "sub", "constant", Result.NEAR),
    Reason(
        "what warps have of rows and columns that do not exist is not written",
        SPLIT,
        "st",
        "elements",
        Result.OTHER,
    ),
]


class TestGemm(MutantStudy):
    sample, large_sample = 20, 40
    kernels: ClassVar = {"gemm": PROBES}
    reasons = EQUIVALENT
