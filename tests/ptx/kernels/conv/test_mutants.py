"""Mutants of the kernels of a convolution: how many are noticed, and why not all."""

import functools

import pytest
from support.conv_kernels import KERNELS
from support.conv_probes import PROBES
from support.mutants import Reason, check

TARGET = "sm_80"
SAMPLE, LARGE_SAMPLE = 20, 200  # of each text

# What nothing notices: the reason, and regular expressions of the kernels, where in them, what
# instruction, and what is done to it. These compute the same for all operands of these sizes.
_STREAMED, _TILED = ".*-streamed.*", "(.*-tiled.*|backward_weight)"
_CHUNK = "the first chunks|this stage.*"
_STEP = "(the first (chunks|rows of A)|this stage).*"
EQUIVALENT: list[Reason] = [
    (
        "no block is beyond the last strip, forward, and no row of its windows in another one",
        *("forward-.*", "setup|windows"),
        r"(and\.pred .*|selp\.u32 .*, (1|4294967295), %p\d+|selp\.s32 .*, 0, %p\d+);",
        r"%p\d+ -> %p\d+|constant .*",
    ),
    (
        "a window that does not exist has no taps inside, wherever it begins",
        *("(forward|backward_input)-.*", "windows", r"selp\.s32 %s\d+, %s\d+, (0|-\d+), %p\d+;"),
        "constant .*",
    ),
    (
        "there are windows: the least number of rows, and of blocks of a strip, is not needed",
        *(".*", "setup|windows", r"max\.u32 .*, 1;", "constant -1"),
    ),
    (
        "there are windows: their rows are not 0, and need not be 1 then",
        *(".*", "windows", r"(div|rem)\.u32 .*", r"%r\d+ -> %(out_h|r\d+)"),
    ),
    (
        "a strip does not fill its last block: one more window would not need another one",
        *(_STREAMED, "setup", r"add\.u32 %r\d+, %r\d+, 127;", "constant [+]1"),
    ),
    (
        "each thread has a row",
        *(".*", "windows", r"setp\.lt\.u32 .*|@!%p\d+ bra \$if_1_end;", ".*"),
    ),
    (
        "the counters of the first steps are known numbers, and registers hold the same ones",
        *(
            _STREAMED,
            "the first (chunks|rows of A)[^/]*",
            r"(setp\.eq|selp|mov|add|sub|mul\.lo)\.u32 .*",
            ".*",
        ),
    ),
    (
        "counters begin again after the last step, when nothing is read any more",
        *(_STREAMED, _STEP, r"(setp\.eq|selp|mov)\.u32 .*%(slice|y|x)(_\d+)?\b.*", ".*"),
    ),
    (
        "a register holds the same number: of what was just written to the other one",
        *(".*", _STEP, r"(setp\.eq|setp\.gt|add|selp)\.u32 .*", r"%\w+ -> %\w+"),
    ),
    (
        "a step beyond the last may be copied, as nobody reads it",
        *(_STREAMED, _STEP, r"(setp\.gt\.u32|sub\.u32 %left|mov\.u32 %left|@!%p\d+ bra).*"),
        ".*",
    ),
    (
        "a pass beyond the last may be copied, as nobody reads it",
        *(_TILED, "this stage.*", r"(sub\.u32 %left,|setp\.gt\.u32 %p\d+, %left,|and\.pred) .*"),
        ".*",
    ),
    (
        "counters begin again after the last pass, when nothing is read any more",
        *(_TILED, _CHUNK, r"(setp\.eq|selp|mov|add)\.u32 .*%(chunk|slice|y|x)\b.*", ".*"),
    ),
    (
        "of both operands one has zeros there, or the other test implies it",
        *(_TILED, _CHUNK, r"(setp\.lt\.u32 .*|and\.pred .*);", ".*"),
    ),
    (
        "the first chunk's numbers are so small that it is the same",
        *(_TILED, "the first chunks", r"(div|rem|mul\.lo|shr|and)\.(u|b)32 .*", "constant .*"),
    ),
    (
        "in the first chunk counters are 0, and what they are added to is the same",
        *(_TILED, "the first chunks", r"add\.u32 .*", r"%\w+ -> %\w+|add -> sub"),
    ),
    (
        "after the last pass a chunk is on its way that nobody reads",
        *(_TILED, "this stage.*", r"cp\.async\.wait_group 0;", "one group less"),
    ),
    (
        "images are larger than a stride",
        *("backward_input-.*", "setup", r"(min|add)\.u32 .*", ".*"),
    ),
    (
        "channels of the last chunk that do not exist are 0, whatever they are multiplied with",
        *(_TILED, "this stage.*", r"mma\..*", r"%hh\d+ -> %hh\d+|elements .*"),
    ),
    (
        "each part has pixels, and those beyond the last one add 0",
        *("backward_weight", "setup.*|this stage.*"),
        r"(setp\.(ge|lt)\.u32 %p\d+, %pixels, .*|add\.u32 %r\d+, %r\d+, 31;)",
        "ge -> gt|lt -> le|constant .*",
    ),
    (
        "0 and 1 times -1: the upper half is the same",
        *("backward_input-.*", ".*", r"mul\.lo\.s32 .*, -1;", "lo -> hi"),
    ),
    (
        "a warp has four times 8 lanes, so that a mask of two bits leaves all of their numbers",
        *(_TILED, "windows", r"(shr\.u32|and\.b32) %r\d+, %r\d+, [13];", r"%r\d+ -> %r\d+"),
    ),
    (
        "a bias may be loaded that is not used, as what it is added to is not stored",
        *("forward-.*", "bias.*", r"and\.pred .*", r"%p\d+ -> %p\d+"),
    ),
    (
        "channels come in vectors, so that the bound is between the same ones",
        *(".*", "bias.*|the gradient|this part.*"),
        r"setp\.lt\.u32 .*|add\.u32 .*, 1;",
        "lt -> le|constant .*",
    ),
    (
        "what is not stored",
        *("forward-.*", "bias.*", r"mov\.b(32|16) %h+\d+, .*", r"%\w+ -> %\w+"),
    ),
]
# These compute something else, which is far less than what the results are rounded to.
NEGLIGIBLE: list[Reason] = [
    (
        "the last of 24 bits, if a sum has that many",
        *(".*", ".*", r"add\.rn\.f32 .*", "rn -> rz"),
    ),
    (
        "the last bit of a neighbour, as the last of 24 bits",
        *(".*", ".*", r"and\.b32 %b\d+, %b\d+, 4294901760;", "constant [+]1"),
    ),
    (
        "the last byte of a number, or its last bit, in place of 0",
        *(".*", ".*", r"(selp\.u32 %r\d+, \d+, 0, %p\d+|mov\.b(32|16) %h+\d+, 0x0);"),
        "constant [+]1",
    ),
]


def check_kernel(kernel: str, limit: int) -> None:
    probes = {name: PROBES[name] for name in PROBES if name.split("-")[0] == kernel}
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
    first, *others = (probe.run() for probe in PROBES[name])
    assert functools.reduce(lambda a, b: a.merge(b), others, first).never_executed == []
