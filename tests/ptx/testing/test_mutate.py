"""The mutation harness: its changes, and its report on a check that sees, or does not."""

import re

import numpy as np
import pytest

from ptx.emulator import Buffer, launch
from ptx.isa.assembler import AssemblyError, assemble
from ptx.testing.mutate import Mutant, MutationReport, mutants, study

HEAD = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(
    .param .u64 a,
    .param .u32 n,
    .param .u64 .ptr .global .align 16 b,
    .param .u64 c
)
{
    .reg .pred  %p<2>;
    .reg .b32   %r<8>, %mask;
    .reg .f32   %f<6>;
    .reg .b64   %rd<4>;
    .shared .align 16 .b8 tile[512];
    mov.u32     %r0, %r1;  // what was mentioned before
    mov.f32     %f0, %f1;
    mov.b64     %rd0, %rd1;
$label:
"""
FIRST = 1 + len(HEAD.splitlines())  # the line of what follows


def changes(instruction: str) -> dict[str, str]:
    """What becomes of an instruction, by kind, register replacements left out."""
    made = [m for m in mutants(HEAD + instruction + "\n    ret;\n}\n") if m.line == FIRST]
    return {m.kind: m.replacement for m in made if "%" not in m.kind}


# An instruction, then each change of it.
CHANGES = """\
add.s32 %r2, %r0, %r1;
  add -> sub: sub.s32 %r2, %r0, %r1;
add.s32 %r2, %r0, 7;
  add -> sub: sub.s32 %r2, %r0, 7;
  constant +1: add.s32 %r2, %r0, 8;
  constant -1: add.s32 %r2, %r0, 6;
  constant x2: add.s32 %r2, %r0, 14;
sub.f32 %f2, %f0, 0f3F800000;
  sub -> add: add.f32 %f2, %f0, 0f3F800000;
  operands swapped: sub.f32 %f2, 0f3F800000, %f0;
  constant +1: sub.f32 %f2, %f0, 0f40000000;
  constant -1: sub.f32 %f2, %f0, 0f00000000;
mov.f32 %f2, 0f7F7FFFFF;
mov.f64 %fd, 0d3FF0000000000000;
  constant +1: mov.f64 %fd, 0d4000000000000000;
  constant -1: mov.f64 %fd, 0d0000000000000000;
min.u32 %r2, %r0, %r1;
  min -> max: max.u32 %r2, %r0, %r1;
mul.lo.s32 %r2, %r0, %r1;
  lo -> hi: mul.hi.s32 %r2, %r0, %r1;
mad.lo.s32 %r2, %r0, %r1, %r3;
  lo -> hi: mad.hi.s32 %r2, %r0, %r1, %r3;
  operands swapped: mad.lo.s32 %r2, %r0, %r3, %r1;
mad.wide.u32 %rd2, %r0, %r1, %rd0;
fma.rn.f32 %f2, %f0, %f1, %f3;
  rn -> rz: fma.rz.f32 %f2, %f0, %f1, %f3;
  operands swapped: fma.rn.f32 %f2, %f0, %f3, %f1;
cvt.rmi.s32.f32 %r2, %f0;
  rmi -> rpi: cvt.rpi.s32.f32 %r2, %f0;
shl.b32 %r2, %r0, %r1;
  shl -> shr: shr.u32 %r2, %r0, %r1;
  operands swapped: shl.b32 %r2, %r1, %r0;
shr.s32 %r2, %r0, %r1;
  shr -> shl: shl.b32 %r2, %r0, %r1;
  operands swapped: shr.s32 %r2, %r1, %r0;
and.b32 %r2, %r0, %r1;
  and -> or: or.b32 %r2, %r0, %r1;
setp.lt.s32 %p0, %r0, %r1;
  lt -> le: setp.le.s32 %p0, %r0, %r1;
  lt -> ge: setp.ge.s32 %p0, %r0, %r1;
  operands swapped: setp.lt.s32 %p0, %r1, %r0;
setp.eq.u32 %p0, %r0, %r1;
  eq -> ne: setp.ne.u32 %p0, %r0, %r1;
setp.hs.and.u32 %p0, %r0, %r1, %p1;
  hs -> hi: setp.hi.and.u32 %p0, %r0, %r1, %p1;
  hs -> lo: setp.lo.and.u32 %p0, %r0, %r1, %p1;
  and -> or: setp.hs.or.u32 %p0, %r0, %r1, %p1;
  operands swapped: setp.hs.and.u32 %p0, %r1, %r0, %p1;
selp.b32 %r2, %r0, %r1, %p0;
  operands swapped: selp.b32 %r2, %r1, %r0, %p0;
@%p0 mov.u32 %r2, %r0;
  guard negated: @!%p0 mov.u32 %r2, %r0;
  guard dropped: mov.u32 %r2, %r0;
@!%p0 bra $label;
  guard negated: @%p0 bra $label;
  guard dropped: bra $label;
  deleted: (none)
bar.sync 0;
  deleted: (none)
ld.global.f32 %f2, [%rd0+8];
  offset +4: ld.global.f32 %f2, [%rd0+12];
  offset -4: ld.global.f32 %f2, [%rd0+4];
st.shared.v2.b32 [%r0], {%r1, %r2};
  deleted: (none)
  offset +8: st.shared.v2.b32 [%r0+8], {%r1, %r2};
  offset -8: st.shared.v2.b32 [%r0+-8], {%r1, %r2};
  elements 0 and 1 swapped: st.shared.v2.b32 [%r0], {%r2, %r1};
red.global.add.f32 [%rd0], %f1;
  deleted: (none)
  add -> max: red.global.max.f32 [%rd0], %f1;
  offset +4: red.global.add.f32 [%rd0+4], %f1;
  offset -4: red.global.add.f32 [%rd0+-4], %f1;
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r2, %r3}, [%r0+32];
  trans dropped: ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2, %r3}, [%r0+32];
  elements 0 and 1 swapped: ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r3, %r2}, [%r0+32];
  offset +16: ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r2, %r3}, [%r0+48];
  offset -16: ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r2, %r3}, [%r0+16];
