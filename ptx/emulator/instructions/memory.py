"""Loads, stores and prefetches. Source: PTX ISA, "ld", "st", "prefetch"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.errors import OutOfBoundsError
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import UNSIGNED, Lanes, Selection, Step
from ptx.emulator.memory import SHARED_WINDOW
from ptx.emulator.syntax import Address, Symbol
from ptx.isa.dtypes import DType

__all__ = ["at_addresses", "ordering", "state_space"]

_TYPES = (
    *("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64"),
    *("f32", "f64"),
)
_STRONG = ("volatile", "relaxed", "acquire", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys")


@instruction("ld", "ldu")
def _ld(form: Form) -> Step:
    if form.has("param", "param::entry"):
        return _ld_param(form)
    access, space, dtype, count = _prepare(form, Kind.READ)
    items = form.items(0, count)
    address = form.address(1)
    writers = [form.write(item, dtype, wider=True) for item in items]
    kind, size = UNSIGNED[dtype.bits], dtype.bytes

    def load(lanes: Lanes, active: Selection, memory: np.ndarray, position: np.ndarray) -> None:
        words, index = memory.view(kind), position // size
        for i, write in enumerate(writers):
            write(lanes, active, words[index + i] if i else words[index])

    return at_addresses(space, access, address, load)


@instruction("st")
def _st(form: Form) -> Step:
    access, space, dtype, count = _prepare(form, Kind.WRITE)
    items = form.items(1, count)
    address = form.address(0)
    readers = [form.read(item, dtype, wider=True) for item in items]
    kind, size = UNSIGNED[dtype.bits], dtype.bytes

    def store(lanes: Lanes, active: Selection, memory: np.ndarray, position: np.ndarray) -> None:
        words, index = memory.view(kind), position // size
        for i, read in enumerate(readers):
            words[index + i] = read(lanes, active).view(kind)

    return at_addresses(space, access, address, store)


@instruction("prefetch", "prefetchu")
def _prefetch(form: Form) -> Step:
    form.has("global")
    form.skip_cache_hints()
    form.address(0)
    return lambda lanes, active: None


def state_space(form: Form) -> str:
    """The space that the instruction names: "shared" or "global"; else "generic"."""
    space = form.choice("shared", "shared::cta", "global", default="generic")
    return space.removesuffix("::cta")


def ordering(form: Form) -> bool:
    """Takes `.relaxed.gpu` and the like; tells whether there was any."""
    strong = form.has(*_STRONG)
    form.has(*_SCOPES)
    return strong


Action = Callable[[Lanes, Selection, np.ndarray, np.ndarray], None]


def at_addresses(space: str, access: Access, address: Reader, action: Action) -> Step:
    """A step that checks the access, then does `action` with the memory and the positions.

    Args:
      space: "shared", "global", or "generic" where each address tells.
      access: what the instruction does.
      address: reads the addresses.
      action: called with lanes, active lanes, bytes of the memory, and positions in them.
    """

    def step(lanes: Lanes, active: Selection) -> None:
        where = address(lanes, active)
        if space != "generic":
            run(lanes, active, where, space == "shared")
            return
        shared = where >= SHARED_WINDOW
        if shared.all() or not shared.any():
            run(lanes, active, where & (SHARED_WINDOW - 1), bool(shared[0]))
            return
        for mask in (shared, ~shared):
            part = where[mask] & (SHARED_WINDOW - 1)
            run(lanes, lanes.subset(active, mask), part, bool(mask is shared))

    def run(lanes: Lanes, active: Selection, where: np.ndarray, shared: bool) -> None:
        memory = lanes.shared if shared else lanes.global_memory
        position = memory.locate(lanes, active, where, access)
        action(lanes, active, memory.bytes, position)

    return step


def _prepare(form: Form, kind: Kind) -> tuple[Access, str, DType, int]:
    """Access, space, type of an element, and number of elements of a load or store."""
    dtype, space = form.dtype(*_TYPES), state_space(form)
    count = int(form.choice("v2", "v4", "v8", default="v1")[1])
    strong = ordering(form)
    constant = kind is Kind.READ and (form.has("nc") or form.instruction.opcode == "ldu")
    form.skip_cache_hints()
    width = dtype.bytes * count
    if width > 32 or (width > 16 and space != "global"):
        form.unknown(f"{width} bytes")
    form.program.accesses(space, width)
    access = Access(form.instruction, kind, width, width, strong, constant)
    return access, space, dtype, count


def _ld_param(form: Form) -> Step:
    dtype = form.dtype(*_TYPES)
    address = form.operand(1)
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        form.unknown("a parameter is expected in the brackets")
    name, instruction = address.base.name, form.instruction
    declared = {p.name: p.dtype for p in form.program.source.parameters}
    if name not in declared:
        form.unknown(f"{name} is no parameter of the kernel")
    inside = 0 <= address.offset <= declared[name].bytes - dtype.bytes
    start, write = address.offset, form.write(0, dtype, wider=True)
    kind = UNSIGNED[dtype.bits]
    if start % dtype.bytes:
        form.unknown(f"offset {start} is no multiple of {dtype.bytes}")

    def step(lanes: Lanes, active: Selection) -> None:
        if not inside:
            message = f"{dtype.bytes} bytes at byte {start} of parameter {name}"
            lanes.fail(OutOfBoundsError, instruction, active, None, message)
        data = lanes.parameters[name].view(np.uint8)[start : start + dtype.bytes]
        write(lanes, active, data.view(kind))

    return step
