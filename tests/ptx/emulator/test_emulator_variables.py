"""Variables of the module, with initial values, and variables that each thread has for itself."""

import numpy as np
import pytest
from support.hand_written import fails, kernel, output, passes, run

from ptx.emulator import (
    Buffer,
    EmulatorError,
    MisalignedError,
    OutOfBoundsError,
    ParseError,
    RaceError,
    ReadOnlyError,
    UninitializedError,
    UnknownInstructionError,
)


def module(declarations: str, body: str, parameters: str = "y", local: str = "") -> str:
    """A kernel as `hand_written.kernel` makes it, with declarations before it."""
    text = kernel(body, parameters, local)
    return text.replace(".visible .entry", f"{declarations}\n.visible .entry")


# ---- initial values

TABLE = ".visible .global .align 4 .u32 table[4] = {7, 0x10, 3};"
LOOK_UP = """
and.b32 %r0, %t, 3;
mov.u64 %d0, table;
mad.wide.u32 %d0, %r0, 4, %d0;
ld.global.u32 %r1, [%d0];
st.global.u32 [%aty], %r1;
"""


@pytest.mark.parametrize(
    ("declaration", "load", "expected"),
    [
        (".global .u32 v[2] = {1, -2};", "ld.global.u32 %r1, [v+4];", 0xFFFFFFFE),
        (".global .align 8 .b8 v[6] = {1, 2, 3, 4, 5};", "ld.global.u32 %r1, [v];", 0x04030201),
        (".global .align 8 .b8 v[6] = {1, 2, 3, 4, 5};", "ld.global.u16 %r1, [v+4];", 5),
        (".global .f32 v = 0f3F800000;", "ld.global.u32 %r1, [v];", 0x3F800000),
        (".global .f32 v = 1.5;", "ld.global.u32 %r1, [v];", 0x3FC00000),
        (".global .f64 v = 0d3FF8000000000000;", "ld.global.u32 %r1, [v+4];", 0x3FF80000),
        (".global .s16 v[] = {-1, 2, 3};", "ld.global.s16 %r1, [v];", 0xFFFFFFFF),
        (".global .u16 v[2][2] = {{1}, {2, 3}};", "ld.global.u32 %r1, [v];", 1),
        (".global .u16 v[2][2] = {{1}, {2, 3}};", "ld.global.u32 %r1, [v+4];", 0x30002),
        (".global .v4 .u32 v = {1, 2, 3, 4};", "ld.global.u32 %r1, [v+12];", 4),
        (".global .u32 v, w = 9;", "ld.global.u32 %r1, [v];", 0),
        (".global .u32 v, w = 9;", "ld.global.u32 %r1, [w];", 9),
        (".const .u32 v = 5;", "ld.const.u32 %r1, [v];", 5),
        (".const .u32 v[2] = {5, 6};", "mov.u64 %d0, v; ld.const.u32 %r1, [%d0+4];", 6),
        (
            ".const .u32 v[2] = {5, 6};",
            "mov.u64 %d0, v; cvta.const.u64 %d1, %d0; ld.u32 %r1, [%d1+4];",
            6,
        ),
        (
            ".const .u32 v[2] = {5, 6};",
            "mov.u64 %d0, v+4; cvta.const.u64 %d1, %d0; cvta.to.const.u64 %d2, %d1;"
            " ld.const.u32 %r1, [%d2];",
            6,
        ),
        (
            ".global .u32 v[2] = {5, 6}; .global .u64 w[2] = {0, v+4};",
            "ld.global.u64 %d0, [w+8]; ld.global.u32 %r1, [%d0];",
            6,
        ),
        (
            ".global .u64 w = generic(v)+4; .const .u32 v[2] = {5, 6};",
            "ld.global.u64 %d0, [w]; ld.u32 %r1, [%d0];",
            6,
        ),
        (
            ".global .u64 w = v; .const .u32 v[2] = {5, 6};",
            "ld.global.u64 %d0, [w]; ld.const.u32 %r1, [%d0];",
            5,
        ),
    ],
)
def test_initial_value(declaration, load, expected):
    text = module(declaration, f"{load}\n st.global.u32 [%aty], %r1;")
    passes(text, output(), expected=[expected] * 32)


def test_each_thread_looks_up_its_own_element():
    passes(module(TABLE, LOOK_UP), output(), expected=[7, 16, 3, 0] * 8)


def test_every_launch_starts_with_the_initial_values():
    text = module(
        ".global .u32 total = 1;",
        "red.global.add.u32 [total], 1;\n bar.sync 0;\n"
        "ld.global.u32 %r0, [total];\n st.global.u32 [%aty], %r0;",
    )
    passes(text, output(), expected=[33] * 32)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (".global .u32 v[2] = {1, 2, 3};", "more initial values than elements"),
        (".global .u32 v[2] = 1;", "in braces"),
        (".global .u32 v = {1};", "no braces"),
        (".global .u32 v = 1.5;", "value of a .u32"),
        (".global .f32 v = 1;", "value of a .f32"),
        (".global .u32 v[];", "neither a length nor initial values"),
        (".global .u32 v = table;", "does not fit"),
        (".global .u64 v = table;", "not a variable of the module"),
    ],
)
def test_initial_values_that_are_wrong(declaration, message):
    with pytest.raises(ParseError, match=message):
        run(module(declaration, "st.global.u32 [%aty], 1;"), output())


