"""Device functions: their arguments, results and variables."""

import numpy as np
import pytest
from support.hand_written import COUNTING, kernel, output, passes, run

from ptx.emulator import (
    Buffer,
    EmulatorError,
    OutOfBoundsError,
    ParseError,
    UninitializedError,
    UnknownInstructionError,
)

SCALE = """
.func  (.param .b32 func_retval0) scale(
        .param .b32 scale_param_0,
        .param .align 8 .b8 scale_param_1[16]
)
{
        .reg .b32 %r<5>;
        ld.param.b32 %r1, [scale_param_0];
        ld.param.v2.b32 {%r2, %r3}, [scale_param_1+8];
        mad.lo.s32 %r4, %r1, %r2, %r3;
        st.param.b32 [func_retval0], %r4;
        ret;
}
"""
# As compilers write it: the names are those of every other call too.
CALL_SCALE = """
{ // callseq 0, 0
.param .b32 param0;
st.param.b32 [param0], %r0;
.param .align 8 .b8 param1[16];
st.param.v2.b32 [param1+8], {%r1, %r2};
.param .b32 retval0;
call.uni (retval0),
scale,
(
param0,
param1
);
ld.param.b32 %r0, [retval0];
} // callseq 0
"""
# Doubles what is below 100, by another function, in a loop with an early way out.
GROW = """
.func (.param .b32 func_retval0) twice(.param .b32 twice_param_0);
.func (.param .b32 func_retval0) grow(.param .b32 grow_param_0)
{
        .reg .b32 %r<4>;
        .reg .pred %p<2>;
        ld.param.b32 %r1, [grow_param_0];
$L_loop:
        setp.ge.u32 %p1, %r1, 100;
        @%p1 bra $L_end;
        {
        .param .b32 param0;
        st.param.b32 [param0], %r1;
        .param .b32 retval0;
        call (retval0), twice, (param0);
        ld.param.b32 %r1, [retval0];
        }
        bra.uni $L_loop;
$L_end:
        st.param.b32 [func_retval0], %r1;
        ret;
}
.func (.param .b32 func_retval0) twice(.param .b32 twice_param_0)
{
        .local .align 8 .b8 __local_depot1[8];
        .reg .b32 %r<4>;
        .reg .b64 %SPL;
        .reg .pred %p<2>;
        mov.u64 %SPL, __local_depot1;
        ld.param.b32 %r1, [twice_param_0];
        add.u32 %r2, %r1, %r1;
        st.local.b32 [%SPL+4], %r2;
        ld.local.b32 %r3, [%SPL+4];
        setp.ne.u32 %p1, %r1, 0;
        st.param.b32 [func_retval0], %r3;
        @%p1 ret;
        mov.u32 %r3, 1;
        st.param.b32 [func_retval0], %r3;
        ret;
}
"""
CALL_GROW = """
{
.param .b32 param0;
st.param.b32 [param0], %r0;
.param .b32 retval0;
call.uni (retval0), grow, (param0);
ld.param.b32 %r0, [retval0];
}
"""


def module(functions: str, body: str, **kw) -> str:
    return kernel(body, "y", **kw).replace(".visible .entry", f"{functions}\n.visible .entry")


def grown(number: int) -> int:
    while number < 100:
        number = 2 * number or 1
    return number


STORE = "st.global.u32 [%aty], %r0;"
PREPARE = "mov.u32 %r0, %t;\n mov.u32 %r1, 3;\n mov.u32 %r2, 5;\n"


def test_arguments_and_results():
    text = module(SCALE, f"{PREPARE}{CALL_SCALE}{STORE}")
    passes(text, output(), expected=3 * np.arange(32) + 5)


def test_a_function_called_twice():
    text = module(SCALE, f"{PREPARE}{CALL_SCALE}{CALL_SCALE}{STORE}")
    passes(text, output(), expected=9 * np.arange(32) + 20)


def test_a_function_that_loops_and_calls_another():
    text = module(GROW, f"mov.u32 %r0, %t;\n{CALL_GROW}{STORE}")
    passes(text, output(), expected=[grown(t) for t in range(32)])


