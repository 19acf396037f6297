"""Sums with a carry. Source: PTX ISA, "Extended-Precision Integer Arithmetic Instructions"."""

from __future__ import annotations

import numpy as np

from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.integers import high_product
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import Active, Step
from ptx.isa.dtypes import DTYPES, DType, pred

__all__: list[str] = []

_TYPES = ("u32", "s32", "u64", "s64")


@instruction("add", kind="carry")
@instruction("addc")
def _add(form: Form) -> Step:
    dtype = form.dtype(*_TYPES)
    bits = DTYPES[f"u{dtype.bits}"]  # a carry is that of unsigned numbers, whatever the type
    return _sum(form, form.read(1, bits), form.read(2, bits), bits)


@instruction("sub", kind="carry")
@instruction("subc")
def _sub(form: Form) -> Step:
    dtype = form.dtype(*_TYPES)
    bits = DTYPES[f"u{dtype.bits}"]
    return _sum(form, form.read(1, bits), form.read(2, bits), bits, minus=True)


@instruction("mad", kind="carry")
@instruction("madc")
def _mad(form: Form) -> Step:
    dtype = form.dtype(*_TYPES)
    multiply = {"lo": np.multiply, "hi": high_product}[form.choice("lo", "hi")]
    bits = DTYPES[f"u{dtype.bits}"]
    a, b = form.read(1, dtype), form.read(2, dtype)

    def product(active: Active) -> np.ndarray:
        x, y = np.broadcast_arrays(a(active), b(active))
        return multiply(x, y).view(f"u{dtype.bytes}")

    return _sum(form, product, form.read(3, bits), bits)


def _sum(form: Form, a: Reader, b: Reader, dtype: DType, *, minus: bool = False) -> Step:
    """The sum, or the difference, with the carry before it and the one after it."""
    flag = form.operand(len(form.operands) - 1)
    takes = form.instruction.opcode in ("addc", "subc", "madc")
    carry_in = form.read(flag, pred) if takes else None
    carry_out = form.write(flag, pred) if form.has("cc") else None
    write = form.write(0, dtype)

    def step(active: Active) -> None:
        x, y = a(active), b(active)
        total = x - y if minus else x + y
        carry = x < y if minus else total < x
        if carry_in is not None:
            before = carry_in(active).astype(total.dtype)
            carry = carry | (total < before if minus else total > ~before)
            total = total - before if minus else total + before
        write(active, total)
        if carry_out is not None:
            carry_out(active, np.broadcast_to(carry, total.shape))

    return step
