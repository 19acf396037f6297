"""Asynchronous copies from global to shared memory. Source: PTX ISA, "cp.async"."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.errors import OutOfBoundsError
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import Active, Step
from ptx.emulator.memory import SHARED_WINDOW
from ptx.emulator.states import chunks
from ptx.emulator.syntax import Register
from ptx.isa.dtypes import pred, u32


@instruction("cp")
def _cp(form: Form) -> Step:
    if not form.has("async"):
        form.unknown("only cp.async is known")
    if form.has("commit_group"):
        return lambda active: active.lanes.copies.commit(active)
    if form.has("wait_all"):
        return lambda active: active.lanes.copies.wait(active, None)
    if form.has("wait_group"):
        pending = form.constant(0)
        return lambda active: active.lanes.copies.wait(active, pending)
    return _copy(form)


def _copy(form: Form) -> Step:
    cache = form.choice("ca", "cg")
    form.skip_cache_hints()
    if not (form.has("shared", "shared::cta") and form.has("global")):
        form.unknown(".shared.global is expected")
    width = form.constant(2)
    if width not in ((16,) if cache == "cg" else (4, 8, 16)):
        form.unknown(f"{width} bytes")
    to, source = form.address(0), form.address(1)
    size = _source_size(form, width)
    form.program.accesses("shared", width)
    form.program.accesses("global", width)
    landing = Access(form.instruction, Kind.COPY, width, width)
    reading = Access(form.instruction, Kind.READ, width, width)

    def data_of(active: Active) -> np.ndarray:
        """What the active lanes read, with zeros after it: one element of `width` bytes each."""
        address = source(active)
        sizes = np.broadcast_to(size(active), len(address))
        if (sizes == width).all():
            position = active.lanes.global_memory.locate(active, address, reading)
            return chunks(active.lanes.global_memory.bytes, width)[position // width]
        if (sizes > width).any():
            message = f"source size of more than {width} bytes"
            active.fail(OutOfBoundsError, form.instruction, sizes > width, message)
        data = np.zeros((len(address), width), np.uint8)
        for count in np.unique(sizes[sizes > 0]):
            mask = sizes == count
            access = dataclasses.replace(reading, width=int(count))
            position = active.lanes.global_memory.locate(active.subset(mask), address[mask], access)
            data[mask, :count] = active.lanes.global_memory.bytes[
                position[:, None] + np.arange(count)
            ]
        return chunks(data, width)

    def step(active: Active) -> None:
        data = data_of(active)
        where = to(active) & (SHARED_WINDOW - 1)
        position = active.lanes.shared.locate(active, where, landing)
        active.lanes.copies.start(active, position, data, landing)

    return step


def _source_size(form: Form, width: int) -> Reader:
    """Bytes to read; zeros fill the rest. The operand is a size, or a predicate: none."""
    if len(form.operands) < 4:
        full = np.array([width], np.uint32)
        return lambda active: full
    operand = form.operands[3]
    if isinstance(operand, Register) and operand.dtype == pred:
        ignore = form.read(3, pred)
        return lambda active: np.where(ignore(active), np.uint32(0), np.uint32(width))
    return form.read(3, u32)
