"""Logic, shifts and bit fields. Source: PTX ISA, "Logic and Shift Instructions"."""

from __future__ import annotations

import numpy as np

from ptx.emulator.form import Form, elementwise
from ptx.emulator.instructions.table import BITS, INTEGERS, elementwise_instruction, instruction
from ptx.emulator.lanes import Step, numpy_type
from ptx.isa.dtypes import b32, s32, u32

_U64 = np.uint64

# Selectors that the modes of `prmt` choose from; PTX ISA, "prmt".
_PERMUTATIONS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@instruction("shl", "shr")
def _shift(form: Form) -> Step:
    left = form.instruction.opcode == "shl"
    dtype = form.dtype(*BITS, *(() if left else INTEGERS))
    bits, kind = dtype.bits, numpy_type(dtype)

    def shift(a: np.ndarray, count: np.ndarray) -> np.ndarray:
        clamped = np.minimum(count, bits - 1).astype(kind)
        shifted = np.left_shift(a, clamped) if left else np.right_shift(a, clamped)
        return shifted if dtype.kind == "signed" else np.where(count >= bits, kind(0), shifted)

    return elementwise(form, shift, [dtype, u32], dtype)


@instruction("shf")
def _shf(form: Form) -> Step:
    left = form.choice("l", "r") == "l"
    wrap = form.choice("wrap", "clamp") == "wrap"
    form.dtype("b32")

    def funnel(low: np.ndarray, high: np.ndarray, count: np.ndarray) -> np.ndarray:
        joined = low.astype(_U64) | (high.astype(_U64) << _U64(32))
        shift = (count & np.uint32(31) if wrap else np.minimum(count, 32)).astype(_U64)
        return (joined >> (_U64(32) - shift if left else shift)).astype(np.uint32)

    return elementwise(form, funnel, [b32, b32, u32], b32)


