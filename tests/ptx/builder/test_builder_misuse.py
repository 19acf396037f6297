"""Each misuse of the builder raises at once, and the message says what to do instead."""

import re

import pytest

import ptx
from ptx import Kernel, Val, b32, bf16, f16, f16x2, f32, f64, s32, tf32, u32, u64


@pytest.fixture
def k() -> Kernel:
    return Kernel("misused", "sm_80", block=128)


def raises(error: type[Exception], *fragments: str):
    return pytest.raises(error, match=".*".join(map(re.escape, fragments)))


# ---- what a register cannot do


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


@pytest.mark.parametrize("operate", [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a & b,
    lambda a, b: a < b, lambda a, b: a.eq(b), lambda a, b: a // b, lambda a, b: b + a,
])  # fmt: skip
def test_mixed_types(k, operate):
    with raises(TypeError, "types are never mixed; convert with k.convert"):
        operate(k.tid(), k.tid(dtype=s32))


def test_mixed_types_of_other_operations(k):
    x, i = k.var(f32, 0.0), k.tid()
    with raises(TypeError, "expected f32", "u32", "k.convert(value, f32)"):
        k.fma(x, x, i)
    with raises(TypeError, "expected f32"):
        x.set(i)
    with raises(TypeError, "expected u32"):
        k.select(i < 4, i, x)
    with raises(TypeError, "expected f32"):
        k.pointer("out", f32).store(0, i)
    with raises(TypeError, "expected s32"), k.loop(k.tid(dtype=s32), i):
        pass


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


# ---- what else is refused


def test_numbers_of_registers(k):
    with raises(TypeError, "has no number", "k.loop"):
        range(k.tid())
    with raises(TypeError, "has no number", "k.convert"):
        float(k.var(f32, 0.0))


def test_literals_that_do_not_fit(k):
    with raises(ValueError, "-1 does not fit u32"):
        _ = k.tid() + -1
    with raises(ValueError, "4294967296 does not fit u32"):
        _ = k.tid() + 2**32
    with raises(TypeError, "expected u32 or an integer, got 0.5"):
        _ = k.tid() * 0.5
    with raises(TypeError, "expected u32 or a Python number, got True"):
        _ = k.tid() + True
    with raises(TypeError, "expected a predicate"):
        _ = (k.tid() < 4) & 1


def test_division_of_signed_integers(k):
    i = k.tid(dtype=s32)
    with raises(TypeError, "// is for unsigned integers", "s32", "k.div(a, b)"):
        _ = i // 2
    with raises(TypeError, "% is for unsigned integers", "k.rem(a, b)"):
        _ = i % 2
    with raises(TypeError, "/ divides floats", "u32", "use //"):
        _ = k.tid() / 2
    assert k.div(i, 2).dtype is s32


def test_operations_that_a_type_lacks(k):
    x = k.var(f32, 0.0)
    with raises(TypeError, "f32 has no and", "k.bitcast"):
        _ = x & x
    with raises(TypeError, "f32 has no shr"):
        _ = x >> 1
    with raises(TypeError, "b32 has no add", "k.bitcast"):
        _ = k.bitcast(x, b32) + 1
    with raises(TypeError, "f32 has no mad"):
        k.mad(x, x, x)
    with raises(TypeError, "u32 has no fma"):
        k.fma(k.tid(), 2, 3)
    with raises(TypeError, "a ^ b"):
        (x < 0).eq(x > 0)
    with raises(TypeError, "tf32 has no add"):
        _ = k.convert(x, tf32, "rna") + 1.0


def test_conversions_say_how_they_round(k):
    x = k.var(f32, 0.0)
    with raises(TypeError, "f32 to f16 may round", 'k.convert(value, f16, "rn")'):
        k.convert(x, f16)
    with raises(TypeError, "f32 to s32 may round"):
        k.convert(x, s32)
    with raises(TypeError, "s32 to f32 may round"):
        k.convert(k.tid(dtype=s32), f32)
    with raises(TypeError, "rounding 'nearest' is none of rn, rz"):
        k.convert(x, f16, "nearest")
    with raises(TypeError, "use k.bitcast"):
        k.convert(x, b32)
    with raises(TypeError, "k.pack and k.unpack"):
        k.convert(x, f16x2, "rn")
    with raises(TypeError, "has 32 bits, and f64 64"):
        k.bitcast(x, f64)


def test_a_kernel_without_an_end(k):
    x = k.tid()
    with raises(ValueError, "would have more than 30000 lines"):
        while True:
            x = x + 1