# ---- faults of variables of the module


@pytest.mark.parametrize("offset", [16, -4])
def test_outside_a_variable(offset):
    text = module(TABLE, f"ld.global.u32 %r0, [table+{offset}];  // fault")
    fault = fails(OutOfBoundsError, text, output(), thread=0)
    assert f"byte {offset} of variable table, which has 16" in str(fault)


def test_write_to_a_constant():
    text = module(
        ".const .u32 v = 5;",
        "mov.u64 %d0, v;\n cvta.const.u64 %d1, %d0;\n st.u32 [%d1], 1;  // fault",
    )
    fails(ReadOnlyError, text, output())
    with pytest.raises(UnknownInstructionError):
        run(module(".const .u32 v = 5;", "st.const.u32 [v], 1;"), output())


@pytest.mark.parametrize("load", ["ld.global.u32 %r0, [%d0];", "ld.const.u32 %r0, [%d1];"])
def test_an_address_of_another_space(load):
    text = module(
        ".const .u32 v = 5;", f"mov.u64 %d0, v;\n cvta.const.u64 %d1, %d0;\n {load}  // fault"
    )
    fails(OutOfBoundsError, text, output())


def test_race_on_a_variable_of_the_module():
    text = module(".global .u32 v;", "st.global.u32 [v], %t;  // fault")
    fails(RaceError, text, output())


# ---- local memory

DEPOT = ".local .align 8 .b8 __local_depot0[16];\n.reg .b64 %SP, %SPL;"
STACK = "mov.u64 %SPL, __local_depot0;\n cvta.local.u64 %SP, %SPL;\n"


def test_each_thread_has_its_own_local_memory():
    text = kernel(
        STACK + "st.local.u32 [%SPL+4], %t;\n bar.sync 0;\n ld.u32 %r0, [%SP+4];\n"
        "add.u64 %d0, %SP, 4;\n cvta.to.local.u64 %d1, %d0;\n ld.local.u32 %r1, [%d1];\n"
        "ld.local.u32 %r2, [__local_depot0+4];\n"
        "add.u32 %r0, %r0, %r1;\n add.u32 %r0, %r0, %r2;\n st.global.u32 [%aty], %r0;",
        "y",
        DEPOT,
    )
    passes(text, output(), expected=3 * np.arange(32))


def test_generic_addresses_of_every_space_in_one_instruction():
    """A third of the threads each read global, shared and local memory."""
    text = kernel(
        STACK + "add.u32 %r1, %t, 100;\n st.local.u32 [%SPL], %r1;\n"
        "mov.u32 %r2, s;\n mad.lo.u32 %r2, %t, 4, %r2;\n add.u32 %r3, %t, 200;\n"
        "st.shared.u32 [%r2], %r3;\n cvt.u64.u32 %d1, %r2;\n cvta.shared.u64 %d1, %d1;\n"
        "rem.u32 %r4, %t, 3;\n setp.eq.u32 %p0, %r4, 0;\n setp.eq.u32 %p1, %r4, 1;\n"
        "selp.b64 %d2, %SP, %atx, %p0;\n selp.b64 %d2, %d1, %d2, %p1;\n"
        "ld.u32 %r0, [%d2];\n cvta.to.shared.u64 %d3, %d1;\n ld.shared.u32 %r5, [%d3];\n"
        "sub.u32 %r5, %r5, %r3;\n add.u32 %r0, %r0, %r5;\n st.global.u32 [%aty], %r0;",
        "x y",
        DEPOT + "\n.shared .u32 s[32];",
    )
    t = np.arange(32, dtype=np.uint32)
    expected = np.choose(t % 3, [100 + t, 200 + t, 300 + t])
    passes(text, Buffer(300 + t), output(), expected=expected)


@pytest.mark.parametrize(
    ("access", "error"),
    [
        ("ld.local.u32 %r0, [%SPL];", UninitializedError),
        ("ld.u32 %r0, [%SP+12];", UninitializedError),
        ("st.local.u32 [%SPL+16], %t;", OutOfBoundsError),
        ("st.local.u32 [%SPL+-4], %t;", OutOfBoundsError),
        ("st.u32 [%SP+16], %t;", OutOfBoundsError),
        ("st.local.u64 [%SPL+12], %offset;", MisalignedError),
        ("st.local.u64 [%SPL+16], %offset;", OutOfBoundsError),
        ("st.local.u32 [%SP], %t;", OutOfBoundsError),
        ("st.global.u32 [%SP], %t;", OutOfBoundsError),
        ("st.shared.u32 [%SPL], %t;", OutOfBoundsError),
    ],
)
def test_faults_of_local_memory(access: str, error: type[EmulatorError]):
    fails(error, kernel(f"{STACK}{access}  // fault", "y", DEPOT), output(), thread=0)


def test_local_addresses_without_local_memory():
    text = kernel("st.local.u32 [%offset], %t;  // fault", "y")
    fails(OutOfBoundsError, text, output(), thread=0)
