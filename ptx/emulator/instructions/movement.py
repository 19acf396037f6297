"""Moves between registers. Source: PTX ISA, "Data Movement and Conversion Instructions"."""

from __future__ import annotations

import numpy as np

from ptx.emulator.form import Form, elementwise
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import UNSIGNED, Active, Step
from ptx.emulator.memory import CONST_WINDOW, LOCAL_WINDOW, SHARED_WINDOW
from ptx.emulator.syntax import Symbol, Vector
from ptx.isa.dtypes import DTYPES, DType, pred, u64

_ANY = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")

_WINDOWS = {
    "shared": SHARED_WINDOW,
    "shared::cta": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "const": CONST_WINDOW,
}


@instruction("mov")
def _mov(form: Form) -> Step:
    dtype = form.dtype("pred", *_ANY)
    if isinstance(form.operands[0], Vector):
        return _unpack(form, dtype)
    if isinstance(form.operands[-1], Vector):
        return _pack(form, dtype)
    source = form.operands[-1]
    if isinstance(source, Symbol) and source.name in ("%clock", "%clock64", "%globaltimer"):
        form.unknown(f"special register {source.name}")
    read, write = form.read(1, dtype), form.write(0, dtype)
    return lambda active: write(active, read(active))


@instruction("selp")
def _selp(form: Form) -> Step:
    dtype = form.dtype(*_ANY)
    return elementwise(form, lambda a, b, p: np.where(p, a, b), [dtype, dtype, pred], dtype)


@instruction("slct")
def _slct(form: Form) -> Step:
    chooser = form.dtype("s32", "f32")
    dtype = form.dtype(*_ANY)
    form.has("ftz")  # a denormal is as good as 0: -0 counts as >= 0
    return elementwise(form, lambda a, b, c: np.where(c >= 0, a, b), [dtype, dtype, chooser], dtype)


@instruction("cvta")
def _cvta(form: Form) -> Step:
    to = form.has("to")
    space = form.choice("shared", "shared::cta", "global", "local", "const", "param")
    form.dtype("u64")
    window = np.uint64(_WINDOWS.get(space, 0))
    adds = to if space == "const" else not to

    def convert(address: np.ndarray) -> np.ndarray:
        return address | window if adds else address & ~window

    return elementwise(form, convert, [u64], u64)


def _unpack(form: Form, dtype: DType) -> Step:
    items = form.items(0)
    part = _part(form, dtype, len(items))
    read, writers = form.read(1, dtype), [form.write(item, part) for item in items]
    kind, narrow = UNSIGNED[dtype.bits], UNSIGNED[part.bits]

    def step(active: Active) -> None:
        value = read(active).copy()
        for i, write in enumerate(writers):
            write(active, (value >> kind(i * part.bits)).astype(narrow))

    return step


def _pack(form: Form, dtype: DType) -> Step:
    items = form.items(1)
    part = _part(form, dtype, len(items))
    readers, write = [form.read(item, part) for item in items], form.write(0, dtype)
    kind = UNSIGNED[dtype.bits]

    def step(active: Active) -> None:
        value = np.zeros(1, kind)
        for i, read in enumerate(readers):
            value = value | (read(active).astype(kind) << kind(i * part.bits))
        write(active, value)

    return step


def _part(form: Form, dtype: DType, count: int) -> DType:
    """The type of each item of a vector that makes up one value."""
    if dtype.name not in ("b16", "b32", "b64") or count not in (2, 4):
        form.unknown(f"{count} parts of a .{dtype}")
    name = f"b{dtype.bits // count}"
    if name not in DTYPES or (count == 4 and dtype.bits != 64):
        form.unknown(f"{count} parts of a .{dtype}")
    return DTYPES[name]