def test_a_function_that_is_defined_after_the_kernel():
    text = kernel(f"mov.u32 %r0, %t;\n{CALL_GROW}{STORE}", "y") + GROW
    passes(text, output(), expected=[grown(t) for t in range(32)])


def test_threads_that_do_not_call():
    """A branch around the call, then a call with a predicate."""
    around = f"setp.lt.u32 %p0, %t, 7;\n mov.u32 %r0, %t;\n@%p0 bra OVER;\n{CALL_GROW}\nOVER:\n"
    expected = [t if t < 7 else grown(t) for t in range(32)]
    passes(module(GROW, around + STORE), output(), expected=expected)
    guarded = """
    setp.lt.u32 %p0, %t, 7;
    mov.u32 %r0, %t;
    .param .b32 a;
    .param .b32 b;
    st.param.b32 [a], %r0;
    st.param.b32 [b], %r0;
    @!%p0 call (b), grow, (a);
    @!%p0 ld.param.b32 %r0, [b];
    """
    passes(module(GROW, guarded + STORE), output(), expected=expected)


def test_a_function_reaches_shared_and_module_variables():
    function = """
    .shared .align 4 .u32 board[32];
    .global .u32 offset = 7;
    .func swap()
    {
        .shared .align 4 .u32 mine[32];
        .reg .b32 %r<6>;
        mov.u32 %r0, %tid.x;
        ld.global.u32 %r1, [offset];
        mov.u32 %r2, board;
        mad.lo.u32 %r2, %r0, 4, %r2;
        ld.shared.u32 %r3, [%r2];
        add.u32 %r3, %r3, %r1;
        mov.u32 %r4, mine;
        mad.lo.u32 %r4, %r0, 4, %r4;
        st.shared.u32 [%r4], %r3;
        ld.shared.u32 %r5, [%r4];
        st.shared.u32 [%r2], %r5;
    }
    """
    body = (
        "mov.u32 %r1, board;\n mad.lo.u32 %r1, %t, 4, %r1;\n st.shared.u32 [%r1], %t;\n"
        "call swap;\n call.uni swap, ();\n ld.shared.u32 %r0, [%r1];\n"
    )
    passes(module(function, body + STORE), output(), expected=np.arange(32) + 14)


def test_an_exit_within_a_function_ends_the_thread():
    function = (
        ".func leave() {\n .reg .pred %p<2>;\n .reg .b32 %r<2>;\n mov.u32 %r1, %tid.x;\n"
        "setp.gt.u32 %p1, %r1, 9;\n @%p1 exit;\n ret;\n}"
    )
    text = module(function, f"mov.u32 %r0, 1;\n call.uni leave;\n{STORE}")
    passes(text, Buffer(np.zeros(32, np.uint32)), expected=[1] * 10 + [0] * 22)


def test_lines_within_a_function_count():
    text = module(SCALE, f"{PREPARE}{CALL_SCALE}{CALL_SCALE}{STORE}")
    report = run(text, output())
    (line,) = (i for i, t in enumerate(text.splitlines(), 1) if "mad.lo.s32" in t)
    assert report.executed[line] == 64


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(retval0),", "", "1 .param variables are expected"),
        (" scale,", " scaled,", "function scaled has no body"),
        (" scale,", " %d0,", "only calls by name"),
        ("param0,\n  param1", "param0", "2 .param variables are expected"),
        ("param0,\n  param1", "%r0,\n  param1", "have to be .param variables"),
        ("param0,\n  param1", "param1,\n  param1", "has not the size"),
        (".param .b32 scale_param_0", ".reg .b32 %scale_param_0", "'.param' is expected"),
    ],
)
def test_calls_that_are_not_understood(old, new, message):
    text = module(SCALE, f"{PREPARE}{CALL_SCALE}{STORE}")
    assert old in text
    with pytest.raises(ParseError, match=message):
        run(text.replace(old, new, 1), output())


