"""Mutants of the tile GEMM: how many its checks notice, and why the others mean the same."""

import functools
import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from support.samples import Gemm, gemm

from ptx.emulator import Buffer, InFlightError, RaceError, launch
from ptx.isa.dtypes import bf16, f16, f32
from ptx.testing.mutate import Mutant, mutants, study

# Sizes for which each boundary test of the kernel has something to do: K ends in a first, second,
# third or later tile, after 8 or 24 of its 32 elements; rows and columns in each part of a tile.
SIZES = [(67, 72, 120), (75, 80, 72), (83, 88, 8), (59, 96, 40), (67, 72, 24), (75, 80, 56)]
TARGET = "sm_80"
SAMPLE = 250
NUMPY = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32}
NOTICED_BY = {
    "AssertionError",  # wrong numbers
    "InFlightError",
    "MisalignedError",
    "OutOfBoundsError",
    "RaceError",
    "StepLimitError",
    "UndefinedResultError",
    "UninitializedError",
    "UnwrittenError",
}

# The mutants that nothing notices, and why each computes the same: the part of the kernel (what
# follows the commit of a copy belongs to the next part), the instruction, which of its name it is
# in that part, and what is changed.
EQUIVALENT = {
    "the first copy goes to stage 0: times anything, plus or minus, it is the same": {
        *(("first copy", "mul.lo.u32", n, "lo -> hi") for n in (1, 2)),
        *(("first copy", "mul.lo.u32", n, "constant +1") for n in (1, 2)),
        *(("first copy", "mul.lo.u32", n, "constant -1") for n in (1, 2)),
        *(("first copy", "mul.lo.u32", n, "constant x2") for n in (1, 2)),
        *(("first copy", "add.u32", n, "add -> sub") for n in (1, 2)),
        *(("first copy", "add.u32", n, "operand 2: %r -> %write_stage") for n in (1, 2)),
    },
    "the next stage is 1: neither it nor the 0 or 16 bytes of the last copy are this number": {
        ("second copy", "setp.eq.u32", 1, "operand 1: %write_stage -> %r"),
        ("second copy", "setp.eq.u32", 1, "constant +1"),
        ("second copy", "setp.eq.u32", 1, "constant -1"),
        ("second copy", "setp.eq.u32", 1, "constant x2"),
    },
    "the next stage is 2: neither it nor the 0 or 16 bytes of the last copy are this number": {
        ("before the loop", "setp.eq.u32", 1, "operand 1: %write_stage -> %r"),
        ("before the loop", "setp.eq.u32", 1, "constant +1"),
        ("before the loop", "setp.eq.u32", 1, "constant x2"),
    },
    "before the loop the ring does not come round, and what it begins with is not selected": {
        ("second copy", "selp.u32", 1, "constant +1"),
        ("second copy", "selp.u32", 1, "constant -1"),
        ("before the loop", "selp.u32", 1, "constant +1"),
        ("before the loop", "selp.u32", 1, "constant -1"),
    },
    "the ring does not come round: the stage selected is the one that is there": {
        ("second copy", "mov.u32", 1, "operand 0: %write_stage -> %r"),
        ("second copy", "mov.u32", 1, "operand 1: %r -> %write_stage"),
        ("before the loop", "mov.u32", 1, "operand 0: %write_stage -> %r"),
        ("before the loop", "mov.u32", 1, "operand 1: %r -> %write_stage"),
    },
    "both registers hold the same: one was just copied from the other": {
        ("second copy", "mul.lo.u32", 1, "operand 1: %write_stage -> %r"),
        ("second copy", "setp.gt.s32", 1, "operand 1: %left -> %s"),
    },
    "with all stages but one filled, the next to be written is the one to be read": {
        ("loop", "mul.lo.u32", 3, "operand 1: %read_stage -> %r"),
    },
    "a test of the first rows that the test of the last rows implies": {
        ("first copy", "and.pred", 2, "operand 2: %p -> %p"),
        ("second copy", "and.pred", 2, "operand 2: %p -> %p"),
        ("loop", "and.pred", 2, "operand 2: %p -> %p"),
    },
    "a test of the first columns that the test of later columns implies": {
        ("store", "and.pred", 4 * row + column, "operand 1: %p -> %p")
        for row in range(4)
        for column in (2, 3, 4)
    },
    "passes beyond the end of K multiply zeros": {
        ("before the loop", "mov.u32", 2, "constant -1"),
        ("loop", "setp.lt.u32", 1, "lt -> le"),
        ("loop", "setp.lt.u32", 1, "constant +1"),
        ("loop", "setp.lt.u32", 1, "constant x2"),
    },
    "columns come in eights when they are copied, and below N - 1 is below N": {
        ("setup", "setp.lt.s32", 3, "constant -1"),
    },
    "columns come in pairs when they are stored, and below N - 1 is below N": {
        *(("store", "setp.lt.s32", n, "constant -1") for n in (1, 2, 3, 4)),
        *(("store", "add.s32", n, "constant +1") for n in (3, 4, 5)),
    },
}
LISTED = set().union(*EQUIVALENT.values())


