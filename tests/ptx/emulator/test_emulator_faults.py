"""Each fault that the emulator has to find: a kernel that has it, and one that has not."""

import numpy as np
import pytest
from support.hand_written import COUNTING, fails, kernel, line_of_fault, output, passes, run

from ptx.emulator import (
    Buffer,
    EmulatorError,
    InFlightError,
    MisalignedError,
    OutOfBoundsError,
    ReadOnlyError,
    StepLimitError,
    UndefinedResultError,
    UninitializedError,
    UnknownInstructionError,
    UnwrittenError,
)

# ---- bounds

COPY = """
ld.global.u32 %r0, [%atx];  // fault
st.global.u32 [%aty], %r0;
"""


def test_read_after_the_end_of_a_buffer():
    text = kernel(COPY)
    fault = fails(OutOfBoundsError, text, Buffer(COUNTING[:31]), output(), thread=31)
    assert "byte 124 of argument 0 (p_x), which has 124" in str(fault)
    passes(text, Buffer(COUNTING[:32]), output(), expected=COUNTING[:32])


def test_read_before_the_start_of_a_buffer():
    text = kernel("ld.global.u32 %r0, [%atx<>];  // fault\n st.global.u32 [%aty], %r0;")
    fault = fails(OutOfBoundsError, text.replace("<>", "+-4"), Buffer(COUNTING), output(), thread=0)
    assert "byte -4 of argument 0 (p_x)" in str(fault)
    passes(text.replace("<>", "+4"), Buffer(COUNTING), output(), expected=COUNTING[1:33])


def test_an_index_that_would_reach_the_next_buffer():
    text = kernel(
        "sub.u64 %d0, %y, %x;\n add.u64 %d0, %d0, %atx;\n ld.global.u32 %r0, [%d0+256];  // fault"
    )
    fails(OutOfBoundsError, text, Buffer(COUNTING), Buffer(COUNTING), thread=0)


def test_null_pointer():
    text = kernel("mov.u64 %d0, 0;\n ld.global.u32 %r0, [%d0];  // fault", "")
    assert "in no buffer" in str(fails(OutOfBoundsError, text, thread=0))


def test_vector_over_the_end():
    text = kernel(
        """
        ld.global.v2.u32 {%r0, %r1}, [%x+8];  // fault
        st.global.u32 [%aty], %r1;
        """
    )
    fails(OutOfBoundsError, text, Buffer(COUNTING[:3]), output())
    passes(text, Buffer(COUNTING[:4]), output(), expected=np.full(32, 3))


def test_write_after_the_end():
    text = kernel("st.global.u32 [%aty], %t;  // fault", "y")
    fails(OutOfBoundsError, text, output(16), thread=16)
    passes(text, output(32), expected=COUNTING[:32])


SHARED_TILE = """
    mul.lo.u32 %r0, %t, 4;
    mov.u32 %r1, a;
    add.u32 %r1, %r1, %r0;
    st.shared.u32 [%r1+<>], %t;  // fault
    ld.shared.u32 %r2, [%r1+<>];
    st.global.u32 [%aty], %r2;
"""


@pytest.mark.parametrize(("offset", "thread"), [(4, 31), (-4, 0), (128, 0), (1 << 20, 0)])
def test_shared_address_between_variables(offset, thread):
    shared = ".shared .b32 a[32];\n.shared .b32 b[32];"
    text = kernel(SHARED_TILE, "y", shared)
    wrong = text.replace("<>", str(offset))
    fails(OutOfBoundsError, wrong, output(), thread=thread)
    passes(text.replace("<>", "0"), output(), expected=COUNTING[:32])


def test_dynamic_shared_memory_is_as_large_as_asked_for():
    text = kernel(SHARED_TILE.replace("<>", "0"), "y", ".extern .shared .align 16 .b8 a[];")
    fails(OutOfBoundsError, text, output(), thread=31, dynamic_shared=124)
    passes(text, output(), expected=COUNTING[:32], dynamic_shared=128)


def test_more_bytes_of_a_parameter_than_it_has():
    text = kernel("ld.param.u64 %d0, [p_y<>];  // fault\n st.global.u32 [%aty], %t;", "y")
    fails(OutOfBoundsError, text.replace("<>", "+8"), output())
    passes(text.replace("<>", ""), output(), expected=COUNTING[:32])


