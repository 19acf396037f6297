"""Small PTX kernels written by hand, for tests of the emulator."""

import re

import numpy as np
import pytest

from ptx.emulator import Buffer, EmulatorError, RaceError, Report, UninitializedError, launch

__all__ = [
    "COUNTING",
    "SCHEDULES",
    "fails",
    "kernel",
    "line_of_fault",
    "output",
    "passes",
    "races",
    "result",
    "run",
]

COUNTING = np.arange(64, dtype=np.uint32)
SCHEDULES = (None, 0, 1, 2)


def kernel(body: str, parameters: str = "x y", shared: str = "") -> str:
    """A kernel around `body`.

    Each parameter is a pointer, in the register of its name (%x, %y), and %atx, %aty point to
    the thread's own element of 4 bytes; %t is the thread's number in its block, %i in the grid.
    There are registers %p0 .. %p9, %h0 .. (16 bits), %r0 .. (32), %d0 .. (64), %f0 .. (f32).

    Args:
      body: instructions.
      parameters: names.
      shared: declarations of shared variables.
    """
    names = parameters.split()
    declared = ", ".join(f".param .u64 p_{name}" for name in names)
    lines = [
        ".version 8.1",
        ".target sm_90",
        ".address_size 64",
        f".visible .entry test({declared})",
        "{",
        "  .reg .pred %p<10>;",
        "  .reg .b16 %h<10>;",
        "  .reg .b32 %r<20>, %t, %i, %n;",
        "  .reg .f32 %f<20>;",
        "  .reg .b64 %d<20>, %offset;",
        *([f"  .reg .b64 {', '.join(f'%{n}, %at{n}' for n in names)};"] if names else []),
        *(f"  {line.strip()}" for line in shared.strip().splitlines()),
        "  mov.u32 %t, %tid.x;",
        "  mov.u32 %i, %ctaid.x;",
        "  mov.u32 %n, %ntid.x;",
        "  mad.lo.u32 %i, %i, %n, %t;",
        "  mul.wide.u32 %offset, %i, 4;",
    ]
    for name in names:
        lines += [f"  ld.param.u64 %{name}, [p_{name}];", f"  add.u64 %at{name}, %{name}, %offset;"]
    lines += [f"  {line.strip()}" for line in body.strip().splitlines()]
    return "\n".join([*lines, "  ret;", "}", ""])


def output(count: int = 32, dtype: type = np.uint32) -> Buffer:
    """A buffer that the kernel has to write."""
    return Buffer(np.zeros(count, dtype), initialized=False)


def run(text: str, *arguments: Buffer | int, grid: object = 1, block: object = 32, **kw) -> Report:
    return launch(text, grid, block, list(arguments), **kw)  # type: ignore[arg-type]


def result(text: str, *arguments: Buffer, **kw) -> np.ndarray:
    """What the kernel leaves in its last argument; the same in every schedule."""
    before, found = arguments[-1].array, []
    for schedule in SCHEDULES:
        arguments[-1].array = before
        run(text, *arguments, schedule=schedule, **kw)
        found.append(arguments[-1].array)
        np.testing.assert_array_equal(found[-1], found[0])
    return found[0]


def line_of_fault(text: str) -> int:
    """The line that is marked with a comment "fault"."""
    (line,) = (i for i, line in enumerate(text.splitlines(), 1) if re.search("// fault", line))
    return line


def fails(
    error: type[EmulatorError],
    text: str,
    *arguments: Buffer,
    match: str | None = None,
    thread: int | None = None,
    **kw,
) -> EmulatorError:
    """Checks that the kernel fails at the line marked "// fault", in every schedule."""
    found = None
    for schedule in (5, 6, None):
        with pytest.raises(error, match=match) as info:
            run(text, *arguments, schedule=schedule, **kw)
        found = info.value
        assert type(found) is error
        assert found.kernel == "test"
        assert found.line == line_of_fault(text)
        assert found.text in text
        assert str(found.line) in str(found)
    assert found is not None
    if thread is not None:
        assert found.block == (0, 0, 0)
        assert found.thread == (thread, 0, 0)
    return found


def races(text: str, *arguments: Buffer, match: str, **kw) -> EmulatorError:
    """Checks a race; in a random schedule, either of the two accesses may be the later one.

    Where that is a read, it may also find that the write has not happened yet.
    """
    for schedule in (1, 2, 3):
        with pytest.raises((RaceError, UninitializedError)):
            run(text, *arguments, schedule=schedule, **kw)
    with pytest.raises(RaceError, match=match) as info:
        run(text, *arguments, **kw)
    assert info.value.line == line_of_fault(text)
    return info.value


def passes(text: str, *arguments: Buffer, expected: object, **kw) -> None:
    """Checks that the kernel leaves `expected` in its last argument, in every schedule."""
    np.testing.assert_array_equal(result(text, *arguments, **kw), expected)
