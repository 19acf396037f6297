"""Atomic operations and reductions in the emulator, in global and in shared memory."""

import ml_dtypes
import numpy as np
import pytest
from support.hand_written import kernel, output, result, run

from ptx.emulator import Buffer

ATOMICS = {
    "add.u32": (np.uint32, lambda old, a: old + a),
    "add.u64": (np.uint64, lambda old, a: old + a),
    "add.f32": (np.float32, lambda old, a: old + a),
    "add.f64": (np.float64, lambda old, a: old + a),
    "add.noftz.f16": (np.float16, lambda old, a: old + a),
    "add.noftz.bf16": (ml_dtypes.bfloat16, lambda old, a: old + a),
    "min.s32": (np.int32, min),
    "max.u64": (np.uint64, max),
    "exch.b32": (np.uint32, lambda old, a: a),
    "and.b32": (np.uint32, lambda old, a: old & a),
    "or.b64": (np.uint64, lambda old, a: old | a),
    "xor.b32": (np.uint32, lambda old, a: old ^ a),
    "inc.u32": (np.uint32, lambda old, a: np.uint32(0) if old >= a else old + np.uint32(1)),
    "dec.u32": (
        np.uint32,
        lambda old, a: a if old == 0 or old > a else old - np.uint32(1),
    ),
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_happen_one_after_the_other(name, space):
    dtype, function = ATOMICS[name]
    bits = np.dtype(dtype).itemsize * 8
    register = {16: "%h", 32: "%r", 64: "%d"}[bits]
    in_global = f"atom.global.{name} {register}2, [%cell], {register}1;"
    in_shared = f"""
        setp.ne.u32 %p0, %t, 0;
        @%p0 bra READY;
        ld.global.b{bits} {register}5, [%cell];
        st.shared.b{bits} [a], {register}5;
        READY:
        bar.sync 0;
        atom.shared.{name} {register}2, [a], {register}1;
        bar.sync 0;
        @%p0 bra END;
        ld.shared.b{bits} {register}6, [a];
        st.global.b{bits} [%cell], {register}6;
        END:
    """
    body = f"""
        mul.wide.u32 %d7, %t, {bits // 8};
        add.u64 %d8, %x, %d7;
        add.u64 %d9, %old, %d7;
        ld.global.b{bits} {register}1, [%d8];
        {in_global if space == "global" else in_shared}
        st.global.b{bits} [%d9], {register}2;
    """
    text = kernel(body, "x cell old", ".shared .b64 a[1];")
    values = np.array([*range(3, 19), *range(40, 24, -1)]).astype(dtype)
    for schedule in (None, 4):
        cell, old = Buffer(np.array([5]).astype(dtype)), output(32, dtype)
        run(text, Buffer(values), cell, old, schedule=schedule)
        if schedule is None:  # lane by lane
            state = np.array([5]).astype(dtype)[0]
            for before, value in zip(old.array, values, strict=True):
                assert before == state
                state = np.array([function(state, value)]).astype(dtype)[0]
            assert cell.array[0] == state
        elif name.startswith(("add.u", "min", "max", "and", "or", "xor")):
            final = np.array([5]).astype(dtype)[0]
            for value in values:
                final = function(final, value)
            assert cell.array[0] == final


@pytest.mark.parametrize(
    ("space", "kept"),
    [("global", [0, 0, 3 * 2**-127, 0]), ("shared", [2**-130, 3 * 2**-130, 2**-126, 2**-127])],
)
def test_additions_in_global_memory_flush_denormals(space, kept):
    """What is added, what it is added to, and the sum."""
    text = kernel(
        f"""
        setp.ge.u32 %p0, %t, 4;
        @%p0 bra END;
        mul.wide.u32 %d0, %t, 4;
        add.u64 %d1, %d0, %x;
        ld.global.f32 %f0, [%d1];
        mul.lo.u32 %r0, %t, 4;
        mov.u32 %r1, a;
        add.u32 %r1, %r1, %r0;
        add.u64 %d2, %d0, %y;
        ld.global.f32 %f1, [%d2];
        st.shared.f32 [%r1], %f1;
        red.{space}.add.f32 [{"%r1" if space == "shared" else "%d2"}], %f0;
        ld.shared.f32 %f2, [%r1];
        {"st.global.f32 [%d2], %f2;" if space == "shared" else ""}
        END:
        """,
        "x y",
        ".shared .b32 a[4];",
    )
    added = np.array([2**-130, 2**-130, 3 * 2**-127, 3 * 2**-127], np.float32)
    before = Buffer(np.array([0, 2**-129, -(2**-127), -(2**-126)], np.float32))
    run(text, Buffer(added), before)
    np.testing.assert_array_equal(before.array, np.array(kept, np.float32))


def test_compare_and_swap_takes_turns():
    text = kernel(
        """
        ld.relaxed.gpu.global.u16 %h0, [%y];
        AGAIN:
        add.u16 %h1, %h0, 3;
        atom.global.cas.b16 %h2, [%y], %h0, %h1;
        setp.ne.u16 %p0, %h2, %h0;
        mov.u16 %h0, %h2;
        @%p0 bra AGAIN;
        """,
        "y",
    )
    found = result(text, Buffer(np.array([1, 50], np.uint16)), grid=2, block=64)
    np.testing.assert_array_equal(found, [1 + 3 * 128, 50])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("noftz.f16x2", np.float16), ("noftz.bf16x2", ml_dtypes.bfloat16), ("v4.f32", np.float32)],
)
def test_reductions_of_several_elements(name, dtype):
    operand = "%r0" if "x2" in name else "{%f0, %f1, %f2, %f3}"
    vector = "v4" if "x2" not in name else ""
    text = kernel(
        f"""
        mov.f32 %f0, 0f3f800000;
        mov.f32 %f1, 0f40000000;
        mov.f32 %f2, 0f40400000;
        mov.f32 %f3, 0f40800000;
        cvt.rn.{name[6:] if "x2" in name else "f16x2"}.f32 %r0, %f1, %f0;
        red.global.add.{vector}{name.replace("v4", "")} [%y], {operand};
        """,
        "y",
    )
    count = 2 if "x2" in name else 4
    found = result(text, Buffer(np.ones(count, dtype)))
    np.testing.assert_array_equal(found.astype(np.float32), 1 + 32 * np.arange(1, count + 1))