# ---- alignment


@pytest.mark.parametrize(
    ("load", "crooked", "straight"),
    [
        ("ld.global.u32 %r0", 2, 4),
        ("ld.global.v2.u32 {%r0, %r1}", 4, 8),
        ("ld.global.v4.u32 {%r0, %r1, %r2, %r3}", 8, 16),
        ("ld.global.u64 %d0", 4, 8),
        ("ld.global.u16 %h0", 1, 2),
    ],
)
def test_misaligned_global_access(load, crooked, straight):
    text = kernel(f"{load}, [%x+<>];  // fault\n st.global.u32 [%aty], %t;")
    wrong, right = (text.replace("<>", str(n)) for n in (crooked, straight))
    fails(MisalignedError, wrong, Buffer(COUNTING), output(), thread=0)
    passes(right, Buffer(COUNTING), output(), expected=COUNTING[:32])


def test_misaligned_shared_access():
    body = """
        mov.u64 %d0, 7;
        @%p0 bra DONE;
        st.shared.u64 [a+<>], %d0;  // fault
        DONE:
        st.global.u32 [%aty], %t;
    """
    text = kernel("setp.ne.u32 %p0, %t, 3;" + body, "y", ".shared .align 8 .b8 a[32];")
    fails(MisalignedError, text.replace("<>", "12"), output(), thread=3)
    passes(text.replace("<>", "8"), output(), expected=COUNTING[:32])


def test_misaligned_asynchronous_copy():
    text = kernel(
        "cp.async.ca.shared.global [a], [%x+<>], 8;  // fault\n cp.async.wait_all;\n"
        "st.global.u32 [%aty], %t;",
        shared=".shared .align 16 .b8 a[16];",
    )
    fails(MisalignedError, text.replace("<>", "4"), Buffer(COUNTING), output(1), block=1)
    passes(text.replace("<>", "8"), Buffer(COUNTING), output(1), expected=[0], block=1)


# ---- what nothing has written


def test_register_that_is_never_written():
    text = kernel("<> add.u32 %r1, %r0, 1;  // fault\n st.global.u32 [%aty], %r1;", "y")
    fails(UninitializedError, text.replace("<>", ""), output(), thread=0, match="%r0")
    passes(text.replace("<>", "mov.u32 %r0, %t;"), output(), expected=COUNTING[1:33])


def test_register_that_only_some_ways_write():
    body = """
        setp.lt.u32 %p0, %t, <limit>;
        @!%p0 bra JOIN;
        mov.u32 %r0, 5;
        JOIN:
        st.global.u32 [%aty], %r0;  // fault
    """
    text = kernel(body, "y")
    fails(UninitializedError, text.replace("<limit>", "20"), output(), thread=20, match="%r0")
    passes(text.replace("<limit>", "32"), output(), expected=np.full(32, 5))


def test_register_that_a_predicated_instruction_writes():
    body = """
        setp.ne.u32 %p0, %t, <odd>;
        @%p0 mov.u32 %r0, 5;
        add.u32 %r0, %r0, 1;  // fault
        st.global.u32 [%aty], %r0;
    """
    text = kernel(body, "y")
    fails(UninitializedError, text.replace("<odd>", "9"), output(), thread=9)
    passes(text.replace("<odd>", "40"), output(), expected=np.full(32, 6))


def test_predicate_that_is_never_written():
    text = kernel("@%p0 bra DONE;  // fault\n st.global.u32 [%aty], %t;\n DONE:", "y")
    fails(UninitializedError, text, output(), thread=0, match="%p0")
    text = kernel("@%p0 mov.u32 %t, 3;  // fault\n st.global.u32 [%aty], %t;", "y")
    fails(UninitializedError, text, output(), thread=0, match="%p0")


def test_shared_memory_that_nothing_has_written():
    text = kernel(
        """
        mov.u32 %r0, 258;
        st.shared.<> [a], %r0;
        ld.shared.u32 %r1, [a];  // fault
        st.global.u32 [%y], %r1;
        """,
        "y",
        ".shared .b32 a[1];",
    )
    fails(UninitializedError, text.replace("<>", "u16"), output(1), block=1)
    passes(text.replace("<>", "u32"), output(1), expected=[258], block=1)