def test_recursion():
    text = module(GROW.replace("call (retval0), twice", "call (retval0), grow"), CALL_GROW + STORE)
    with pytest.raises(ParseError, match="grow calls itself") as info:
        run(text, output())
    assert "call (retval0), grow" in info.value.text


def test_a_result_that_nothing_has_written():
    """In the second round of the loop too, where the first has written it."""
    text = GROW.replace("st.param.b32 [func_retval0], %r3;", "", 1)
    with pytest.raises(UninitializedError, match="nothing has written") as info:
        run(module(text, f"mov.u32 %r0, 0;\n{CALL_GROW}{STORE}"), output())
    assert info.value.text == "ld.param.b32 %r1, [retval0]"


def test_a_local_variable_holds_nothing_when_a_function_starts_again():
    text = GROW.replace("st.local.b32 [%SPL+4], %r2;\n", "@%p1 st.local.b32 [%SPL+4], %r2;\n")
    text = text.replace(
        "add.u32 %r2, %r1, %r1;", "setp.lt.u32 %p1, %r1, 50;\nadd.u32 %r2, %r1, %r1;"
    )
    with pytest.raises(UninitializedError, match="__local_depot1") as info:
        run(module(text, f"mov.u32 %r0, 30;\n{CALL_GROW}{STORE}"), output())
    assert info.value.text == "ld.local.b32 %r3, [%SPL+4]"


ASSERTION = """
.extern .func __assertfail (.param .b64 __assertfail_param_0) .noreturn;
"""
ASSERT = """
setp.lt.u32 %p0, %t, 40;
@%p0 bra FINE;
{
.param .b64 param0;
st.param.b64 [param0], 0;
call.uni __assertfail, (param0);
}
FINE:
st.global.u32 [%aty], %t;
"""


def test_an_assertion():
    text = module(ASSERTION, ASSERT)
    passes(text, output(), expected=np.arange(32))
    with pytest.raises(EmulatorError, match="trap") as info:
        run(text.replace("%t, 40", "%t, 30"), output())
    assert (info.value.text, info.value.thread) == ("call.uni __assertfail, (param0)", (30, 0, 0))


CHOOSE = """
.func (.param .b32 func_retval0) choose(.param .b32 choose_param_0)
{
        .reg .b32 %r<4>;
        ld.param.b32 %r1, [choose_param_0];
        mov.b32 %r2, 7;
$L_table: .branchtargets
                $L_seven,
                $L_add,
                $L_seven,
                $L_ten;
        brx.idx %r1, $L_table;
$L_ten:
        mov.b32 %r2, 9;
$L_add:
        add.u32 %r2, %r2, 1;
$L_seven:
        st.param.b32 [func_retval0], %r2;
        ret;
}
"""


def test_a_branch_to_one_of_several_labels():
    call = CALL_GROW.replace("grow", "choose")
    text = module(CHOOSE, f"and.b32 %r0, %t, 3;\n{call}{STORE}")
    passes(text, output(), expected=[7, 8, 7, 10] * 8)
    with pytest.raises(EmulatorError, match="trap") as info:
        run(text.replace("%t, 3;", "%t, 7;"), output())
    assert (info.value.text, info.value.thread) == ("brx.idx %r1, $L_table", (4, 0, 0))
    with pytest.raises(ParseError, match="branchtargets"):
        run(text.replace("brx.idx %r1, $L_table", "brx.idx %r1, $L_ten"), output())


def test_bytes_beyond_an_argument():
    text = module(SCALE, f"{PREPARE}{CALL_SCALE}{STORE}")
    with pytest.raises(OutOfBoundsError):
        run(text.replace("[scale_param_1+8]", "[scale_param_1+16]"), output())
    with pytest.raises(UninitializedError):
        run(text.replace("[scale_param_1+8]", "[scale_param_1]"), output())


def test_parameters_of_the_kernel_are_not_those_of_a_function():
    text = module(SCALE, f"{PREPARE}{CALL_SCALE}{STORE}")
    with pytest.raises(UnknownInstructionError, match="not a parameter of the kernel"):
        run(text.replace("[scale_param_0];", "[other];"), Buffer(COUNTING))
