"""Mutants of a GEMM kernel of each strategy: how many are noticed, and why not all."""

import functools

import pytest
from support.gemm_kernels import GemmProblem
from support.mutants import Reason, check, text_of

from ptx.isa.dtypes import bf16

TARGET = "sm_80"
SAMPLE, LARGE_SAMPLE = 20, 40  # of each text

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

EQUIVALENT: list[Reason] = [
    (
        "what lies beyond K is 0 in both operands, or is not loaded",
        *(".*", "(the small operand|the first chunks|this stage).*"),
        r"(and\.pred .*|mul\.lo\.u32 .*, 8;|mad\.\w+\.u(32|64) .*|setp\.lt\.u32 .*)",
        ".*",
    ),
    (
        "where an operand has no such row or column, its address does not matter",
        *(
            ".*",
            "(the first chunks|this stage).*",
            r"add\.u32 %r\d+, %r\d+, %r\d+;",
            r"%r\d+ -> %r\d+",
        ),
    ),
    (
        "one turn more copies a tile that is not there, and nobody reads",
        *("shallow_k", "setup", r"add\.u32 .*", r"%r\d+ -> %blocks"),
    ),
    (
        "what is copied after the last chunk, nobody reads",
        *(
            ".*",
            "(the first chunks|this stage).*",
            r"((sub|mov)\.u32 %left, .*|setp\.gt\.u32 .*)",
            ".*",
        ),
    ),
    (
        "the sums of rows and columns that do not exist are not written",
        *(
            ".*",
            "(setup|the first chunks|this stage).*",
            r"(mov\.f32 .*, 0f00000000|mma\.sync\.\S+ .*);",
            ".*",
        ),
    ),
    (
        "and so is what warps have of them",
        *("warp_parallel", "the sum over the warps.*", r"st\.shared\.v2\.f32 .*", "elements .*"),
    ),
]
NEGLIGIBLE: list[Reason] = [
    (
        "the last of 24 bits, which two factors of few bits do not have",
        *(".*", "this tile's result.*", r"(mul|fma)\.rn\.f32 .*", "rn -> rz"),
    ),
    (
        "the last bit of a neighbour, as the last of 24 bits",
        *(".*", ".*", r"and\.b32 %b\d+, %b\d+, 4294901760;", "constant [+]1"),
    ),
]


@pytest.mark.parametrize("strategy", PROBES)
def test_a_sample_is_noticed(strategy):
    check({strategy: PROBES[strategy]}, TARGET, SAMPLE, EQUIVALENT, NEGLIGIBLE)


@pytest.mark.full
@pytest.mark.parametrize("strategy", PROBES)
def test_a_large_sample_is_noticed(strategy):
    check({strategy: PROBES[strategy]}, TARGET, LARGE_SAMPLE, EQUIVALENT, NEGLIGIBLE)


@pytest.mark.parametrize("strategy", PROBES)
def test_every_instruction_runs(strategy):
    text = text_of(PROBES[strategy][0])
    first, *others = (probe.run(text) for probe in PROBES[strategy])
    assert functools.reduce(lambda a, b: a.merge(b), others, first).never_executed == []