def test_global_memory_that_nothing_has_written():
    text = kernel(
        "<> ld.global.u32 %r0, [%aty];  // fault\n add.u32 %r0, %r0, 1;\n"
        "st.global.u32 [%aty], %r0;",
        "y",
    )
    fails(UninitializedError, text.replace("<>", ""), output(), thread=0)
    passes(text.replace("<>", "st.global.u32 [%aty], %t;"), output(), expected=COUNTING[1:33])


def test_atomic_on_memory_that_nothing_has_written():
    text = kernel("red.global.add.u32 [%y], 1;  // fault", "y")
    fails(UninitializedError, text, output(1))
    passes(text, Buffer(np.zeros(1, np.uint32)), expected=[32])


def test_output_that_is_not_written_completely():
    text = kernel(
        "setp.ne.u32 %p0, %t, <>;\n @%p0 st.global.u32 [%aty], %t;\n@!%p0 st.global.u16 [%aty], 9;",
        "y",
    )
    with pytest.raises(UnwrittenError, match=r"argument 0 \(p_y\): 2 of 128 .* element \(7,\)"):
        run(text.replace("<>", "7"), output())
    passes(text.replace("<>", "40"), output(), expected=COUNTING[:32])


# ---- asynchronous copies

ASYNC = """
    mul.lo.u32 %r0, %t, 16;
    mov.u32 %r1, a;
    add.u32 %r1, %r1, %r0;
    mul.wide.u32 %d0, %t, 16;
    add.u64 %d0, %d0, %x;
    cp.async.cg.shared.global [%r1], [%d0], 16;
    cp.async.commit_group;
    cp.async.cg.shared.global [%r1+512], [%d0], 16;
    <commit>
    cp.async.wait_group <pending>;
    ld.shared.u32 %r2, [%r1+<offset>];  // fault
    st.global.u32 [%aty], %r2;
"""
FOURS = Buffer(np.arange(128, dtype=np.uint32))


def _async(commit="cp.async.commit_group;", pending="0", offset="512") -> str:
    body = ASYNC.replace("<commit>", commit)
    body = body.replace("<pending>", pending).replace("<offset>", offset)
    return kernel(body, shared=".shared .align 16 .b8 a[1024];")


def test_read_of_a_copy_that_is_still_on_its_way():
    fails(InFlightError, _async(pending="1"), FOURS, output(), thread=0)
    passes(_async(pending="0"), FOURS, output(), expected=COUNTING[:32] * 4)
    passes(_async(pending="1", offset="0"), FOURS, output(), expected=COUNTING[:32] * 4)


def test_read_of_a_copy_whose_group_is_not_committed():
    fails(InFlightError, _async(commit=""), FOURS, output(), thread=0)
    passes(_async(commit="cp.async.wait_all;"), FOURS, output(), expected=COUNTING[:32] * 4)


@pytest.mark.parametrize(
    "overwrite",
    ["st.shared.u32 [%r1], %t;", "cp.async.cg.shared.global [%r1], [%d0], 16;"],
)
def test_write_over_a_copy_that_is_still_on_its_way(overwrite):
    wait, write = "cp.async.wait_all;", f"{overwrite}  // fault\n"
    start, end = _async().split("cp.async.commit_group;", 1)
    end = end.replace("// fault", "")
    fails(InFlightError, f"{start}{write}{end}", FOURS, output(), thread=0)
    passes(f"{start}{wait}{write}{end}", FOURS, output(), expected=COUNTING[:32] * 4)


def test_source_size_above_the_size_of_the_copy():
    text = kernel(
        """
        mov.u32 %r1, a;
        cp.async.ca.shared.global [%r1], [%x], 8, <size>;  // fault
        cp.async.wait_all;
        ld.shared.v2.u32 {%r2, %r3}, [%r1];
        st.global.v2.u32 [%y], {%r2, %r3};
        """,
        shared=".shared .align 16 .b8 a[16];",
    )
    source = Buffer(np.array([7, 8, 9], np.uint32))
    wrong, right = text.replace("<size>", "12"), text.replace("<size>", "4")
    fails(OutOfBoundsError, wrong, source, output(2), block=1)
    passes(right, source, output(2), expected=[7, 0], block=1)


