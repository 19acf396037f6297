"""The emulator runs kernels as a GPU does: control flow, memory, warps."""

import numpy as np
import pytest
from support.hand_written import COUNTING, kernel, output, result, run

from ptx.emulator import Buffer, DivergenceError, RaceError, UninitializedError

THREADS = COUNTING[:32]

# ---- control flow

JOIN = """
    setp.lt.u32 %p0, %t, 10;
    @%p0 bra LOW;
    mul.lo.u32 %r0, %t, 3;
    bra.uni JOIN;
    LOW:
    add.u32 %r0, %t, 100;
    JOIN:
    activemask.b32 %r1;
    st.global.u32 [%atx], %r0;
    st.global.u32 [%aty], %r1;
"""


def test_lanes_run_together_again_where_branches_meet():
    values, masks = output(), output()
    run(kernel(JOIN), values, masks)
    expected = np.where(THREADS < 10, THREADS + 100, THREADS * 3)
    np.testing.assert_array_equal(values.array, expected)
    np.testing.assert_array_equal(masks.array, 0xFFFFFFFF)


def test_nested_loops_of_different_lengths():
    text = kernel(
        """
        mov.u32 %r0, 0;
        mov.u32 %r1, 0;
        OUTER:
        setp.ge.u32 %p0, %r1, %t;
        @%p0 bra END;
        mov.u32 %r2, 0;
        INNER:
        add.u32 %r0, %r0, %r2;
        add.u32 %r2, %r2, 1;
        setp.le.u32 %p1, %r2, %r1;
        @%p1 bra INNER;
        add.u32 %r1, %r1, 1;
        bra OUTER;
        END:
        st.global.u32 [%aty], %r0;
        """,
        "y",
    )
    expected = [sum(j for i in range(t) for j in range(i + 1)) for t in range(32)]
    np.testing.assert_array_equal(result(text, output()), expected)


def test_lanes_of_a_loop_with_two_ways_back_start_the_next_round_together():
    text = kernel(
        """
        mov.u32 %r0, 0;
        mov.u32 %r1, 0xffffffff;
        LOOP:
        activemask.b32 %r2;
        and.b32 %r1, %r1, %r2;
        add.u32 %r0, %r0, 1;
        setp.ge.u32 %p0, %r0, 4;
        @%p0 bra END;
        and.b32 %r3, %t, 1;
        setp.eq.u32 %p1, %r3, 0;
        @%p1 bra LOOP;
        shfl.sync.bfly.b32 %r4, %r0, 2, 31, 0xaaaaaaaa;
        bra LOOP;
        END:
        st.global.u32 [%aty], %r1;
        """,
        "y",
    )
    np.testing.assert_array_equal(result(text, output()), 0xFFFFFFFF)


def test_exit_of_some_threads_and_predicated_stores():
    text = kernel(
        """
        setp.gt.u32 %p0, %t, 20;
        @%p0 st.global.u32 [%aty], 7;
        @%p0 exit;
        and.b32 %r0, %t, 1;
        setp.eq.u32 %p1, %r0, 1;
        @!%p1 st.global.u32 [%aty], %t;
        @%p1 st.global.u32 [%aty], 1;
        """,
        "y",
    )
    expected = np.where(THREADS > 20, 7, np.where(THREADS % 2 == 1, 1, THREADS))
    np.testing.assert_array_equal(result(text, output()), expected)


REDUCTION = """
    mov.u32 %r0, a;
    mad.lo.u32 %r1, %t, 4, %r0;
    ld.global.u32 %r2, [%atx];
    st.shared.u32 [%r1], %r2;
    mov.u32 %r3, 64;
    LOOP:
    bar.sync 0;  // fault
    setp.ge.u32 %p0, %t, %r3;
    @%p0 bra SKIP;
    mad.lo.u32 %r4, %r3, 4, %r1;
    ld.shared.u32 %r5, [%r4];
    ld.shared.u32 %r6, [%r1];
    add.u32 %r6, %r6, %r5;
    st.shared.u32 [%r1], %r6;
    SKIP:
    shr.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra LOOP;
    setp.eq.u32 %p2, %t, 0;
    @%p2 ld.shared.u32 %r7, [a];
    mov.u32 %r8, %ctaid.x;
    mul.wide.u32 %d0, %r8, 4;
    add.u64 %d0, %d0, %y;
    @%p2 st.global.u32 [%d0], %r7;
"""
VALUES = Buffer(np.random.default_rng(0).integers(0, 2**32, 3 * 128, dtype=np.uint32))


