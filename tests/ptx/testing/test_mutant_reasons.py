"""Excuses of mutants: their constructs exist, and no mutant that computes otherwise passes."""

import numpy as np
import pytest
from support.mutants import Reason, Result, change_of, result_of

from ptx.emulator import Buffer, launch
from ptx.testing.mutate import Mutant, mutants

TEXT = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x)
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<4>, %zero;
    .reg .f32 %f<2>;
    .reg .pred %p0;
    ld.param.u64    %rd0, [x];
    mov.u32         %r0, %tid.x;
    mov.u32         %zero, 0;
    add.u32         %r1, %r0, %zero;
    mul.lo.u32      %r2, %r1, 4;
    mul.wide.u32    %rd1, %r2, 1;
    add.u64         %rd1, %rd0, %rd1;
    setp.lt.u32     %p0, %r0, 31;
    @%p0 ld.global.f32 %f0, [%rd1];
    @%p0 mul.rn.f32 %f1, %f0, 0f3F800001;
    @%p0 st.global.f32 [%rd1], %f1;
    ret;
}
"""


class Scaling:
    """A call with 31 of 32 threads active."""

    text = TEXT

    def run(self, text: str) -> np.ndarray:
        x = Buffer(np.arange(1, 33, dtype=np.float32))
        launch(text, 1, 32, [x])
        return x.array


def planted(opcode: str, kind: str) -> Mutant:
    (found,) = [m for m in mutants(TEXT) if opcode in m.original and m.kind == kind]
    return found


@pytest.mark.parametrize(
    ("opcode", "kind", "result"),
    [
        ("add.u32", "add -> sub", Result.SAME),
        ("add.u32", "%zero -> %r0", Result.OTHER),
        ("setp.lt", "constant +1", Result.OTHER),
        ("setp.lt", "lt -> le", Result.OTHER),
        ("mul.lo", "lo -> hi", Result.OTHER),
        ("mul.rn", "rn -> rz", Result.NEAR),
        ("mul.rn", "constant x2", Result.OTHER),
        ("mul.lo", "constant +1", Result.OTHER),
        ("st.global", "deleted", Result.OTHER),
    ],
)
def test_results_are_compared(opcode, kind, result):
    assert result_of([Scaling()], TEXT, planted(opcode, kind)) is result


def test_a_reason_covers_nothing_else():
    """Another function, instruction or change is not excused, and neither is another result."""
    reason = Reason("", "ptx.a > ptx.b", "add sub", "operator")
    mutant = planted("add.u32", "add -> sub")
    assert change_of(mutant) == "operator"
    assert reason.covers(mutant, ("ptx.z", "ptx.a", "ptx.y", "ptx.b"))
    for functions in (("ptx.b",), ("ptx.b", "ptx.a"), ("ptx.a", "ptx.b", "ptx.c"), ("ptx.a",)):
        assert not reason.covers(mutant, functions)
    assert not reason.covers(planted("mul.lo", "lo -> hi"), ("ptx.a", "ptx.b"))
    assert not reason.covers(planted("add.u32", "%zero -> %r0"), ("ptx.a", "ptx.b"))
    assert reason.result is Result.SAME