def test_pointers(k):
    x = k.pointer("x", f32, readonly=True)
    tile = k.shared("tile", f32, 64)
    with raises(TypeError, "store through a pointer that was declared readonly"):
        x.store(0, 1.0)
    with raises(TypeError, "red through a pointer that was declared readonly"):
        x.red(0, 1.0)
    with raises(TypeError, "q = p + index"):
        x += 1
    with raises(TypeError, "p.variable()"):
        k.pointer("y", f32).advance(1)
    with raises(ValueError, "8 x f32 is no vector"):
        tile.load(0, 8)
    with raises(ValueError, "3 x f32 is no vector"):
        tile.store(0, [0.0] * 3)
    with raises(TypeError, "an index is", "0.5"):
        tile.load(0.5)
    with raises(TypeError, "an index is a 32- or 64-bit integer", "f32"):
        tile.load(k.var(f32, 0.0))
    with raises(TypeError, "shared memory takes a 32-bit index"):
        tile.load(k.var(u64, 0))
    with raises(TypeError, "cache hint", "is for global memory"):
        tile.load(0, hint="cg")
    with raises(ValueError, "no instruction 'ld.global.wb.f32'"):
        k.pointer("z", f32).load(0, hint="wb")


def test_predicates_guard(k):
    with raises(TypeError, "expected a predicate such as a < b"), k.if_(k.tid()):
        pass
    with raises(TypeError, "expected a predicate"), k.if_(True):  # type: ignore[arg-type]
        pass
    with raises(TypeError, "expected a predicate"):
        k.shared("tile", f32, 4).load(0, where=k.tid())


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


def test_copies_and_matrices(k):
    x, tile = k.pointer("x", f16, readonly=True), k.shared("tile", f16, 512)
    with raises(TypeError, "cp.async is global to shared"):
        k.cp_async(x, tile, 16)
    with raises(ValueError, "cp.async copies 4, 8 or 16 bytes, not 2"):
        k.cp_async(tile, x, 2)
    with raises(TypeError, "ldmatrix reads shared memory"):
        k.ldmatrix(x, 4)
    with raises(ValueError, "ldmatrix loads 1, 2 or 4 matrices"):
        k.ldmatrix(tile, 3)
    atom = ptx.ATOMS["m16n8k16.f16"]
    c = [k.var(f32, 0.0) for _ in range(4)]
    a = k.ldmatrix(tile, 4)
    with raises(TypeError, "m16n8k16.f16 takes 2 x f16x2 as b"):
        k.mma(atom, c, a, a)
    with raises(TypeError, "c is made of k.var(...)"):
        k.mma(atom, [v.value() for v in c], a, a[:2])  # type: ignore[arg-type]


def test_kernels_do_not_mix(k):
    other = Kernel("other", "sm_80")
    with raises(TypeError, "belongs to kernel other, not misused"):
        _ = k.tid() + other.tid()


def test_declarations(k):
    k.param("n", u32)
    with raises(ValueError, "parameter 'n' is declared already"):
        k.pointer("n", f32)
    with raises(ValueError, "is a PTX identifier, not 'a b'"):
        k.param("a b", u32)
    with raises(TypeError, "parameters have 16 to 64 bits, not u8"):
        k.param("m", ptx.u8)
    k.shared("tile", f32, 4)
    with raises(ValueError, "shared array 'tile' is declared already"):
        k.shared("tile", f32, 4)
    with raises(ValueError, "a kernel's name is a PTX identifier"):
        Kernel("no-name", "sm_80")
    with raises(ValueError, "target must be one of sm_75"):
        Kernel("name", "sm_70")
    with raises(ValueError, "block=2048 is not 1 to 1024 threads"):
        Kernel("name", "sm_80", block=2048)
    with raises(ValueError, "min_blocks needs block"):
        Kernel("name", "sm_80", min_blocks=2)


def test_shared_memory_that_a_target_lacks():
    k = Kernel("hungry", "sm_86")
    with raises(ptx.UnsupportedError, "hungry", "65536 bytes of static shared memory", "sm_86"):
        k.shared("tile", f32, 16384)
    k = Kernel("hungry", "sm_86")
    with raises(ptx.UnsupportedError, "hungry", "131072 bytes of shared memory", "sm_86", "101376"):
        k.dynamic_shared(f32, 32768)
    assert Kernel("fits", "sm_80").dynamic_shared(f32, 32768).offset == 0


def test_instructions_by_name(k):
    with raises(ValueError, "no instruction 'vadd.u32'"):
        k.op("vadd.u32", u32, k.tid())
    with raises(ValueError, "popc.b32 takes (u32, b32), not (u32, u64)"):
        k.op("popc.b32", u32, k.var(u64, 0))
    with raises(ValueError, "popc.b32 takes (u32, b32), not (u32, u32, u32)"):
        k.op("popc.b32", u32, k.tid(), k.tid())
    assert isinstance(k.op("popc.b32", u32, k.tid()), Val)


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
    "use",
    [
        lambda k: k.pointer("x", "float32"),
        lambda k: k.param("n", "u32"),
        lambda k: k.shared("tile", "f32", 4),
        lambda k: k.dynamic_shared(float, 4),
        lambda k: k.var("f32", 0.0),
        lambda k: k.tid(dtype="u32"),
        lambda k: k.convert(k.tid(), "f32", "rn"),
        lambda k: k.bitcast(k.tid(), "f32"),
        lambda k: k.op("mov.u32", "u32", k.tid()),
        lambda k: k.pointer("x", f32).view("f16x2"),
    ],
)
def test_what_is_no_dtype(k, use):
    with raises(TypeError, "a dtype must be one of ptx.isa.dtypes, pred, b8", "f64, got "):
        use(k)


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
