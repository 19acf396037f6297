"""Races and divergence: kernels that have one, and beside each one that has not."""

import numpy as np
import pytest
from support.hand_written import COUNTING, fails, kernel, output, passes, races, run

from ptx.emulator import Buffer, DivergenceError, RaceError, UninitializedError

# ---- races in shared memory

EXCHANGE = """
    mul.lo.u32 %r0, %t, 4;
    mov.u32 %r1, a;
    add.u32 %r1, %r1, %r0;
    sub.u32 %r2, 63, %t;
    mul.lo.u32 %r2, %r2, 4;
    mov.u32 %r3, a;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r1], %t;
    <first>
    ld.shared.u32 %r4, [%r3];
    <second>
    st.shared.u32 [%r1], %r4;
    ld.shared.u32 %r5, [%r1];
    st.global.u32 [%aty], %r5;
"""


def _exchange(first: str, second: str) -> str:
    body = EXCHANGE.replace("<first>", first).replace("<second>", second)
    return kernel(body, "y", ".shared .b32 a[64];")


def test_read_after_write_of_another_warp():
    text = _exchange("", "bar.sync 0;").replace("[%r3];", "[%r3];  // fault")
    races(text, output(64), block=64, match="read after write by thread")
    passes(_exchange("bar.sync 0;", "bar.sync 0;"), output(64), expected=COUNTING[::-1], block=64)


def test_write_after_read_of_another_warp():
    text = _exchange("bar.sync 0;", "").replace("[%r1], %r4;", "[%r1], %r4;  // fault")
    races(text, output(64), block=64, match="write after read by thread")


def test_write_after_write_of_another_warp_even_of_the_same_value():
    text = kernel(
        """
        mov.u32 %r0, 5;
        setp.eq.u32 %p0, %t, 0;
        <guard> st.shared.u32 [a], %r0;  // fault
        bar.sync 0;
        ld.shared.u32 %r1, [a];
        st.global.u32 [%aty], %r1;
        """,
        "y",
        ".shared .b32 a[1];",
    )
    fails(RaceError, text.replace("<guard>", ""), output(64), block=64)
    passes(text.replace("<guard>", "@%p0"), output(64), expected=np.full(64, 5), block=64)


def test_threads_of_one_warp_need_a_warp_barrier():
    text = kernel(
        """
        xor.b32 %r0, %t, 1;
        mov.u32 %r1, a;
        mad.lo.u32 %r2, %t, 4, %r1;
        mad.lo.u32 %r3, %r0, 4, %r1;
        st.shared.u32 [%r2], %t;
        <barrier>
        ld.shared.u32 %r4, [%r3];  // fault
        st.global.u32 [%aty], %r4;
        """,
        "y",
        ".shared .b32 a[32];",
    )
    fails(RaceError, text.replace("<barrier>", ""), output(), thread=0)
    right = text.replace("<barrier>", "bar.warp.sync 0xffffffff;")
    passes(right, output(), expected=COUNTING[:32] ^ 1)


def test_copies_of_other_threads_need_a_barrier_after_the_wait():
    text = kernel(
        """
        mov.u32 %r1, a;
        mad.lo.u32 %r2, %t, 4, %r1;
        xor.b32 %r0, %t, 32;
        mad.lo.u32 %r3, %r0, 4, %r1;
        cp.async.ca.shared.global [%r2], [%atx], 4;
        cp.async.wait_all;
        <barrier>
        ld.shared.u32 %r4, [%r3];  // fault
        st.global.u32 [%aty], %r4;
        """,
        shared=".shared .b32 a[64];",
    )
    source = Buffer(COUNTING)
    races(text.replace("<barrier>", ""), source, output(64), block=64, match="read after write")
    right = text.replace("<barrier>", "bar.sync 0;")
    passes(right, source, output(64), expected=COUNTING ^ 32, block=64)