cp.async.commit_group;
  deleted: (none)
cp.async.wait_group 1;
  deleted: (none)
  one group less: cp.async.wait_group 2;
shfl.sync.down.b32 %r2|%p0, %r0, %r1, %r3, %mask;
  down -> up: shfl.sync.up.b32 %r2|%p0, %r0, %r1, %r3, %mask;
ld.param.u64 %rd2, [a];
  a -> b: ld.param.u64 %rd2, [b];
ld.param.u64 %rd2, [c];
  c -> a: ld.param.u64 %rd2, [a];
ld.param.u32 %r2, [n];
$more: neg.s32 %r2, %r0;  // comment
  neg -> abs: abs.s32 %r2, %r0;
"""


@pytest.mark.parametrize("case", re.split(r"\n(?! )", CHANGES.strip()))
def test_changes(case):
    """Changes that leave the largest f32 as it is, or make the same number, are not made twice."""
    instruction, *expected = case.split("\n")
    made = [f"  {kind}: {code or '(none)'}" for kind, code in changes(instruction).items()]
    assert sorted(made) == sorted(expected)


def test_registers_are_replaced_by_the_last_of_their_type():
    made = list(mutants(HEAD + "    @%p0 st.global.f32 [%rd3], %f4;\n}\n"))
    made = {m.kind: m.replacement for m in made if m.line == FIRST and "%" in m.kind}
    assert made == {
        "%rd3 -> %rd1": "@%p0 st.global.f32 [%rd1], %f4;",
        "%f4 -> %f1": "@%p0 st.global.f32 [%rd3], %f1;",
    }


def test_special_registers_take_another_axis():
    made = list(mutants(HEAD + "    mov.u32 %r2, %ctaid.x;\n}\n"))
    assert "mov.u32 %r2, %ctaid.y;" in [m.replacement for m in made]


def test_a_mutant_differs_in_its_line_alone():
    text = HEAD + "    @%p0 add.s32 %r2, %r2, -3;  // comment\n    ret;\n}\n"
    made = list(mutants(text))
    assert len(made) == len({m.text for m in made}) == 8
    for mutant in made:
        lines, changed = text.split("\n"), mutant.text.split("\n")
        assert len(lines) == len(changed)
        different = [i for i, pair in enumerate(zip(lines, changed, strict=True), 1) if
                     pair[0] != pair[1]]  # fmt: skip
        assert different == [mutant.line]
        assert mutant.original in lines[mutant.line - 1]
        assert mutant.replacement in changed[mutant.line - 1]
    assert str(Mutant(20, "deleted", "x", "", ())) == "line 20, deleted: x -> (none)"


def test_more_than_one_instruction_a_line():
    with pytest.raises(ValueError, match=rf"line {FIRST} is not one instruction: add.*; sub"):
        list(mutants(HEAD + "    add.s32 %r0, %r0, 1; sub.s32 %r0, %r0, 1;\n}\n"))


# ---- the study. What notices is told, so that each count is known.

SMALL = HEAD + "    add.s32 %r2, %r0, 7;\n    bar.sync 0;\n    ret;\n}\n"


class NoticedError(Exception):
    pass


def notices_constants(text: str) -> None:
    if "%r0, 7;" not in text:
        raise NoticedError


def test_study_counts():
    report = study(SMALL, notices_constants)
    assert report.total == len(report.outcomes) == len(list(mutants(SMALL)))
    noticed = [m.kind for m, outcome in report.outcomes if outcome == "NoticedError"]
    assert [kind for kind in noticed if "%" not in kind] == [
        "constant +1",
        "constant -1",
        "constant x2",
    ]
    assert report.killed == {"NoticedError": len(noticed)}
    assert {"add -> sub", "deleted"} <= {m.kind for m in report.survivors}
    assert report.rate == len(noticed) / report.total
    assert len(report.survivors) + len(noticed) == report.total
    assert f"{len(noticed)} of {report.total} mutants noticed" in str(report)
    assert "survived: line 21, deleted: bar.sync 0; -> (none)" in str(report)


def test_study_tells_stillborn_mutants_apart():
    text = SMALL.replace("add.s32 %r2, %r0, 7;", "red.global.add.f32 [%rd0], %f1;")
    report = study(text, lambda text: None, target="sm_80")
    assert [m.kind for m in report.stillborn] == ["add -> max"]  # there is no such instruction
    with pytest.raises(AssemblyError, match="max"):
        assemble(report.stillborn[0].text, "sm_80")
    assert report.rate == 0
    assert len(report.survivors) + len(report.same) == report.total - 1
    (other,) = (m for m in study(text, lambda text: None).survivors if m.kind == "add -> max")
    assert other == report.stillborn[0]


def test_study_tells_what_is_the_same_program_apart():
    """Nothing depends on the sum: ptxas removes it. What is noticed is noticed all the same."""
    report = study(SMALL, lambda text: None, target="sm_80")
    assert [m.original for m in report.survivors] == ["bar.sync 0;"]
    assert {m.original for m in report.same} == {"add.s32 %r2, %r0, 7;"}
    assert len(report.same) == report.total - 1
    assert report.rate == 0
    assert f"{len(report.same)} that it makes the same code of" in str(report)

    noticed = study(SMALL, notices_constants, target="sm_80")
    assert noticed.killed == study(SMALL, notices_constants).killed == {"NoticedError": 4}
    assert [m.kind for m in noticed.same] == ["add -> sub", "%r2 -> %r1"]
    assert noticed.rate == 4 / 5


def test_study_counts_by_exception():
    def notices(text: str) -> None:
        notices_constants(text)
        if "bar.sync" not in text:
            raise AssertionError("no barrier")

    assert study(SMALL, notices).killed.keys() == {"NoticedError", "AssertionError"}
    assert next(iter(study(SMALL, notices).killed)) == "NoticedError"  # the most frequent first


def test_study_of_a_sample():
    every = [m for m, _ in study(SMALL, notices_constants).outcomes]
    picked = [m for m, _ in study(SMALL, notices_constants, limit=5).outcomes]
    again = [m for m, _ in study(SMALL, notices_constants, limit=5).outcomes]
    other = [m for m, _ in study(SMALL, notices_constants, limit=5, seed=1).outcomes]
    assert len(picked) == len(set(picked)) == 5
    assert picked == again != other
    assert picked == sorted(picked, key=every.index)
    assert study(SMALL, notices_constants, limit=5).total == len(every)
    assert len(study(SMALL, notices_constants, limit=1000).outcomes) == len(every)


def test_study_of_what_does_not_pass():
    with pytest.raises(ValueError, match="unchanged text does not pass: wrong sum"):
        study(SMALL, lambda text: (_ for _ in ()).throw(NoticedError("wrong sum")))


def test_rate_of_nothing():
    assert MutationReport(0, ()).rate != MutationReport(0, ()).rate


# ---- with the emulator

PREFIX_SUMS = """\
.version 6.3
.target sm_75
.address_size 64
.visible .entry prefix_sums(
    .param .u64 x,
    .param .u64 y,
    .param .u32 n
)
.maxntid 64
{
    .reg .pred %p<3>;
    .reg .u32  %r<6>;
    .reg .f32  %f<3>;
    .reg .u64  %rd<5>;
    .shared .align 4 .b8 tile[256];

    ld.param.u64     %rd0, [x];
    ld.param.u64     %rd1, [y];
    ld.param.u32     %r0, [n];
    mov.u32          %r1, %tid.x;
    mul.wide.u32     %rd2, %r1, 4;
    shl.b32          %r2, %r1, 2;
    mov.u32          %r3, tile;
    add.u32          %r2, %r3, %r2;
    add.u64          %rd3, %rd0, %rd2;
    setp.lt.u32      %p0, %r1, %r0;
    mov.f32          %f0, 0f00000000;
    @%p0 ld.global.f32 %f0, [%rd3];
    st.shared.f32    [%r2], %f0;
    bar.sync         0;
    mov.f32          %f1, 0f00000000;
    mov.u32          %r4, %r1;
$sum:
    ld.shared.f32    %f2, [%r3];
    add.f32          %f1, %f1, %f2;
    add.u32          %r3, %r3, 4;
    setp.eq.u32      %p1, %r4, 0;
    sub.u32          %r4, %r4, 1;
    @!%p1 bra        $sum;
    add.u64          %rd4, %rd1, %rd2;
    @%p0 st.global.f32 [%rd4], %f1;
    ret;
}
"""


def notices_wrong_sums(text: str) -> None:
    x = np.arange(1, 51, dtype=np.float32)
    y = Buffer(np.empty_like(x), initialized=False)
    arguments = [Buffer(x, writable=False), y, 50]
    launch(text, grid=1, block=64, arguments=arguments, step_limit=1000)
    np.testing.assert_array_equal(y.array, np.cumsum(x))


def test_study_in_the_emulator():
    report = study(PREFIX_SUMS, notices_wrong_sums, target="sm_75")
    outcomes = {
        (mutant.original, mutant.kind): outcome
        for mutant, outcome in report.outcomes
        if "%" not in mutant.kind
    }
    # One of each kind of death.
    assert outcomes["bar.sync         0;", "deleted"] == "RaceError"
    assert outcomes["@%p0 ld.global.f32 %f0, [%rd3];", "guard dropped"] == "OutOfBoundsError"
    assert outcomes["shl.b32          %r2, %r1, 2;", "constant -1"] == "MisalignedError"
    assert outcomes["@%p0 st.global.f32 [%rd4], %f1;", "deleted"] == "UnwrittenError"
    assert outcomes["st.shared.f32    [%r2], %f0;", "deleted"] == "UninitializedError"
    assert outcomes["add.f32          %f1, %f1, %f2;", "add -> sub"] == "AssertionError"
    assert outcomes["setp.eq.u32      %p1, %r4, 0;", "eq -> ne"] == "AssertionError"
    assert outcomes["ld.param.u64     %rd0, [x];", "x -> y"] == "UninitializedError"
    # It never meets its bound, and sums what lies behind the tile.
    assert outcomes["@!%p1 bra        $sum;", "guard dropped"] == "OutOfBoundsError"
    # The rest is what the check is known not to see: the threads beyond the end.
    survivors = {(m.original, m.kind) for m in report.survivors}
    assert survivors == {
        ("mov.f32          %f0, 0f00000000;", "constant +1"),
        ("mov.f32          %f0, 0f00000000;", "constant -1"),
    }
    assert 0.95 < report.rate < 1


def test_an_endless_loop_is_noticed():
    """A mutant that hangs meets the emulator's step limit."""
    loop = PREFIX_SUMS.replace("ld.shared.f32    %f2, [%r3];", "mov.f32 %f2, 0f3F800000;")
    loop = loop.replace("setp.eq.u32      %p1, %r4, 0;", "setp.lt.u32      %p1, %r4, 1;")

    def notices(text: str) -> None:
        x = np.ones(64, np.float32)
        y = Buffer(np.empty_like(x), initialized=False)
        launch(text, grid=1, block=64, arguments=[Buffer(x), y, 64], step_limit=1000)
        np.testing.assert_array_equal(y.array, np.arange(1, 65))

    outcomes = {(m.original, m.kind): outcome for m, outcome in study(loop, notices).outcomes}
    assert outcomes["@!%p1 bra        $sum;", "guard dropped"] == "StepLimitError"
