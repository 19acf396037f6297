"""Tensor-core fragments: the layouts of the PTX ISA, and products of them in the emulator."""

import ml_dtypes
import numpy as np
import pytest

import ptx
from ptx import ATOMS, Atom, Fragment, Kernel, bf16, f16, f32, f64, tf32, u32
from ptx.emulator import Buffer, launch

# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and the sections beside
# it: row and column of element i, with g = groupID = lane / 4 and t = threadID_in_group =
# lane % 4, in the words of the manual.
LAYOUTS = {
    ("m16n8k16.f16", "a"): lambda g, t, i: (
        g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) if i < 4 else t * 2 + (i & 1) + 8,
    ),
    ("m16n8k16.f16", "b"): lambda g, t, i: (
        t * 2 + (i & 1) if i < 2 else t * 2 + (i & 1) + 8, g,
    ),
    ("m16n8k8.f16", "a"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("m16n8k8.f16", "b"): lambda g, t, i: (t * 2 + i, g),
    ("m16n8k8.tf32", "a"): lambda g, t, i: (
        g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4,
    ),
    ("m16n8k8.tf32", "b"): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("m8n8k4.f64", "a"): lambda g, t, i: (g, t),
    ("m8n8k4.f64", "b"): lambda g, t, i: (t, g),
    ("m8n8k4.f64", "c"): lambda g, t, i: (g, t * 2 + (i & 1)),
    ("m16n8k4.f64", "a"): lambda g, t, i: (g if i == 0 else g + 8, t),
    ("m16n8k4.f64", "b"): lambda g, t, i: (t, g),
    ("m16n8k16.f64", "a"): lambda g, t, i: (
        g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t,
    ),
    ("m16n8k16.f64", "b"): lambda g, t, i: (t + i * 4, g),
}  # fmt: skip
LAYOUTS |= {("m16n8k8.f64", which): LAYOUTS["m16n8k8.tf32", which] for which in "ab"}
LAYOUTS |= {  # C of 16 rows, whatever A and B are
    (name, "c"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))
    for name in ATOMS
    if name.startswith("m16")
}
LAYOUTS |= {(name.replace(".f16", ".bf16"), which): f for (name, which), f in LAYOUTS.items()}

NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f64": np.float64}


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("which", ["a", "b", "c"])
def test_layout(name, which):
    fragment: Fragment = getattr(ATOMS[name], which)
    expected = LAYOUTS[name, which]
    positions = fragment.positions()
    for lane in range(32):
        for i in range(len(fragment.offsets)):
            assert tuple(positions[lane, i]) == expected(lane // 4, lane % 4, i)


@pytest.mark.parametrize("name", ATOMS)
def test_fragments_hold_each_element_once(name):
    atom = ATOMS[name]
    for fragment in (atom.a, atom.b, atom.c):
        places = {tuple(place) for lane in fragment.positions() for place in lane}
        assert len(places) == fragment.rows * fragment.columns == 32 * len(fragment.offsets)


@pytest.mark.parametrize(
    ("name", "registers"),
    [("m16n8k16.f16", (4, 2, 4)), ("m16n8k16.bf16", (4, 2, 4)), ("m16n8k8.f16", (2, 1, 4)),
     ("m16n8k8.bf16", (2, 1, 4)), ("m16n8k8.tf32", (4, 2, 4)), ("m8n8k4.f64", (1, 1, 2)),
     ("m16n8k4.f64", (2, 1, 4)), ("m16n8k8.f64", (4, 2, 4)), ("m16n8k16.f64", (8, 4, 4))],
)  # fmt: skip
def test_registers(name, registers):
    atom = ATOMS[name]
    assert (atom.a.registers, atom.b.registers, atom.c.registers) == registers


def product(atom: Atom, target: str) -> str:
    """One mma: parameters a, b, c; each lane loads and stores its own elements."""
    k = Kernel("product", target, block=32)
    memory = f32 if atom.dtype is tf32 else atom.dtype
    a, b = k.pointer("a", memory, readonly=True), k.pointer("b", memory, readonly=True)
    c = k.pointer("c", atom.accumulator)
    group, member = k.laneid() >> 2, k.laneid() & 3

    def place(pointer: ptx.Pointer, fragment: Fragment) -> ptx.Pointer:
        along = member * fragment.stride
        row, column = (group, along) if fragment.group_axis == 0 else (along, group)
        return pointer + (row * fragment.columns + column)

    def load(pointer: ptx.Pointer, fragment: Fragment) -> list[ptx.Val]:
        corner = place(pointer, fragment)
        values = [corner.load(r * fragment.columns + c) for r, c in fragment.offsets]
        if fragment.packed == 2:
            return [k.pack(low, high) for low, high in zip(values[::2], values[1::2], strict=True)]
        return [k.convert(v, tf32, "rna") if atom.dtype is tf32 else v for v in values]

    sums = [k.var(atom.accumulator, 0.0) for _ in range(atom.c.registers)]
    k.mma(atom, sums, load(a, atom.a), load(b, atom.b))
    corner = place(c, atom.c)
    for (row, column), value in zip(atom.c.offsets, sums, strict=True):
        corner.store(row * atom.n + column, value)
    return k.text()


@pytest.mark.parametrize("name", ATOMS)
def test_product(name):
    atom = ATOMS[name]
    target = "sm_90"
    rng = np.random.default_rng(0)
    # Small integers: exact in every type.
    a = rng.integers(-4, 5, (atom.m, atom.k)).astype(NUMPY[atom.dtype.name])
    b = rng.integers(-4, 5, (atom.k, atom.n)).astype(a.dtype)
    c = np.empty((atom.m, atom.n), np.float64 if atom.dtype is f64 else np.float32)
    out = Buffer(c, initialized=False)
    text = product(atom, target)
    (assembled,) = ptx.assemble(text, target).values()
    assert assembled.spill_stores == 0
    launch(text, grid=1, block=32, arguments=[Buffer(a, writable=False), Buffer(b), out])
    np.testing.assert_array_equal(out.array, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize(
    ("name", "lowest"),
    [("m16n8k8.f16", "sm_75"), ("m16n8k16.bf16", "sm_80"), ("m16n8k16.f64", "sm_90")],
)
def test_targets(name, lowest):
    for target in ptx.TARGETS.values():
        if target.supports(lowest):
            assert ATOMS[name].instruction in product(ATOMS[name], target.name)
        else:
            with pytest.raises(ptx.UnsupportedError, match=rf"mma.*needs {lowest}"):
                product(ATOMS[name], target.name)


def test_ldmatrix_of_words():
    """Lane l gets word l%4 of row l/4 of each matrix."""
    k = Kernel("load", "sm_75", block=32)
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    tile, lane = k.shared("tile", f32, 32 * 4), k.laneid()
    tile.store(lane * 4, x.load(lane * 4, 4))
    k.barrier()
    for matrix, word in enumerate(k.ldmatrix(tile + lane * 4, 4, dtype=f32)):
        out.store(lane + 32 * matrix, word)
    values = np.arange(128, dtype=np.float32)
    result = Buffer(np.empty_like(values), initialized=False)
    launch(k.text(), grid=1, block=32, arguments=[Buffer(values), result])
    np.testing.assert_array_equal(result.array, values)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_ldmatrix(count, transpose, dtype):
    """Lane l gets elements 2(l%4), 2(l%4)+1 of row l/4 of each matrix, or of column l/4."""
    k = Kernel("load", "sm_75", block=32)
    x, out = k.pointer("x", u32, readonly=True), k.pointer("out", dtype)
    tile = k.shared("tile", dtype, 32 * 8)
    lane = k.laneid()
    for i in range(4):
        tile.view(u32).store(lane * 4 + i, x.load(lane * 4 + i))
    k.barrier()
    row = tile + (lane & (8 * count - 1)) * 8
    for matrix, register in enumerate(k.ldmatrix(row, count, transpose=transpose)):
        for half, value in enumerate(k.unpack(register)):
            out.store(lane * 2 + 64 * matrix + half, value)
    ptx.assemble(k.text(), "sm_75")
    values = np.arange(256).astype(NUMPY[dtype.name]).reshape(4, 8, 8)
    result = Buffer(np.empty((count, 8, 8), values.dtype), initialized=False)
    launch(k.text(), grid=1, block=32, arguments=[Buffer(values.view(np.uint32)), result])
    expected = values[:count].swapaxes(1, 2) if transpose else values[:count]
    np.testing.assert_array_equal(result.array, expected)