def test_copy_into_what_other_warps_still_read():
    text = kernel(
        """
        mov.u32 %r1, a;
        mad.lo.u32 %r2, %t, 4, %r1;
        xor.b32 %r0, %t, 32;
        mad.lo.u32 %r3, %r0, 4, %r1;
        st.shared.u32 [%r2], %t;
        bar.sync 0;
        ld.shared.u32 %r4, [%r3];
        <barrier>
        cp.async.ca.shared.global [%r2], [%atx], 4;  // fault
        cp.async.wait_all;
        ld.shared.u32 %r5, [%r2];
        add.u32 %r4, %r4, %r5;
        st.global.u32 [%aty], %r4;
        """,
        shared=".shared .b32 a[64];",
    )
    source = Buffer(COUNTING)
    wrong = text.replace("<barrier>", "")
    races(wrong, source, output(64), block=64, match="asynchronous copy after read")
    right = text.replace("<barrier>", "bar.sync 0;")
    passes(right, source, output(64), expected=(COUNTING ^ 32) + COUNTING, block=64)


ACCUMULATE = """
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra ADD;
    st.shared.u32 [a], 0;
    ADD:
    bar.sync 0;
    red.shared.add.u32 [a], %t;
    <barrier>
    ld.shared.u32 %r0, [a];  // fault
    st.global.u32 [%aty], %r0;
"""


def test_read_of_an_atomic_sum_needs_a_barrier():
    text = kernel(ACCUMULATE, "y", ".shared .b32 a[1];")
    wrong = text.replace("<barrier>", "")
    fails(RaceError, wrong, output(64), block=64, match="read after atomic operation")
    right = text.replace("<barrier>", "bar.sync 0;")
    passes(right, output(64), expected=np.full(64, 2016), block=64)


def test_atomics_after_a_plain_write_need_a_barrier():
    text = kernel(ACCUMULATE.replace("<barrier>", "bar.sync 0;"), "y", ".shared .b32 a[1];")
    wrong = text.replace("ADD:\n  bar.sync 0;", "ADD:")
    assert wrong != text
    with pytest.raises((RaceError, UninitializedError)):
        run(wrong, output(64), block=64)


NAMED = """
    mov.u32 %r1, a;
    mad.lo.u32 %r2, %t, 4, %r1;
    xor.b32 %r0, %t, 32;
    mad.lo.u32 %r3, %r0, 4, %r1;
    shr.u32 %r4, %t, <shift>;
    add.u32 %r4, %r4, 1;
    st.shared.u32 [%r2], %t;
    bar.sync %r4, 64;
    ld.shared.u32 %r5, [%r3];  // fault
    st.global.u32 [%aty], %r5;
"""


def test_barriers_of_some_warps_order_only_these():
    text = kernel(NAMED, "y", ".shared .b32 a[128];")
    numbers = np.arange(128, dtype=np.uint32)
    right = text.replace("<shift>", "6")  # warps 0 and 1 at barrier 1, warps 2 and 3 at 2
    passes(right, output(128), expected=numbers ^ 32, block=128)
    wrong = right.replace("%t, 32;", "%t, 64;")  # and then reads from the other two
    races(wrong, output(128), block=128, match="read after write")


# ---- races in global memory


@pytest.mark.parametrize(("grid", "block"), [(1, 64), (1, 32), (2, 32), (300, 32)])
def test_two_threads_write_one_place_even_the_same_value(grid, block):
    text = kernel(
        """
        setp.eq.u32 %p0, %i, <thread>;
        <guard> st.global.u32 [%y], 7;  // fault
        """,
        "y",
    )
    wrong = text.replace("<guard>", "").replace("<thread>", "0")
    fails(RaceError, wrong, output(1), grid=grid, block=block, match="write after write")
    right = text.replace("<guard>", "@%p0").replace("<thread>", "20")
    passes(right, output(1), grid=grid, block=block, expected=[7])