# ---- the rest


@pytest.mark.parametrize("write", ["st.global.u32 [%aty], %t;", "red.global.add.u32 [%y], 1;"])
def test_write_to_a_read_only_buffer(write):
    text = kernel(f"{write}  // fault", "y")
    fails(ReadOnlyError, text, Buffer(COUNTING, writable=False), thread=0)
    run(text, Buffer(COUNTING))


def test_division_of_an_integer_by_zero():
    text = kernel(
        """
        mov.u32 %r0, 60;
        sub.u32 %r2, <>, %t;
        div.u32 %r1, %r0, %r2;  // fault
        st.global.u32 [%aty], %r1;
        """,
        "y",
    )
    fails(UndefinedResultError, text.replace("<>", "31"), output(), thread=31)
    expected = 60 // (32 - COUNTING[:32])
    passes(text.replace("<>", "32"), output(), expected=expected)


def test_shuffle_from_a_lane_outside_the_membermask():
    body = """
        setp.ge.u32 %p0, %t, 16;
        @%p0 bra DONE;
        shfl.sync.bfly.b32 %t, %t, <>, 31, 0xffff;  // fault
        DONE:
        st.global.u32 [%aty], %t;
    """
    text = kernel(body, "y")
    fails(UndefinedResultError, text.replace("<>", "16"), output(), thread=0)
    expected = np.where(COUNTING[:32] < 16, COUNTING[:32] ^ 1, COUNTING[:32])
    passes(text.replace("<>", "1"), output(), expected=expected)


def test_endless_loop():
    text = kernel("LOOP:\nadd.u32 %t, %t, 1;  // fault\nsetp.ne.u32 %p0, %t, 99;\n<> bra LOOP;", "")
    fails(StepLimitError, text.replace("<>", ""), step_limit=500)
    run(text.replace("<>", "@%p0"), step_limit=500)


def test_trap():
    text = kernel("setp.eq.u32 %p0, %t, <>;\n @%p0 trap;  // fault", "")
    fails(EmulatorError, text.replace("<>", "4"), thread=4, match="trap")
    run(text.replace("<>", "40"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wgmma.fence.sync.aligned;", "unknown instruction wgmma"),
        ("add.u32.strange %r0, %t, 1;", "strange"),
        ("add.rn.u32 %r0, %t, 1;", "modifier .rn"),
        ("add.f32 %r0, %f0, 1;", "operand 1 as .f32"),
        ("add.f16 %h0, %h1, 0x3c00;", "operand 15360 as .f16"),
        ("add.u64 %d0, %d0, %t;", "register %t is .b32, where .u64 is expected"),
        ("add.u32 %r0, %t;", "2 operands"),
        ("add.u32 %r0, %t, 1, 2;", "operand 4"),
        ("add.u32 %r0, %t, nothing;", "nothing is neither a register nor a variable"),
        ("cvt.f16.f32 %h0, %f0;", "rounding"),
        ("bra 5;", "label"),
        ("bra NOWHERE;", "label"),
        ("ld.global.v4.u32 {%r0, %r1}, [%d0];", "2 registers where 4 are expected"),
        ("mov.u32 %r0, %clock;", "clock"),
        ("cp.async.cg.shared.global [%r0], [%d0], 8;", "8 bytes"),
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f0}, {%r0}, {%r0}, {%f0};",
            "m16n8k8",
        ),
        ("setp.lt.and.s32 %p0, %t, 1;", "3 operands"),
        ("atom.global.add.noftz.f32 %f0, [%d0], %f1;", "type .f32"),
    ],
)
def test_unknown_instructions_and_forms(line, message):
    text = kernel(f"{line}  // fault", "")
    with pytest.raises(UnknownInstructionError, match=message.replace(".", r"\.")) as info:
        run(text)
    assert info.value.line == line_of_fault(text)
    assert info.value.kernel == "test"
