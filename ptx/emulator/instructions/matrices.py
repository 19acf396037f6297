"""Matrices spread over a warp. Source: PTX ISA, "Warp Level Matrix Instructions".

A fragment is described by two arrays, row and column of each element, of shape
[32 lanes, elements].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

from ptx.emulator import ieee
from ptx.emulator.access import Access, Kind
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.instructions.warps import require_warps
from ptx.emulator.lanes import UNSIGNED, WARP, Active, Step, numpy_type
from ptx.emulator.memory import SHARED_WINDOW
from ptx.isa.dtypes import DTYPES, DType, b32

__all__ = ["MMA_SHAPES", "fragments"]

_LANE = np.arange(WARP)[:, None]
_GROUP, _MEMBER = _LANE // 4, _LANE % 4
_BYTES = ("s8", "u8")
_HALF = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}

MMA_SHAPES = {
    "f16": ((16, 8, 8), (16, 8, 16)),
    "bf16": ((16, 8, 8), (16, 8, 16)),
    "tf32": ((16, 8, 4), (16, 8, 8)),
    "f64": ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
    **dict.fromkeys(_BYTES, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
}


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Where the elements of a fragment lie in its matrix: each int[32, elements]."""

    row: np.ndarray
    column: np.ndarray


def fragments(dtype: DType, shape: tuple[int, int, int]) -> tuple[Fragment, Fragment, Fragment]:
    """Fragments A [m, k], B [k, n] and C [m, n] of one `mma`.

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 ..." and the sections beside it.
    """
    m, _, k = shape
    packed = max(1, 32 // dtype.bits)  # elements of one register
    rows = m // 8
    wide = 4 * packed  # columns that one register of all lanes spans
    a = np.arange(m * k // WARP)
    register, element = a // packed, a % packed
    fragment_a = Fragment(
        _GROUP + 8 * (register % rows), _MEMBER * packed + element + wide * (register // rows)
    )
    b = np.arange(8 * k // WARP)
    register, element = b // packed, b % packed
    fragment_b = Fragment(
        _MEMBER * packed + element + wide * register, np.broadcast_to(_GROUP, (WARP, len(b)))
    )
    c = np.arange(m * 8 // WARP)
    fragment_c = Fragment(_GROUP + 8 * (c // 2), _MEMBER * 2 + c % 2)
    return fragment_a, fragment_b, fragment_c


_ACCUMULATORS = {"f16": ("f32", "f16"), "f64": ("f64",), **dict.fromkeys(_BYTES, ("s32",))}


@instruction("mma")
def _mma(form: Form) -> Step:
    if not (form.has("sync") and form.has("aligned")):
        form.unknown("mma.sync.aligned is expected")
    types = [form.dtype(*MMA_SHAPES, "f32", "s32") for _ in range(4)][::-1]
    result, inner, other, start = types
    alike = inner == other or (inner.name in _BYTES and other.name in _BYTES)
    if not alike or result != start or inner.name not in MMA_SHAPES:
        form.unknown(f"types {types}")
    if result.name not in _ACCUMULATORS.get(inner.name, ("f32",)):
        form.unknown(f"accumulator .{result}")
    shapes = {f"m{m}n{n}k{k}": (m, n, k) for m, n, k in MMA_SHAPES[inner.name]}
    shape = shapes[form.choice(*shapes)]
    if not (form.has("row") and form.has("col")):
        form.unknown(".row.col is expected")
    return _multiply_add(form, shape, (inner, other), result)


def _multiply_add(
    form: Form, shape: tuple[int, int, int], factors: tuple[DType, DType], result: DType
) -> Step:
    inner, other = factors
    fragment_a, fragment_b, fragment_c = fragments(inner, shape)
    m, n, k = shape
    register = DTYPES["f64"] if inner.name == "f64" else b32
    accumulator = b32 if result.name == "f16" else result
    per_register = 2 if result.name == "f16" else 1
    counts = [f.row.shape[1] * inner.bits // register.bits for f in (fragment_a, fragment_b)]
    in_c = fragment_c.row.shape[1] // per_register
    a = [form.read(item, register) for item in form.items(1, counts[0])]
    b = [form.read(item, register) for item in form.items(2, counts[1])]
    c = [form.read(item, accumulator) for item in form.items(3, in_c)]
    writers = [form.write(item, accumulator) for item in form.items(0, in_c)]
    round_off = _rounding(form, result)

    def matrix(
        active: Active,
        readers: list[Reader],
        dtype: DType,
        fragment: Fragment,
        size: tuple[int, int],
    ) -> np.ndarray:
        values = _gather(active, readers, dtype)
        full = np.empty((values.shape[0], *size))
        full[:, fragment.row, fragment.column] = values
        return full

    def step(active: Active) -> None:
        require_warps(active, form.instruction)
        product = matrix(active, a, inner, fragment_a, (m, k)) @ matrix(
            active, b, other, fragment_b, (k, n)
        )
        total = product[:, fragment_c.row, fragment_c.column]
        total = total + _gather(active, c, result)
        rounded = round_off(total)
        registers = np.ascontiguousarray(rounded.reshape(-1, rounded.shape[-1]))
        registers = registers.view(UNSIGNED[accumulator.bits])
        for i, write in enumerate(writers):
            write(active, registers[:, i].copy())

    return step


def _rounding(form: Form, result: DType) -> Callable[[np.ndarray], np.ndarray]:
    """From exact sums to the accumulator's type."""
    if result.is_float:
        return lambda total: ieee.canonical(total.astype(numpy_type(result)))
    if form.has("satfinite"):
        return lambda total: np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)
    return lambda total: total.astype(np.int64).astype(np.int32)


def _gather(active: Active, readers: list[Reader], dtype: DType) -> np.ndarray:
    """The elements of a fragment as float64 [warps, 32, elements]."""
    count = active.size
    first = readers[0](active)
    registers = np.empty((count, len(readers)), first.dtype)
    registers[:, 0] = first
    for i, read in enumerate(readers[1:], 1):
        registers[:, i] = read(active)
    if dtype.name == "tf32":  # hardware does not look at the 13 bits that TF32 lacks
        values = (registers & np.uint32(0xFFFFE000)).view(np.float32)
    elif dtype.name in _HALF:
        values = registers.view(_HALF[dtype.name])
    elif dtype.name in _BYTES:
        values = registers.view(numpy_type(dtype))
    else:
        values = registers
    return values.astype(np.float64).reshape(count // WARP, WARP, -1)


@instruction("ldmatrix")
def _ldmatrix(form: Form) -> Step:
    count, access, transposed = _eight_by_eight(form, Kind.READ)
    writers = [form.write(item, b32) for item in form.items(0, count)]
    address = form.address(1)

    def step(active: Active) -> None:
        require_warps(active, form.instruction)
        position = _rows(active, address(active), count, access)
        halves = active.lanes.shared.bytes.view(np.uint16)
        matrices = halves[position[..., None] // 2 + np.arange(8)]  # [warps, count, 8, 8]
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        words = np.ascontiguousarray(matrices).view(np.uint32)
        words = words.reshape(len(position), count, WARP)
        for i, write in enumerate(writers):
            write(active, words[:, i].reshape(-1))

    return step


@instruction("stmatrix")
def _stmatrix(form: Form) -> Step:
    count, access, transposed = _eight_by_eight(form, Kind.WRITE)
    readers = [form.read(item, b32) for item in form.items(1, count)]
    address = form.address(0)

    def step(active: Active) -> None:
        require_warps(active, form.instruction)
        position = _rows(active, address(active), count, access)
        total = active.size
        words = np.stack([np.broadcast_to(r(active), total) for r in readers])
        matrices = np.ascontiguousarray(words).view(np.uint16).reshape(count, -1, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        halves = active.lanes.shared.bytes.view(np.uint16)
        halves[position[..., None] // 2 + np.arange(8)] = matrices.swapaxes(0, 1)

    return step


@instruction("movmatrix")
def _movmatrix(form: Form) -> Step:
    for name in ("sync", "aligned", "m8n8", "trans"):
        form.choice(name)
    form.dtype("b16")
    read, write = form.read(1, b32), form.write(0, b32)

    def step(active: Active) -> None:
        require_warps(active, form.instruction)
        words = np.ascontiguousarray(np.broadcast_to(read(active), active.size))
        matrices = words.view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
        write(active, np.ascontiguousarray(matrices).view(np.uint32).reshape(-1))

    return step


def _eight_by_eight(form: Form, kind: Kind) -> tuple[int, Access, bool]:
    """What `ldmatrix` and `stmatrix` share: number of matrices, access, transposition."""
    for name in ("sync", "aligned", "m8n8"):
        form.choice(name)
    count = int(form.choice("x1", "x2", "x4")[1])
    transposed = form.has("trans")
    form.choice("shared", "shared::cta")
    form.dtype("b16")
    form.program.accesses("shared", 16)
    return count, Access(form.instruction, kind, 16, 16), transposed


def _rows(active: Active, address: np.ndarray, count: int, access: Access) -> np.ndarray:
    """Positions of the rows, [warps, count, 8]; the first 8 * count lanes give their addresses."""
    giving = active.indices % WARP < 8 * count
    rows = active if giving.all() else active.subset(giving)
    where = address[giving] & (SHARED_WINDOW - 1)
    return active.lanes.shared.locate(rows, where, access).reshape(-1, count, 8)
