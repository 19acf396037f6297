"""Atomic operations on memory. Source: PTX ISA, "atom", "red"."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator import ieee
from ptx.emulator.access import Access, Kind
from ptx.emulator.form import Form, Reader, Writer
from ptx.emulator.instructions.floats import maximum, minimum, packed
from ptx.emulator.instructions.memory import SCOPES, at_addresses, state_space
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import Active, Step, numpy_type
from ptx.isa.dtypes import DType

# The new value, from `old` and one or two operands.
_INTEGER = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda old, a: np.where(old >= a, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, a: np.where((old == 0) | (old > a), a, old - old.dtype.type(1)),
}
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_FLOAT = {
    "add": ieee.add,
    "min": lambda old, a: minimum(old, a, propagate=False),
    "max": lambda old, a: maximum(old, a, propagate=False),
}
_EXCHANGE = {"exch": lambda old, a: a, "cas": lambda old, a, b: np.where(old == a, b, old)}
_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys((*_BITWISE, "exch"), ("b32", "b64")),
    "cas": ("b16", "b32", "b64"),
}
_TABLE = {**_INTEGER, **_BITWISE, **_EXCHANGE}
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_ORDERS = ("relaxed", "acquire", "release", "acq_rel")

Operation = Callable[..., np.ndarray]

_ONE_AT_A_TIME = threading.Lock()  # launches of several threads may share memory


@instruction("atom", "red")
def _atomic(form: Form) -> Step:
    answers = form.instruction.opcode == "atom"
    name = form.choice(*_INTEGER, *_BITWISE, *_EXCHANGE)
    if name in ("exch", "cas") and not answers:
        form.unknown(f"modifier .{name}")
    count = int(form.choice("v2", "v4", "v8", default="v1")[1])
    space = state_space(form)
    dtype, operation = _operation(form, name, count, space)
    if count > 1 and space == "shared":
        form.unknown("vectors in shared memory")
    form.has(*_ORDERS)
    form.has(*SCOPES)
    form.skip_cache_hints()
    first = 1 if answers else 0
    writers = [form.write(item, dtype) for item in form.items(0, count)] if answers else []
    address = form.address(first)
    if name == "cas":
        operands = [[form.read(first + 1, dtype)], [form.read(first + 2, dtype)]]
    else:
        operands = [[form.read(item, dtype) for item in form.items(first + 1, count)]]
    width = dtype.bytes * count
    form.program.accesses(space, dtype.bytes)
    access = Access(form.instruction, Kind.ATOMIC, width, width)
    update = _update(dtype, operation, operands, writers)
    return at_addresses(space, access, address, update)


def _operation(form: Form, name: str, count: int, space: str | None) -> tuple[DType, Operation]:
    """The type, and what is done to the memory."""
    if name not in _FLOAT:
        return form.dtype(*_TYPES[name]), _TABLE[name]
    halves = form.has("noftz")
    if count > 1:
        dtype = form.dtype(*_HALVES) if halves or name != "add" else form.dtype("f32")
    else:
        dtype = form.dtype(*(_HALVES if halves else _TYPES[name]))
    if not dtype.is_float:
        return dtype, _INTEGER[name]
    if dtype.name == "f32" and name == "add" and space != "shared":
        # The manual, "red": in global memory denormals are flushed, of what is added and of sums.
        return dtype, lambda old, a: ieee.flush(ieee.add(ieee.flush(old), ieee.flush(a)))
    return dtype, packed(_FLOAT[name], dtype)


def _update(
    dtype: DType, operation: Operation, operands: list[list[Reader]], writers: list[Writer]
) -> Callable[[Active, np.ndarray, np.ndarray], None]:
    """Does the operation for one lane after the other, where they meet at one address."""
    kind = numpy_type(dtype)

    def update(active: Active, memory: np.ndarray, position: np.ndarray) -> None:
        count = len(position)
        words = memory.view(kind)
        order = slice(None)
        if active.lanes.generator is not None:
            order = active.lanes.generator.permutation(count)
        place = position[order]
        turns = _turns(place)
        for element in range(len(operands[0])):
            index = place // dtype.bytes + element
            values = [
                np.broadcast_to(readers[element](active), count)[order] for readers in operands
            ]
            before = np.empty(count, kind)
            for turn in turns:
                now, operands_now = index[turn], [value[turn] for value in values]
                with _ONE_AT_A_TIME:
                    old = words[now]
                    words[now] = operation(old, *operands_now)
                before[turn] = old
            if writers:
                answer = np.empty(count, kind)
                answer[order] = before
                writers[element](active, answer)

    return update


def _turns(position: np.ndarray) -> Sequence[slice | np.ndarray]:
    """Divides accesses into turns, in each of which all positions differ; order is kept."""
    by_place = np.argsort(position, kind="stable")
    ordered = position[by_place]
    if np.count_nonzero(ordered[1:] == ordered[:-1]) == 0:
        return [slice(None)]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(starts, append=len(position))
    turn = np.empty(len(position), np.int64)
    turn[by_place] = np.arange(len(position)) - np.repeat(starts, lengths)
    by_turn = np.argsort(turn, kind="stable")
    return np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])