def test_writes_of_one_block_are_ordered_by_its_barrier():
    text = kernel(
        """
        setp.eq.u32 %p0, %t, 0;
        setp.eq.u32 %p1, %t, 40;
        @%p0 st.global.u32 [%y], 1;
        <barrier>
        @%p1 st.global.u32 [%y], 2;  // fault
        """,
        "y",
    )
    fault = races(
        text.replace("<barrier>", ""), output(1), block=64, match="by thread 0 of block 0"
    )
    assert fault.thread == (40, 0, 0)
    passes(text.replace("<barrier>", "bar.sync 0;"), output(1), block=64, expected=[2])


def test_read_of_what_another_block_has_written():
    text = kernel(
        """
        st.global.u32 [%aty], %i;
        xor.b32 %r0, %i, <other>;
        mul.wide.u32 %d0, %r0, 4;
        add.u64 %d0, %d0, %y;
        ld.global.u32 %r1, [%d0];  // fault
        st.global.u32 [%atz], %r1;
        """,
        "y z",
    )
    wrong = text.replace("<other>", "32")
    races(wrong, Buffer(COUNTING), output(64), grid=2, match="read after write")
    right = text.replace("<other>", "0")
    passes(right, Buffer(COUNTING), output(64), expected=COUNTING, grid=2)


def test_write_over_what_another_block_reads():
    text = kernel(
        """
        ld.global.u32 %r0, [<>];
        st.global.u32 [%aty], %r0;
        """,
        "y",
    )
    wrong, right = text.replace("<>", "%y"), text.replace("<>", "%aty")
    with pytest.raises(RaceError, match=r"write after (read|write)"):
        run(wrong, Buffer(COUNTING), grid=2)
    passes(right, Buffer(COUNTING), expected=COUNTING, grid=2)


def test_plain_write_beside_atomics():
    text = kernel("red.global.add.u32 [%y], 1;\n <>", "y")
    wrong = text.replace("<>", "setp.eq.u32 %p0, %i, 3;\n @%p0 st.global.u32 [%y], 3;  // fault")
    fails(RaceError, wrong, Buffer(np.zeros(1, np.uint32)), grid=2)
    passes(text.replace("<>", ""), Buffer(np.zeros(1, np.uint32)), expected=[64], grid=2)


def test_constant_load_of_memory_that_the_kernel_writes():
    text = kernel(
        """
        st.global.u32 [%aty], %t;
        ld.global<nc>.u32 %r0, [%aty];  // fault
        st.global.u32 [%atz], %r0;
        """,
        "y z",
    )
    fails(RaceError, text.replace("<nc>", ".nc"), output(), output(), thread=0)
    passes(text.replace("<nc>", ""), output(), output(), expected=COUNTING[:32])


# ---- divergence


def test_barrier_after_some_threads_have_exited():
    text = kernel(
        "setp.ge.u32 %p0, %t, <limit>;\n@%p0 ret;\n"
        "bar.sync 0;  // fault\nst.global.u32 [%aty], %t;",
        "y",
    )
    one_warp, part = text.replace("<limit>", "32"), text.replace("<limit>", "40")
    fault = fails(DivergenceError, one_warp, output(64), block=64)
    assert "32 of 64 threads wait at barrier 0; 32 have exited" in str(fault)
    fails(DivergenceError, part, output(64), block=64)
    passes(text.replace("<limit>", "64"), output(64), block=64, expected=COUNTING)


def test_barrier_that_half_of_a_warp_reaches():
    text = kernel(
        """
        setp.ge.u32 %p0, %t, <limit>;
        @%p0 bra SKIP;
        bar.sync 0;  // fault
        SKIP:
        bar.sync 0;
        st.global.u32 [%aty], %t;
        """,
        "y",
    )
    fails(DivergenceError, text.replace("<limit>", "16"), output(64), block=64, thread=0)
    passes(text.replace("<limit>", "64"), output(64), block=64, expected=COUNTING)


