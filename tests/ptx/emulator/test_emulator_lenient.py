"""Faults that a lenient launch lets pass, each with the strict launch that does not."""

import numpy as np
import pytest
from support.hand_written import fails, kernel, output, run

from ptx.emulator import (
    Buffer,
    DivergenceError,
    EmulatorError,
    OutOfBoundsError,
    RaceError,
    UndefinedResultError,
    UninitializedError,
)


def lets_pass(
    error: type[EmulatorError], text: str, buffer: Buffer, expected: object, **kw
) -> None:
    with pytest.raises(error):
        run(text, buffer, **kw)
    run(text, buffer, lenient=True, **kw)
    np.testing.assert_array_equal(buffer.array, expected)


def test_equal_values_written_twice():
    lets_pass(RaceError, kernel("st.global.u32 [%y], 3;", "y"), output(1), [3])
    shared = "st.shared.u32 [s], 3;\n ld.shared.u32 %r0, [s];\n st.global.u32 [%aty], %r0;"
    text = kernel(shared, "y", ".shared .u32 s;")
    lets_pass(RaceError, text, output(), [3] * 32)


def test_memory_and_registers_that_nothing_has_written():
    text = kernel(
        "ld.shared.u32 %r0, [s];\n ld.local.u32 %r1, [l];\n add.u32 %r0, %r0, %r1;\n"
        "add.u32 %r0, %r0, %r2;\n mad.lo.u32 %r0, %r0, 0, %t;\n st.global.u32 [%aty], %r0;",
        "y",
        ".shared .u32 s;\n .local .u32 l;",
    )
    lets_pass(UninitializedError, text, output(), np.arange(32))


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("shfl.sync.bfly.b32 %r0, %t, 1, 31, -1;", np.arange(8) ^ 1),
        ("redux.sync.add.u32 %r0, %t, -1;", [28] * 8),
        ("vote.sync.ballot.b32 %r0, 1, -1;", [255] * 8),
        (
            "setp.lt.u32 %p0, %t, 9;\n vote.sync.all.pred %p1, %p0, -1;\n selp.u32 %r0, 1, 0, %p1;",
            1,
        ),
        ("match.any.sync.b32 %r0, %n, -1;", [255] * 8),
        ("bar.warp.sync -1;\n mov.u32 %r0, 5;", [5] * 8),
    ],
)
def test_a_membermask_beyond_the_block(instruction, expected):
    text = kernel(f"{instruction}\n st.global.u32 [%aty], %r0;", "y")
    lets_pass(DivergenceError, text, output(8), np.broadcast_to(expected, 8), block=8)


def test_a_membermask_with_threads_that_have_ended():
    text = kernel(
        "setp.ge.u32 %p0, %t, 20;\n @%p0 exit;\n"
        "vote.sync.ballot.b32 %r0, 1, -1;\n st.global.u32 [%aty], %r0;",
        "y",
    )
    zeros = Buffer(np.zeros(32, np.uint32))
    lets_pass(DivergenceError, text, zeros, [(1 << 20) - 1] * 20 + [0] * 12)


def test_what_remains_a_fault():
    """A membermask with threads that are elsewhere; memory of nobody; division by zero."""
    text = kernel(
        "setp.ge.u32 %p0, %t, 20;\n @%p0 bra OVER;\n"
        "vote.sync.ballot.b32 %r0, 1, -1;  // fault\nOVER:\n st.global.u32 [%aty], %t;",
        "y",
    )
    fails(DivergenceError, text, output(), lenient=True)
    text = kernel("st.global.u32 [%aty+4], %t;  // fault", "y")
    fails(OutOfBoundsError, text, output(), lenient=True)
    text = kernel("div.u32 %r0, %n, %t;  // fault", "y")
    fails(UndefinedResultError, text, output(), lenient=True)
    text = kernel("ld.global.u32 %r0, [%aty];  // fault", "y")
    fails(UninitializedError, text, output(), lenient=True)