@instruction("bfe")
def _bfe(form: Form) -> Step:
    dtype = form.dtype("u32", "s32", "u64", "s64")
    signed = dtype.kind == "signed"

    def extract(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = (start & 0xFF).astype(_U64), (length & 0xFF).astype(_U64)
        value = a.astype(np.int64).view(_U64) if signed else a.astype(_U64)
        if signed:  # from the sign bit of `a` on, the field goes on with copies of it
            kept = np.minimum(start, _U64(63)).astype(np.int64)
            value = (value.view(np.int64) >> kept).view(_U64)
            length = np.minimum(length, _U64(dtype.bits) - np.minimum(start, _U64(dtype.bits - 1)))
        else:
            value = np.where(start < 64, value >> np.minimum(start, _U64(63)), _U64(0))
        field = value & _ones(length)
        if signed:
            field = _sign_extended(field, length)
        return field.astype(f"u{dtype.bytes}").view(numpy_type(dtype))

    return elementwise(form, extract, [dtype, u32, u32], dtype)


@instruction("bfi")
def _bfi(form: Form) -> Step:
    dtype = form.dtype("b32", "b64")
    kind = numpy_type(dtype)

    def insert(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = (start & 0xFF).astype(_U64), (length & 0xFF).astype(_U64)
        inside, shift = start < 64, np.minimum(start, _U64(63))
        mask = np.where(inside, _ones(length) << shift, _U64(0))
        moved = np.where(inside, a.astype(_U64) << shift, _U64(0))
        return ((b.astype(_U64) & ~mask) | (moved & mask)).astype(kind)

    return elementwise(form, insert, [dtype, dtype, u32, u32], dtype)


@instruction("bfind")
def _bfind(form: Form) -> Step:
    shift_amount = form.has("shiftamt")
    dtype = form.dtype("u32", "s32", "u64", "s64")

    def find(a: np.ndarray) -> np.ndarray:
        unsigned = np.where(a < 0, ~a, a).astype(f"u{dtype.bytes}")
        top = np.uint32(dtype.bits - 1) - _leading_zeros(unsigned)
        if not shift_amount:
            return top
        return np.where(unsigned == 0, top, np.uint32(dtype.bits - 1) - top)

    return elementwise(form, find, [dtype], u32)


@instruction("brev")
def _brev(form: Form) -> Step:
    dtype = form.dtype("b32", "b64")
    kind = numpy_type(dtype)

    def reverse(a: np.ndarray) -> np.ndarray:
        result = np.zeros_like(a)
        for i in range(dtype.bits):
            result |= ((a >> kind(i)) & kind(1)) << kind(dtype.bits - 1 - i)
        return result

    return elementwise(form, reverse, [dtype], dtype)


@instruction("lop3")
def _lop3(form: Form) -> Step:
    form.dtype("b32")
    table = form.constant(4)
    if not 0 <= table <= 255:
        form.unknown(f"table {table}")

    def logic(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
        for i in range(8):
            if table >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result

    return elementwise(form, logic, [b32] * 3, b32)


@instruction("prmt")
def _prmt(form: Form) -> Step:
    mode = form.choice(*_PERMUTATIONS, default="")
    form.dtype("b32")

    def permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        source = a.astype(_U64) | (b.astype(_U64) << _U64(32))
        if mode:
            selector = np.array(_PERMUTATIONS[mode])[selector & np.uint32(3)]
        selector = selector.astype(_U64)
        result = np.zeros(1, _U64)
        for i in range(4):
            choice = selector >> _U64(4 * i)
            byte = (source >> ((choice & _U64(7)) * _U64(8))) & _U64(255)
            sign = np.where(byte & _U64(128), _U64(255), _U64(0))
            byte = np.where(choice & _U64(8), sign, byte)
            result = result | (byte << _U64(8 * i))
        return result.astype(np.uint32)

    return elementwise(form, permute, [b32] * 3, b32)


@instruction("bmsk")
def _bmsk(form: Form) -> Step:
    wrap = form.choice("wrap", "clamp") == "wrap"
    form.dtype("b32")

    def mask(start: np.ndarray, length: np.ndarray) -> np.ndarray:
        if wrap:
            start, length = start & np.uint32(31), length & np.uint32(31)
        field = _ones(np.minimum(length, 32).astype(_U64))
        return (field << np.minimum(start, 32).astype(_U64)).astype(np.uint32)

    return elementwise(form, mask, [u32, u32], b32)


@instruction("szext")
def _szext(form: Form) -> Step:
    wrap = form.choice("wrap", "clamp") == "wrap"
    dtype = form.dtype("u32", "s32")

    def extend(a: np.ndarray, bits: np.ndarray) -> np.ndarray:
        count = (bits & np.uint32(31) if wrap else np.minimum(bits, 32)).astype(_U64)
        field = a.astype(np.int64).view(_U64) & _ones(count)
        if dtype == s32:
            field = _sign_extended(field, count)
        return field.astype(np.uint32).view(numpy_type(dtype))

    return elementwise(form, extend, [dtype, u32], dtype)


def _ones(count: np.ndarray) -> np.ndarray:
    """uint64 with the `count` lowest bits set."""
    return np.where(count >= 64, ~_U64(0), (_U64(1) << np.minimum(count, _U64(63))) - _U64(1))


def _sign_extended(field: np.ndarray, length: np.ndarray) -> np.ndarray:
    """A number of `length` bits, uint64, with its sign bit copied into all bits above it."""
    sign = (field >> (np.maximum(length, _U64(1)) - _U64(1))) & _U64(1)
    return np.where((sign == 1) & (length > 0), field | ~_ones(length), field)


def _leading_zeros(a: np.ndarray) -> np.ndarray:
    filled, bits = a, a.dtype.itemsize * 8
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            filled = filled | (filled >> a.dtype.type(shift))
    return np.uint32(bits) - np.bitwise_count(filled).astype(np.uint32)


for _opcode, _function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
    elementwise_instruction(_opcode, _function, 2, "pred", *BITS)
elementwise_instruction("not", np.invert, 1, "pred", *BITS)
elementwise_instruction("cnot", lambda a: (a == 0).astype(a.dtype), 1, *BITS)
elementwise_instruction("clz", _leading_zeros, 1, "b32", "b64", result=u32)
elementwise_instruction(
    "popc", lambda a: np.bitwise_count(a).astype(np.uint32), 1, "b32", "b64", result=u32
)
