"""Each misuse of the builder raises at once, and the message says what to do instead."""

import operator
import re
import types

import pytest

import ptx
from ptx import Kernel, Val, b32, bf16, f16, f16x2, f32, f64, s32, tf32, u32, u64


@pytest.fixture
def k() -> Kernel:
    return Kernel("misused", "sm_80", block=128)


def raises(error: type[Exception], *fragments: str):
    return pytest.raises(error, match=".*".join(map(re.escape, fragments)))


# ---- misuse of registers


def test_augmented_assignment_of_a_val(k):
    value = k.tid() * 2
    with raises(TypeError, "result of mul.lo.u32, u32) is immutable", "k.var(...)"):
        value += 1
    with raises(TypeError, "is immutable"):
        value <<= 1
    with raises(TypeError, "is immutable"), k.loop(4) as i:
        i += 1


def test_augmented_assignment_of_a_var(k):
    total = alias = k.var(u32, 0)
    total += k.tid()
    assert total is alias
    assert "add.u32                %r0, %r0, %tid_x;" in k.text()


def test_truth_value(k):
    less = k.tid() < 4
    with raises(TypeError, "no truth value", "k.if_(p)", "k.select"):
        bool(less)
    with raises(TypeError, "no truth value"):
        _ = 1 if less else 2
    with raises(TypeError, "no truth value", "& | ~"):
        _ = less and less
    with raises(TypeError, "no truth value", "a < b < c"):
        _ = 0 < k.tid() < 4
    with raises(TypeError, "no truth value"):
        _ = not less


def test_truth_value_has_a_way_out(k):
    both = (k.tid() > 0) & (k.tid() < 4)
    with k.if_(both):
        pass
    assert "and.pred" in k.text()


def test_equality(k):
    lane, thread = k.laneid(), k.tid()
    with raises(TypeError, "%lane, u32) == ...", "a.eq(b)"):
        _ = lane == thread
    with raises(TypeError, "!= ...", "a.ne(b)"):
        _ = lane != 3
    with raises(TypeError, "`in` asks it too"):
        _ = lane in [thread]
    assert lane.eq(thread).dtype is ptx.pred


def test_use_outside_the_block(k):
    with k.loop(4, name="tap") as tap:
        inside = tap + 1
    with raises(TypeError, "used outside the block", "loop_tap_1", "k.var(...)"):
        _ = inside + 1
    with raises(TypeError, "loop_tap_1"):
        _ = tap + 1
    with k.if_(k.tid() < 4):
        value = k.tid() * 2
    with raises(TypeError, "used outside the block", "if_1"), k.else_:
        _ = value + 1
    with raises(TypeError, "if_1"):
        k.pointer("out", u32).store(0, value)


def test_variables_carry_values_out(k):
    total = k.var(u32, 0)
    with k.loop(4) as i:
        total += i
    k.pointer("out", u32).store(0, total)
    ptx.assemble(k.text(), "sm_80")


# ---- other misuse, a call each


@pytest.fixture
def v(k):
    """A kernel with a value of each kind, for misuse."""
    return types.SimpleNamespace(
        k=k,
        i=k.tid(),
        signed=k.tid(dtype=s32),
        x=k.var(f32, 0.0),
        less=k.tid() < 4,
        wide=k.var(u64, 0),
        input=k.pointer("input", f32, readonly=True),
        output=k.pointer("output", f32),
        tile=k.shared("tile", f32, 64),
        halves=k.shared("halves", f16, 512),
        atom=ptx.ATOMS["m16n8k16.f16"],
        sums=[k.var(f32, 0.0) for _ in range(4)],
    )