def test_reduction_is_the_same_in_every_schedule():
    text = kernel(REDUCTION, shared=".shared .b32 a[128];")
    sums = VALUES.array.reshape(3, 128).sum(axis=1, dtype=np.uint32)
    found = result(text, VALUES, output(3), grid=3, block=128)
    np.testing.assert_array_equal(found, sums)


def test_random_schedules_show_a_missing_barrier_in_the_data():
    text = kernel(REDUCTION, shared=".shared .b32 a[128];").replace("bar.sync 0;", "")
    with pytest.raises(RaceError):
        run(text, VALUES, output(3), grid=3, block=128)
    sums = VALUES.array.reshape(3, 128).sum(axis=1, dtype=np.uint32)
    for schedule in range(3):
        out, wrong = output(3), False
        try:
            run(text, VALUES, out, grid=3, block=128, schedule=schedule, check_races=False)
        except UninitializedError:
            wrong = True
        assert wrong or (out.array != sums).any()


def test_blocks_that_do_not_fill_their_last_warp():
    text = kernel("bar.sync 0;\n activemask.b32 %r0;\n st.global.u32 [%aty], %r0;", "y")
    expected = np.tile([0xFFFFFFFF] * 32 + [0xFF] * 8, 3)
    np.testing.assert_array_equal(result(text, output(120), grid=3, block=40), expected)


def test_producer_and_consumer_with_named_barriers():
    text = kernel(
        """
        mov.u32 %r0, a;
        setp.ge.u32 %p0, %t, 32;
        @%p0 bra CONSUMER;
        mad.lo.u32 %r1, %t, 4, %r0;
        mov.u32 %r2, 0;
        PRODUCE:
        add.u32 %r3, %t, %r2;
        st.shared.u32 [%r1], %r3;
        bar.arrive 1, 64;
        bar.sync 2, 64;
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p1, %r2, 3;
        @%p1 bra PRODUCE;
        ret;
        CONSUMER:
        sub.u32 %r4, 63, %t;
        mad.lo.u32 %r1, %r4, 4, %r0;
        mov.u32 %r5, 0;
        mov.u32 %r2, 0;
        CONSUME:
        bar.sync 1, 64;
        ld.shared.u32 %r6, [%r1];
        bar.arrive 2, 64;
        add.u32 %r5, %r5, %r6;
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p1, %r2, 3;
        @%p1 bra CONSUME;
        st.global.u32 [%aty+-128], %r5;
        """,
        "y",
        ".shared .b32 a[32];",
    )
    np.testing.assert_array_equal(result(text, output(32), block=64), 3 * THREADS[::-1] + 3)
    for barrier in ("bar.arrive 1, 64;", "bar.sync 1, 64;", "bar.arrive 2, 64;", "bar.sync 2, 64;"):
        with pytest.raises((RaceError, UninitializedError, DivergenceError)):
            run(text.replace(barrier, ""), output(32), block=64)


def test_barrier_with_a_predicate():
    text = kernel("setp.lt.u32 %p0, %t, 64;\n@%p0 bar.sync 1, 64;\nst.global.u32 [%aty], %t;", "y")
    found = result(text, output(96), block=96)
    np.testing.assert_array_equal(found, np.arange(96))


