"""Integer arithmetic. Source: PTX ISA, "Integer Arithmetic Instructions"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator.errors import UndefinedResultError
from ptx.emulator.form import Form, Reader, elementwise
from ptx.emulator.instructions.table import INTEGERS, elementwise_instruction, instruction
from ptx.emulator.lanes import UNSIGNED, Active, Step, numpy_type
from ptx.isa.dtypes import DTYPES, DType, pred, s32


@instruction("mul", kind="integer")
def _mul(form: Form) -> Step:
    dtype = form.dtype(*INTEGERS)
    function, result = _product(form, dtype)
    return elementwise(form, function, [dtype] * 2, result)


@instruction("mad", kind="integer")
def _mad(form: Form) -> Step:
    dtype = form.dtype(*INTEGERS)
    product, result = _product(form, dtype)
    if form.has("sat"):
        form.unknown("modifier .sat")
    return elementwise(form, lambda a, b, c: product(a, b) + c, [dtype, dtype, result], result)


@instruction("add", "sub", kind="integer")
def _sum(form: Form) -> Step:
    function = np.add if form.instruction.opcode == "add" else np.subtract
    dtype = form.dtype(*INTEGERS)
    if not form.has("sat"):
        return elementwise(form, function, [dtype] * 2, dtype)
    if dtype.name != "s32":
        form.unknown("modifier .sat")

    def saturating(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        exact = function(a.astype(np.int64), b.astype(np.int64))
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    return elementwise(form, saturating, [dtype] * 2, dtype)


def _product(form: Form, dtype: DType) -> tuple[Callable[..., np.ndarray], DType]:
    """The product that the instruction asks for, and its type."""
    part = form.choice("lo", "hi", "wide")
    if part == "lo":
        return np.multiply, dtype
    if part == "hi":
        return _high_product, dtype
    if dtype.bits == 64:
        form.unknown("modifier .wide")
    result = DTYPES[f"{dtype.name[0]}{dtype.bits * 2}"]
    kind = numpy_type(result)
    return lambda a, b: np.multiply(a, b, dtype=kind), result


def _high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of a product, in the type of both factors."""
    kind, bits = a.dtype.type, a.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(kind)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x_low, x_high, y_low, y_high = x & low, x >> shift, y & low, y >> shift
    middle = x_high * y_low + ((x_low * y_low) >> shift)
    carry = (middle & low) + x_low * y_high
    high = x_high * y_high + (middle >> shift) + (carry >> shift)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(kind)


@instruction("div", "rem", kind="integer")
def _division(form: Form) -> Step:
    dtype = form.dtype(*INTEGERS)
    a, b, write = form.read(1, dtype), form.read(2, dtype), form.write(0, dtype)

    def step(active: Active) -> None:
        x, y = a(active), b(active)
        zero = np.broadcast_to(y == 0, active.size)
        if zero.any():
            message = "division of an integer by zero"
            active.fail(UndefinedResultError, form.instruction, zero, message)
        quotient, remainder = _truncated(x, y)
        write(active, quotient if form.instruction.opcode == "div" else remainder)

    return step


def _truncated(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quotient, rounded towards zero, and remainder, which has the sign of `a`."""
    if a.dtype.kind == "u":
        return a // b, a % b
    kind = UNSIGNED[a.dtype.itemsize * 8]
    size = np.abs(a).view(kind) // np.abs(b).view(kind)
    quotient = np.where((a < 0) != (b < 0), -size.view(a.dtype), size.view(a.dtype))
    return quotient, a - quotient * b


@instruction("min", "max", kind="integer")
def _extremum(form: Form) -> Step:
    choose = np.minimum if form.instruction.opcode == "min" else np.maximum
    if not form.has("relu"):
        dtype = form.dtype(*INTEGERS)
        return elementwise(form, choose, [dtype] * 2, dtype)
    return elementwise(form, lambda a, b: np.maximum(choose(a, b), 0), [s32] * 2, form.dtype("s32"))


_SIGNED = ("s16", "s32", "s64")
elementwise_instruction("abs", np.abs, 1, *_SIGNED, kind="integer")
elementwise_instruction("neg", np.negative, 1, *_SIGNED, kind="integer")
elementwise_instruction(
    "sad", lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c, 3, *INTEGERS
)


# ---- sums with a carry: "Extended-Precision Integer Arithmetic Instructions"

_WORDS = ("u32", "s32", "u64", "s64")


@instruction("add", "sub", kind="carry")
@instruction("addc", "subc")
def _sum_with_carry(form: Form) -> Step:
    bits = DTYPES[f"u{form.dtype(*_WORDS).bits}"]  # a carry is that of unsigned numbers
    minus = form.instruction.opcode.startswith("sub")
    return _carrying(form, form.read(1, bits), form.read(2, bits), bits, minus=minus)


@instruction("mad", kind="carry")
@instruction("madc")
def _mad_with_carry(form: Form) -> Step:
    dtype = form.dtype(*_WORDS)
    multiply = {"lo": np.multiply, "hi": _high_product}[form.choice("lo", "hi")]
    bits = DTYPES[f"u{dtype.bits}"]
    a, b = form.read(1, dtype), form.read(2, dtype)

    def product(active: Active) -> np.ndarray:
        x, y = np.broadcast_arrays(a(active), b(active))
        return multiply(x, y).view(f"u{dtype.bytes}")

    return _carrying(form, product, form.read(3, bits), bits)


def _carrying(form: Form, a: Reader, b: Reader, dtype: DType, *, minus: bool = False) -> Step:
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