def test_warps_that_wait_at_different_barriers():
    text = kernel(
        """
        setp.ge.u32 %p0, %t, 32;
        @%p0 bra OTHER;
        bar.sync <barrier>;  // fault
        bra DONE;
        OTHER:
        bar.sync 1;
        DONE:
        st.global.u32 [%aty], %t;
        """,
        "y",
    )
    wrong = text.replace("<barrier>", "2")
    fault = fails(DivergenceError, wrong, output(64), block=64)
    assert "32 wait at another barrier" in str(fault)
    # The barrier is its number, not its place: this is allowed, and works on GPUs.
    passes(text.replace("<barrier>", "1"), output(64), block=64, expected=COUNTING)


def test_barrier_that_counts_more_threads_than_come():
    text = kernel("bar.sync 3, <>;  // fault\n st.global.u32 [%aty], %t;", "y")
    fails(DivergenceError, text.replace("<>", "96"), output(64), block=64)
    passes(text.replace("<>", "64"), output(64), block=64, expected=COUNTING)


def test_barrier_number_and_count_are_checked():
    text = kernel("mov.u32 %r0, <number>;\nmov.u32 %r1, <count>;\nbar.sync %r0, %r1;  // fault", "")

    def barrier(number: int, count: int) -> str:
        return text.replace("<number>", str(number)).replace("<count>", str(count))

    fails(DivergenceError, barrier(16, 32), match="from 0 to 15")
    fails(DivergenceError, barrier(15, 48), match="multiples of 32")
    run(barrier(15, 32))


COLLECTIVES = {
    "shfl": "shfl.sync.idx.b32 %r1, %t, 0, 31, 0xffffffff;",
    "vote": "vote.sync.ballot.b32 %r1, %p1, 0xffffffff;",
    "bar": "bar.warp.sync 0xffffffff;",
    "match": "match.any.sync.b32 %r1, %t, 0xffffffff;",
    "redux": "redux.sync.add.u32 %r1, %t, 0xffffffff;",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
    "mma": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{%f0,%f1,%f2,%f3}, {%r3,%r3,%r3,%r3}, {%r3,%r3}, {%f0,%f1,%f2,%f3};",
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective_that_part_of_a_warp_reaches(name):
    text = kernel(
        f"""
        setp.lt.u32 %p1, %t, 7;
        mov.u32 %r2, a;
        mad.lo.u32 %r2, %t, 16, %r2;
        mov.u32 %r3, 0;
        mov.b32 {{%h0, %h1}}, %r3;
        st.shared.v4.u32 [%r2], {{%r3, %r3, %r3, %r3}};
        mov.f32 %f0, 0f00000000;
        mov.f32 %f1, %f0;
        mov.f32 %f2, %f0;
        mov.f32 %f3, %f0;
        bar.warp.sync -1;
        setp.ge.u32 %p0, %t, <>;
        @%p0 bra SKIP;
        {COLLECTIVES[name]}  // fault
        SKIP:
        st.global.u32 [%aty], %t;
        """,
        "y",
        ".shared .align 16 .b8 a[512];",
    )
    fails(DivergenceError, text.replace("<>", "31"), output(), thread=0, match=name)
    passes(text.replace("<>", "32"), output(), expected=COUNTING[:32])


def test_matrix_instruction_in_a_block_without_whole_warps():
    text = kernel(f"mov.u32 %r2, 1024; {COLLECTIVES['ldmatrix']}  // fault", "")
    fails(DivergenceError, text, block=16)


def test_membermask_with_lanes_that_have_exited():
    text = kernel(
        """
        setp.eq.u32 %p0, %t, 9;
        @%p0 st.global.u32 [%aty], 100;
        @%p0 ret;
        vote.sync.ballot.b32 %r0, %p0, <mask>;  // fault
        st.global.u32 [%aty], %t;
        """,
        "y",
    )
    fails(DivergenceError, text.replace("<mask>", "-1"), output(), thread=0)
    expected = COUNTING[:32].copy()
    expected[9] = 100
    passes(text.replace("<mask>", "0xfffffdff"), output(), expected=expected)


def test_thread_that_is_not_in_its_membermask():
    text = kernel("bar.warp.sync 0x7fffffff;  // fault", "")
    fails(DivergenceError, text, thread=31, match="own membermask")
