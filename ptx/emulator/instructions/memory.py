"""Loads, stores and prefetches. Source: PTX ISA, "ld", "st", "prefetch"."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.errors import OutOfBoundsError
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import UNSIGNED, Active, Step
from ptx.emulator.memory import CONST_WINDOW, LOCAL_WINDOW, SHARED_WINDOW
from ptx.emulator.syntax import Address, Symbol
from ptx.isa.dtypes import DType

__all__ = ["SCOPES", "at_addresses", "ordering", "state_space"]

_TYPES = (
    *("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64"),
    *("f32", "f64"),
)
_STRONG = ("volatile", "relaxed", "acquire", "release")
SCOPES = ("cta", "cluster", "gpu", "sys")
_PARAMETERS = ("param", "param::entry", "param::func")
_MEMORIES = {
    "global": attrgetter("global_memory"),
    "const": attrgetter("global_memory"),
    "shared": attrgetter("shared"),
    "local": attrgetter("local"),
}
_WINDOW_SHIFT = LOCAL_WINDOW.bit_length() - 1  # above it a generic address has its window's number
_WINDOWS = {LOCAL_WINDOW >> _WINDOW_SHIFT: "local", SHARED_WINDOW >> _WINDOW_SHIFT: "shared"}


@instruction("ld", "ldu")
def _ld(form: Form) -> Step:
    if _of_kernel(form):
        return _ld_param(form)
    access, space, dtype, count = _prepare(form, Kind.READ)
    items = form.items(0, count)
    address = form.address(1)
    writers = [form.write(item, dtype, wider=True) for item in items]
    kind, shift = UNSIGNED[dtype.bits], dtype.bytes.bit_length() - 1

    def load(active: Active, memory: np.ndarray, position: np.ndarray) -> None:
        words, index = memory.view(kind), position >> shift
        for i, write in enumerate(writers):
            write(active, words[index + i] if i else words[index])

    return at_addresses(space, access, address, load)


@instruction("st")
def _st(form: Form) -> Step:
    access, space, dtype, count = _prepare(form, Kind.WRITE)
    items = form.items(1, count)
    address = form.address(0)
    readers = [form.read(item, dtype, wider=True) for item in items]
    kind, shift = UNSIGNED[dtype.bits], dtype.bytes.bit_length() - 1

    def store(active: Active, memory: np.ndarray, position: np.ndarray) -> None:
        words, index = memory.view(kind), position >> shift
        for i, read in enumerate(readers):
            words[index + i] = read(active).view(kind)

    return at_addresses(space, access, address, store)


@instruction("prefetch", "prefetchu")
def _prefetch(form: Form) -> Step:
    form.has("global")
    form.skip_cache_hints()
    form.address(0)
    return lambda active: None


def state_space(form: Form, *more: str) -> str:
    """The space that the instruction names: "shared", "global" or of `more`; else "generic"."""
    space = form.choice("shared", "shared::cta", "global", *more, default="generic")
    return space.removesuffix("::cta")


def ordering(form: Form) -> bool:
    """Takes `.relaxed.gpu` and the like; tells whether there was any."""
    strong = form.has(*_STRONG)
    form.has(*SCOPES)
    return strong


Action = Callable[[Active, np.ndarray, np.ndarray], None]


def at_addresses(space: str, access: Access, address: Reader, action: Action) -> Step:
    """A step that checks the access, then does `action` with the memory and the positions.

    Args:
      space: "shared", "global", "local", "const", or "generic" where each address tells.
      access: the instruction's access.
      address: reads the addresses.
      action: called with active lanes, bytes of the memory, and positions in them.
    """

    def run(active: Active, where: np.ndarray, name: str) -> None:
        memory = _MEMORIES[name](active.lanes)
        position = memory.locate(active, where, access)
        action(active, memory.bytes, position)

    def run_window(active: Active, where: np.ndarray, number: int) -> None:
        if number in _WINDOWS:
            run(active, where & (LOCAL_WINDOW - 1), _WINDOWS[number])
        else:
            run(active, where, "global")

    def at_generic(active: Active) -> None:
        where = address(active)
        window = where >> _WINDOW_SHIFT
        if (window == window[0]).all():
            run_window(active, where, int(window[0]))
            return
        for number in np.unique(window):
            mask = window == number
            run_window(active.subset(mask), where[mask], int(number))

    if space == "generic":
        return at_generic
    if space == "const":
        return lambda active: run(active, address(active) ^ CONST_WINDOW, space)
    return lambda active: run(active, address(active), space)


def _prepare(form: Form, kind: Kind) -> tuple[Access, str, DType, int]:
    """Access, space, type of an element, and number of elements of a load or store."""
    dtype = form.dtype(*_TYPES)
    if form.has(*_PARAMETERS):  # of a device function: each thread has its own
        space = "local"
    else:
        space = state_space(form, "local", *(("const",) if kind is Kind.READ else ()))
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


def _of_kernel(form: Form) -> bool:
    """Whether the instruction reads a parameter of the kernel; if so, its space is taken."""
    if not set(_PARAMETERS) & set(form.instruction.modifiers):
        return False
    address = form.operand(1)
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        form.unknown("a parameter is expected in the brackets")
    name = address.base.name
    if name in form.program.local_layout.offsets:
        return False
    if all(name != parameter.name for parameter in form.program.source.parameters):
        form.unknown(f"{name} is not a parameter of the kernel")
    return form.has(*_PARAMETERS)


def _ld_param(form: Form) -> Step:
    dtype = form.dtype(*_TYPES)
    count = int(form.choice("v2", "v4", "v8", default="v1")[1])
    address = form.operand(1)
    assert isinstance(address, Address)
    assert isinstance(address.base, Symbol)
    name, start, width = address.base.name, address.offset, dtype.bytes * count
    (size,) = (p.size for p in form.program.source.parameters if p.name == name)
    writers = [form.write(item, dtype, wider=True) for item in form.items(0, count)]
    kind = UNSIGNED[dtype.bits]
    if start % width:
        form.unknown(f"offset {start} is not a multiple of {width}")

    def step(active: Active) -> None:
        if not 0 <= start <= size - width:
            message = f"{width} bytes at byte {start} of parameter {name}"
            active.fail(OutOfBoundsError, form.instruction, None, message)
        data = active.lanes.parameters[name].view(np.uint8)[start : start + width].view(kind)
        for i, write in enumerate(writers):
            write(active, data[i : i + 1])

    return step