def test_place_in_the_grid():
    text = kernel(
        """
        mov.u32 %r0, %tid.y;
        mov.u32 %r1, %tid.z;
        mov.u32 %r2, %ctaid.y;
        mov.u32 %r3, %ctaid.z;
        mov.u32 %r4, %ntid.y;
        mov.u32 %r5, %nctaid.x;
        mov.u32 %r6, %nctaid.y;
        mov.u32 %r7, %ctaid.x;
        mad.lo.u32 %r8, %r3, %r6, %r2;
        mad.lo.u32 %r8, %r8, %r5, %r7;
        mad.lo.u32 %r9, %r1, %r4, %r0;
        mad.lo.u32 %r9, %r9, %n, %t;
        mad.lo.u32 %r10, %r8, 24, %r9;
        mul.wide.u32 %d0, %r10, 4;
        add.u64 %d0, %d0, %y;
        mad.lo.u32 %r11, %r8, 1000, %r9;
        st.global.u32 [%d0], %r11;
        """,
        "y",
    )
    found = result(text, output(2 * 3 * 4 * 24), grid=(2, 3, 4), block=(4, 3, 2))
    block, thread = np.divmod(np.arange(2 * 3 * 4 * 24), 24)
    np.testing.assert_array_equal(found, block * 1000 + thread)


# ---- memory


def test_static_and_dynamic_shared_memory_side_by_side():
    text = kernel(
        """
        mov.u32 %r0, fixed;
        mov.u32 %r1, dynamic;
        mad.lo.u32 %r2, %t, 4, %r0;
        mad.lo.u32 %r3, %t, 4, %r1;
        st.shared.u32 [%r2], %t;
        st.shared.u32 [%r3], %n;
        ld.shared.u32 %r4, [%r2];
        ld.shared.u32 %r5, [%r3];
        mov.u32 %r7, %dynamic_smem_size;
        mad.lo.u32 %r6, %r5, %r7, %r4;
        st.global.u32 [%aty], %r6;
        """,
        "y",
        ".shared .b32 fixed[32];\n.extern .shared .align 16 .b8 dynamic[];",
    )
    found = result(text, output(), dynamic_shared=128)
    np.testing.assert_array_equal(found, 32 * 128 + THREADS)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int64, np.float64])
def test_loads_widen_and_stores_narrow(dtype):
    size = np.dtype(dtype).itemsize
    name = f"{'u' if np.dtype(dtype).kind == 'u' else 's'}{size * 8}"
    text = kernel(
        f"""
        mul.wide.u32 %d0, %t, {size};
        add.u64 %d1, %d0, %x;
        add.u64 %d2, %d0, %y;
        ld.global.{name} %d3, [%d1];
        st.global.u{size * 8} [%d2], %d3;
        mul.wide.u32 %d4, %t, 8;
        add.u64 %d4, %d4, %z;
        st.global.u64 [%d4], %d3;
        """,
        "x y z",
    )
    values = np.array([*range(-16, 16)]).astype(dtype)
    copy, wide = output(32, dtype), output(32, np.int64)
    run(text, Buffer(values), copy, wide)
    np.testing.assert_array_equal(copy.array, values)
    expected = values.view(np.int64) if size == 8 else values.astype(np.int64)
    np.testing.assert_array_equal(wide.array, expected)


def test_asynchronous_copies_fill_with_zeros():
    text = kernel(
        """
        mov.u32 %r0, a;
        mad.lo.u32 %r1, %t, 16, %r0;
        mul.wide.u32 %d0, %t, 16;
        add.u64 %d1, %d0, %x;
        and.b32 %r2, %t, 15;
        add.u32 %r2, %r2, 1;
        cp.async.cg.shared.global.L2::128B [%r1], [%d1], 16, %r2;
        cp.async.commit_group;
        cp.async.wait_group 0;
        ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1];
        add.u64 %d2, %d0, %y;
        st.global.v4.u32 [%d2], {%r3, %r4, %r5, %r6};
        """,
        shared=".shared .align 16 .b8 a[512];",
    )
    source = np.random.default_rng(1).integers(1, 256, (32, 16), np.uint8)
    found = result(text, Buffer(source), output(512, np.uint8)).reshape(32, 16)
    kept = np.arange(16) <= np.arange(32)[:, None] % 16
    np.testing.assert_array_equal(found, np.where(kept, source, 0))