MIXED = "types are never mixed; convert with k.convert"
DTYPE = "a dtype must be one of ptx.isa.dtypes, pred, b8 ... f64, got "
TYPE_ERRORS = [
    # types are not mixed
    (lambda v: v.i + v.signed, MIXED),
    (lambda v: v.signed + v.i, MIXED),
    (lambda v: v.i - v.signed, MIXED),
    (lambda v: v.i * v.signed, MIXED),
    (lambda v: v.i & v.signed, MIXED),
    (lambda v: v.i < v.signed, MIXED),
    (lambda v: v.i.eq(v.signed), MIXED),
    (lambda v: v.i // v.signed, MIXED),
    (lambda v: v.k.fma(v.x, v.x, v.i), "expected f32 ... u32 ... k.convert(value, f32)"),
    (lambda v: v.x.set(v.i), "expected f32"),
    (lambda v: v.k.select(v.less, v.i, v.x), "expected u32"),
    (lambda v: v.output.store(0, v.i), "expected f32"),
    (lambda v: v.k.loop(v.signed, v.i).__enter__(), "expected s32"),
    # registers have no numbers
    (lambda v: range(v.i), "has no number ... k.loop"),
    (lambda v: float(v.x), "has no number ... k.convert"),
    # literals
    (lambda v: v.i * 0.5, "expected u32 or an integer, got 0.5"),
    (lambda v: v.i + True, "expected u32 or a Python number, got True"),
    (lambda v: v.less & 1, "expected a predicate"),
    # division
    (lambda v: v.signed // 2, "// is for unsigned integers ... s32 ... k.div(a, b)"),
    (lambda v: v.signed % 2, "% is for unsigned integers ... k.rem(a, b)"),
    (lambda v: v.i / 2, "/ divides floats ... u32 ... use //"),
    # operations that a type lacks
    (lambda v: v.x & v.x, "f32 has no and ... k.bitcast"),
    (lambda v: v.x >> 1, "f32 has no shr"),
    (lambda v: v.k.bitcast(v.x, b32) + 1, "b32 has no add ... k.bitcast"),
    (lambda v: v.k.mad(v.x, v.x, v.x), "f32 has no mad"),
    (lambda v: v.k.fma(v.i, 2, 3), "u32 has no fma"),
    (lambda v: v.less.eq(v.x > 0), "a ^ b"),
    (lambda v: v.k.convert(v.x, tf32, "rna") + 1.0, "tf32 has no add"),
    # conversions say how they round
    (lambda v: v.k.convert(v.x, f16), 'f32 to f16 may round ... k.convert(value, f16, "rn")'),
    (lambda v: v.k.convert(v.x, s32), "f32 to s32 may round"),
    (lambda v: v.k.convert(v.signed, f32), "s32 to f32 may round"),
    (lambda v: v.k.convert(v.x, f16, "nearest"), "rounding 'nearest' is none of rn, rz"),
    (lambda v: v.k.convert(v.x, b32), "use k.bitcast"),
    (lambda v: v.k.convert(v.x, f16x2, "rn"), "k.pack and k.unpack"),
    (lambda v: v.k.bitcast(v.x, f64), "has 32 bits, and f64 64"),
    # pointers
    (lambda v: v.input.store(0, 1.0), "store through a pointer that was declared readonly"),
    (lambda v: v.input.red(0, 1.0), "red through a pointer that was declared readonly"),
    (lambda v: operator.iadd(v.input, 1), "q = p + index"),
    (lambda v: v.output.advance(1), "p.variable()"),
    (lambda v: v.tile.load(0.5), "an index is ... 0.5"),
    (lambda v: v.tile.load(v.x), "an index is a 32- or 64-bit integer ... f32"),
    (lambda v: v.tile.load(v.wide), "shared memory takes a 32-bit index"),
    (lambda v: v.tile.load(0, hint="cg"), "cache hint ... is for global memory"),
    # predicates guard
    (lambda v: v.tile.load(0, where=v.i), "expected a predicate"),
    (lambda v: v.k.if_(v.i).__enter__(), "expected a predicate such as a < b"),
    (lambda v: v.k.if_(True).__enter__(), "expected a predicate"),
    # copies and matrices
    (lambda v: v.k.cp_async(v.input, v.tile, 16), "cp.async is global to shared"),
    (lambda v: v.k.ldmatrix(v.input, 4), "ldmatrix reads shared memory"),
    (
        lambda v: v.k.mma(v.atom, v.sums, *2 * [v.k.ldmatrix(v.halves, 4)]),
        "m16n8k16.f16 takes 2 x f16x2 as b",
    ),
    (
        lambda v: v.k.mma(
            v.atom,
            [total.value() for total in v.sums],
            v.k.ldmatrix(v.halves, 4),
            v.k.ldmatrix(v.halves, 2),
        ),
        "c is made of k.var(...)",
    ),
    # declarations
    (lambda v: v.k.param("m", ptx.u8), "parameters have 16 to 64 bits, not u8"),
    (lambda v: v.i + Kernel("other", "sm_80").tid(), "belongs to kernel other, not misused"),
    (lambda v: v.k.pointer("x", "float32"), DTYPE),
    (lambda v: v.k.param("n", "u32"), DTYPE),
    (lambda v: v.k.shared("words", "f32", 4), DTYPE),
    (lambda v: v.k.dynamic_shared(float, 4), DTYPE),
    (lambda v: v.k.var("f32", 0.0), DTYPE),
    (lambda v: v.k.tid(dtype="u32"), DTYPE),
    (lambda v: v.k.convert(v.i, "f32", "rn"), DTYPE),
    (lambda v: v.k.bitcast(v.i, "f32"), DTYPE),
    (lambda v: v.k.op("mov.u32", "u32", v.i), DTYPE),
    (lambda v: v.output.view("f16x2"), DTYPE),
]
VALUE_ERRORS = [
    (lambda v: v.i + -1, "-1 does not fit u32"),
    (lambda v: v.i + 2**32, "4294967296 does not fit u32"),
    (lambda v: v.tile.load(0, 8), "8 x f32 is not a vector"),
    (lambda v: v.tile.store(0, [0.0] * 3), "3 x f32 is not a vector"),
    (lambda v: v.output.load(0, hint="wb"), "no instruction 'ld.global.wb.f32'"),
    (lambda v: v.k.cp_async(v.tile, v.input, 2), "cp.async copies 4, 8 or 16 bytes, not 2"),
    (lambda v: v.k.ldmatrix(v.tile, 3), "ldmatrix loads 1, 2 or 4 matrices"),
    (lambda v: v.k.pointer("input", f32), "parameter 'input' is declared already"),
    (lambda v: v.k.param("a b", u32), "is a PTX identifier, not 'a b'"),
    (lambda v: v.k.shared("tile", f32, 4), "shared array 'tile' is declared already"),
    (lambda v: Kernel("no-name", "sm_80"), "a kernel's name is a PTX identifier"),
    (lambda v: Kernel("name", "sm_70"), "target must be one of sm_75"),
    (lambda v: Kernel("name", "sm_80", block=2048), "block=2048 is not 1 to 1024 threads"),
    (lambda v: Kernel("name", "sm_80", min_blocks=2), "min_blocks needs block"),
    (lambda v: v.k.op("vadd.u32", u32, v.i), "no instruction 'vadd.u32'"),
    (lambda v: v.k.op("popc.b32", u32, v.wide), "popc.b32 takes (u32, b32), not (u32, u64)"),
    (
        lambda v: v.k.op("popc.b32", u32, v.i, v.i),
        "popc.b32 takes (u32, b32), not (u32, u32, u32)",
    ),
]


@pytest.mark.parametrize(("misuse", "message"), TYPE_ERRORS)
def test_type_errors(v, misuse, message):
    with raises(TypeError, *message.split(" ... ")):
        misuse(v)


@pytest.mark.parametrize(("misuse", "message"), VALUE_ERRORS)
def test_value_errors(v, misuse, message):
    with raises(ValueError, *message.split(" ... ")):
        misuse(v)


def test_what_is_right_beside_them(v):
    assert v.k.div(v.signed, 2).dtype is s32
    assert isinstance(v.k.op("popc.b32", u32, v.i), Val)


def test_a_kernel_without_an_end(k):
    x = k.tid()
    with raises(ValueError, "would have more than 30000 lines"):
        while True:
            x = x + 1


def test_control(k):
    with raises(TypeError, "k.else_ comes directly after"), k.else_:
        pass
    with k.if_(k.tid() < 4):
        pass
    k.barrier()
    with raises(TypeError, "k.else_ comes directly after"), k.else_:
        pass
    with raises(ValueError, "step is not 0"), k.loop(0, 4, 0):
        pass
    with raises(ValueError, "4294967296 does not fit u32"), k.loop(0, 2**32 - 1, 2**31):
        pass
    with raises(TypeError, "a loop counts in integers, not f32"), k.loop(k.var(f32, 0.0)):
        pass
    with raises(TypeError, "the loop counts in u32, not s32"), k.loop(k.tid(), dtype=s32):
        pass


def test_shared_memory_that_a_target_lacks():
    k = Kernel("hungry", "sm_86")
    with raises(ptx.UnsupportedError, "hungry", "65536 bytes of static shared memory", "sm_86"):
        k.shared("tile", f32, 16384)
    k = Kernel("hungry", "sm_86")
    with raises(ptx.UnsupportedError, "hungry", "131072 bytes of shared memory", "sm_86", "101376"):
        k.dynamic_shared(f32, 32768)
    assert Kernel("fits", "sm_80").dynamic_shared(f32, 32768).offset == 0


def test_targets_that_lack_an_instruction():
    k = Kernel("old", "sm_75")
    with raises(ptx.UnsupportedError, "kernel old: cp.async.commit_group needs sm_80", "sm_75"):
        k.cp_async_commit()
    x = k.pointer("x", bf16)
    with raises(ptx.UnsupportedError, "red.global.add.noftz.bf16 needs sm_90", "sm_75"):
        x.red(0, k.convert(k.var(f32, 1.0), bf16, "rn"))
    with raises(ptx.UnsupportedError, "red.global.add.v4.f32 needs sm_90"):
        k.pointer("y", f32).red(0, [1.0] * 4)
    assert ".version 6.3" in k.text()


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        ((32, 33), TypeError, "of several dimensions their product: got (32, 33)"),
        (2.0, TypeError, "must be an int, its elements: got 2.0"),
        (True, TypeError, "must be an int, its elements: got True"),
        (0, ValueError, "must be at least 1, got 0"),
        (-4, ValueError, "must be at least 1, got -4"),
    ],
)
def test_elements_of_a_shared_array(k, count, error, message):
    for declare in (lambda: k.shared("tile", f32, count), lambda: k.dynamic_shared(f32, count)):
        with raises(error, message):
            declare()


@pytest.mark.parametrize("register", ["tid", "ntid", "ctaid", "nctaid"])
@pytest.mark.parametrize("axis", [1, 0, "w", "X", None])
def test_axis_of_a_special_register(k, register, axis):
    with raises(ValueError, f'the axis of {register} must be "x", "y" or "z", got {axis!r}'):
        getattr(k, register)(axis)
