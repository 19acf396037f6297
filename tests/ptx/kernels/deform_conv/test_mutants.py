"""Mutants of the kernels forward and backward to offset: how many are noticed, and why not all."""

import functools

import pytest
from support.deform_conv_probes import PROBES
from support.mutants import Reason, check, text_of

TARGET = "sm_80"
SAMPLE, LARGE_SAMPLE = 30, 80  # of each text
KERNELS = ("forward", "backward-offset")

# What nothing notices: the reason, and regular expressions of the kernels, where in them, what
# instruction, and what is done to it. These compute the same for all operands of these sizes.
_STEP = "constant [+-]1|constant x2|lt -> le|ge -> gt|operands swapped"
_TILED, _TABLE = ".*-tiled", ".*-table"
EQUIVALENT: list[Reason] = [
    (
        "what is converted is an integer already",
        *(".*", ".*", r"cvt\.rzi\.s32\.f32 .*", "rzi -> rni"),
    ),
    (
        "the product with 0 is 0, or NaN, whichever sign, and so is what it is added to",
        *(".*", ".*", r"add\.rn\.f32 (%f\d+), (?!\1,).*", "add -> sub"),
    ),
    (
        "what is far is outside of the image, wherever it is, and its fraction is multiplied by 0",
        *(".*", ".*", r"(setp\.gt|min|max|selp)\.f32 .*(0f4E800000|0fCE800000|0f00000000, %f).*"),
        "constant .*|gt -> ge",
    ),
    (
        "what is outside of the image is made 0 when it is loaded, whatever its weight",
        *("forward-table", "corners.*"),
        r"(mul\.rn\.f32 .*, 0f00000000|selp\.f32 (%\w+, ){3}%\w+);",
        ".*",
    ),
    (
        "an element outside has weight 0, and a pixel that does not exist is not stored: it makes "
        "no difference what finite number is in its place",
        *(".*", "(?!bias).*", r"(mov\.b(32|16) %h+\d+, 0x0|selp\.u32 %r\d+, %r\d+, 0, %p\d+);"),
        "constant [+-]1",
    ),
    (
        "what is not stored",
        *(".*", "bias.*", r"mov\.b(32|16) %h+\d+, .*", ".*"),
    ),
    (
        "to make 0 what is outside saves nothing but time where nothing is, and what is partly "
        "outside has weight 0 there",
        *("forward-table", "(the first (chunks|rows of A)|this stage).*"),
        r"(and\.b32 %r\d+, %r\d+, [1-8]|setp\.ne\.u32 .*|@!%p\d+ bra \$if_\w+);",
        ".*",
    ),
    (
        "a step beyond the last may be copied, as nobody reads it",
        *(".*", "(the first (chunks|rows of A)|this stage).*"),
        r"(setp\.gt\.u32 .*|@!%p\d+ bra \$if_\w+;|(sub|mov)\.u32 %left, .*|"
        r"mul\.lo\.u32 %r\d+, %r\d+, 2;)",
        ".*",
    ),
    (
        "the counters of the first steps are known numbers, and registers hold the same ones",
        *(".*", "the first (chunks|rows of A)[^/]*"),
        r"(setp\.eq|selp|mov|add|sub)\.u32 .*",
        ".*",
    ),
    (
        "a register holds the same number: of another counter that counts along",
        *(".*", ".*", r"add\.u32 (%slice\w*), \1, 1;", r"%slice\w* -> %r\d+"),
    ),
    (
        "the last pass has begun to copy a chunk of zeros that nobody reads",
        *(_TILED, "this stage is full.*", r"cp\.async\.(commit|wait)_group.*;", "deleted"),
    ),
    (
        "the sum over chunks in another order, each of them once, is the same",
        *(_TILED, "the first chunks", r"mov\.u32 %slice\w*, 0;", "constant [+-]1"),
    ),
    (
        "the counter goes back to 0 before it is read again",
        *(".*", ".*", r"mov\.u32 %(slice|tap)\w*, %r\d+;", r"%\w+ -> %\w+"),
    ),
    (
        "what is far is an integer",
        *(".*", ".*", r"abs\.f32 %f\d+, (%f\d+);", r"%f\d+ -> %f\d+"),
    ),
    (
        "a segment has one tile here, of fewer channels than a tile may have",
        *("backward-offset-tiled", ".*", r"(add\.u32 .*, %tile|min\.u32 .*, 16);"),
        "add -> sub|constant [+]1",
    ),
    (
        "the first pixel that does not exist is in a row of other lanes",
        *("backward-offset-tiled", "sum over.*", r"setp\.lt\.u32 %p\d+, %r\d+, %r1;", "lt -> le"),
    ),
    (
        "a group has one segment here",
        *("backward-offset-tiled", ".*", r"mul\.lo\.u32 %r\d+, %segment, \d+;", ".*"),
    ),
    (
        "a row that does not exist is below the image, however far",
        *(".*", "setup", r"selp\.u32 %r\d+, %r\d+, 536870912, %p\d+;", "constant .*"),
    ),
    (
        "the loop has a first pass, and ends after the same one",
        *(".*", ".*"),
        r"(setp\.(ge|lt)\.u32 %p\d+, %(sample|corner|tap|first_tap|segment|tile|slice)\w*, .*|"
        r"@%p\d+ bra \$loop_\w+_end;|add\.u32 (%(segment|tile)\w*), \3, 1;)",
        f"{_STEP}|deleted|add -> sub",
    ),
    (
        "a pass beyond the last multiplies zeros",
        *(_TILED, ".*", r"(setp\.lt|add)\.u32 .*%chunk.*", ".*"),
    ),
    (
        "channels come in vectors, so that the bound is between the same ones",
        *(".*", ".*"),
        r"(setp\.lt\.u32 %p\d+, %r\d+, \d+|selp\.u32 %r\d+, (4|8|16), 0, .*|"
        r"sub\.u32 %r\d+, \d+, %r\d+);",
        _STEP,
    ),
    (
        "channels come in vectors, and the lanes beyond them in whole ones",
        *(_TABLE, "the dots.*", r"mul\.lo\.u32 %r\d+, %r\d+, 8;", "constant [+-]1"),
    ),
    (
        "of both operands one has zeros there, or the other test implies it",
        *(_TILED, "(the first chunks|this stage).*", r"and\.pred .*", ".*"),
    ),
    (
        "the lane whose sum is not written, or that has no channels",
        *("backward-offset-.*", "sum over.*", r"shfl\.sync\.bfly\.b32 .*", ".*"),
    ),
    (
        "each of the four lanes has the sum and may write it",
        *("backward-offset-tiled", "sum over.*", r"setp\.eq\.u32 %p\d+, %r\d+, 0;", "constant .*"),
    ),
    (
        "only the index of a pixel is read",
        *(_TABLE, "setup"),
        r"(st\.shared\.v4\.u32 .*|selp\.u32 %r\d+, %r\d+, 536870912, .*)",
        "elements [12] and .*|operands swapped|%.*",
    ),
]
# These compute something else, which is far less than what the results are rounded to.
NEGLIGIBLE: list[Reason] = [
    (
        "the last of 24 bits, if a sum or product has that many",
        *(".*", ".*", r"(add|sub|mul|fma)\.rn\.f32 .*", "rn -> rz"),
    ),
    (
        "the last bit of a neighbour, as the last of 24 bits",
        *(".*", ".*", r"and\.b32 %b\d+, %b\d+, 4294901760;", "constant [+]1"),
    ),
]


def check_kernel(kernel: str, limit: int) -> None:
    probes = {name: probes for name, probes in PROBES.items() if name.startswith(kernel)}
    check(probes, TARGET, limit, EQUIVALENT, NEGLIGIBLE)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sample_is_noticed(kernel):
    check_kernel(kernel, SAMPLE)


@pytest.mark.full
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_large_sample_is_noticed(kernel):
    check_kernel(kernel, LARGE_SAMPLE)


@pytest.mark.parametrize("name", PROBES)
def test_every_instruction_runs(name):
    text = text_of(PROBES[name][0])
    first, *others = (probe.run(text) for probe in PROBES[name])
    assert functools.reduce(lambda a, b: a.merge(b), others, first).never_executed == []