def check(config: Gemm) -> Callable[[str], None]:
    """A function that raises if a text does not multiply two matrices of small integers."""
    generator = np.random.default_rng(0)
    a, b = (
        generator.choice([-3, -2, -1, 1, 2, 3], shape).astype(NUMPY[config.dtype])
        for shape in ((config.m, config.k), (config.k, config.n))
    )
    product = a.astype(np.float32) @ b.astype(np.float32)  # exact

    def run(text: str) -> None:
        c = Buffer(np.empty_like(product), initialized=False)
        arguments = [Buffer(a, writable=False), Buffer(b, writable=False), c]
        launch(text, config.grid, config.threads, arguments, step_limit=2000, statistics=False)
        np.testing.assert_array_equal(c.array, product)

    return run


@functools.cache
def variants() -> list[tuple[str, Callable[[str], None]]]:
    configs = [Gemm(*size, f16) for size in SIZES]
    return [(gemm(config, TARGET), check(config)) for config in configs]


def place(mutant: Mutant, text: str) -> tuple[str, str, int, str]:
    """Where a mutant is and what it changes, as in `EQUIVALENT`: no number of a register."""
    lines = text.splitlines()
    parts, part = [], "setup"
    for line in lines:
        if "fill all stages" in line:
            part = "first copy"
        elif line.startswith("$loop_k"):
            part = "loop"
        elif "store the fragments" in line:
            part = "store"
        parts.append(part)
        if "commit_group" in line and part != "loop":
            part = {"first copy": "second copy", "second copy": "before the loop"}[part]

    name = _name(mutant.original)
    here = parts[mutant.line - 1]
    same = [
        number
        for number, line in enumerate(lines, 1)
        if parts[number - 1] == here and _name(line.strip()) == name
    ]
    change = mutant.kind
    if "%" in change:
        old, new = (re.split(r"[\s,;]+", code) for code in (mutant.original, mutant.replacement))
        (operand,) = (i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
        operand -= mutant.original.startswith("@")
        change = f"operand {operand - 1}: " + re.sub(r"(%[a-z]+)\d+\b", r"\1", change)
    return here, name, same.index(mutant.line) + 1, change


def _name(code: str) -> str:
    return code.removeprefix("@").split(maxsplit=1)[0] if code else ""


def test_the_sample_is_noticed():
    """Every survivor of a sample is one of those that mean the same."""
    (text, notices), *others = variants()
    report = study(text, notices, variants=others, target=TARGET, limit=SAMPLE, seed=1)
    unlisted = [str(m) for m in report.survivors if place(m, text) not in LISTED]
    assert unlisted == []
    assert report.killed.keys() <= NOTICED_BY
    assert len(report.killed) >= 6
    assert len(report.outcomes) == SAMPLE


def test_at_least_95_percent_can_be_noticed():
    """With the test above: all are noticed but the listed ones, which are few."""
    text, _ = variants()[0]
    places = [place(mutant, text) for mutant in mutants(text)]
    assert sum(map(len, EQUIVALENT.values())) == len(LISTED)
    assert {name: places.count(name) for name in LISTED} == dict.fromkeys(LISTED, 1)
    viable = 0.97 * len(places)  # ptxas rejects some
    assert len(LISTED) <= 0.05 * viable


def test_the_listed_mutants_mean_the_same():
    """None is listed that would be noticed."""
    (text, _), *_ = variants()
    config = Gemm(*SIZES[0], f16)
    run = check(config)
    for mutant in mutants(text):
        if place(mutant, text) in LISTED:
            run(mutant.text)


@pytest.mark.parametrize(
    "config",
    [
        Gemm(67, 72, 120, f16),
        Gemm(67, 72, 120, f16, stages=2),
        Gemm(67, 72, 120, f16, stages=4),
        Gemm(67, 72, 120, bf16),
        Gemm(67, 72, 60, f32),
    ],
    ids=["f16", "f16-2-stages", "f16-4-stages", "bf16", "tf32"],
)
def test_lost_synchronisation_is_noticed(config):
    """Each barrier, wait and commit deleted, and each wait weakened: not by wrong numbers."""
    text = gemm(config, TARGET)
    run = check(config)
    run(text)
    synchronisation = re.compile(r"bar\.sync|cp\.async\.(wait|commit)_group")
    broken = [m for m in mutants(text) if synchronisation.match(m.original)]
    kinds = [m.kind for m in broken]
    assert kinds.count("deleted") == config.stages + 2  # commits, and a wait and a barrier
    assert kinds.count("one group less") == 1
    for mutant in broken:
        with pytest.raises((RaceError, InFlightError)):
            run(mutant.text)
