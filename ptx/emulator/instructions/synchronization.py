"""Barriers, fences and calls. Source: PTX ISA, "Parallel Synchronization Instructions", "call"."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.emulator.errors import EmulatorError
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.instructions.warps import membermask
from ptx.emulator.lanes import Active, Step
from ptx.emulator.syntax import Instruction, Symbol
from ptx.isa.dtypes import u32

__all__ = ["BarrierWait", "barrier_wait"]


@dataclasses.dataclass(frozen=True)
class BarrierWait:
    """`bar.sync` and its like, at which lanes wait.

    Attributes:
      instruction: for messages.
      barrier: number of the barrier.
      threads: the number of threads that it waits for; None: all of the block.
      aligned: whether all threads of a warp have to come together.
    """

    instruction: Instruction
    barrier: Reader
    threads: Reader | None
    aligned: bool

    def wait(self, active: Active) -> None:
        """Lets the active lanes wait."""
        threads = None if self.threads is None else self.threads(active).astype(np.int64)
        number = self.barrier(active).astype(np.int64)
        active.lanes.barriers.wait(self.instruction, active, number, threads, self.aligned)


def barrier_wait(form: Form) -> BarrierWait | None:
    """Compiles an instruction at which lanes wait for others; None if it is none."""
    name = form.instruction
    if name.opcode not in ("bar", "barrier") or "sync" not in name.modifiers:
        return None
    if "warp" in name.modifiers:
        return None
    form.has("sync")
    form.has("cta")
    aligned = form.has("aligned") or name.opcode == "bar"
    threads = form.read(1, u32) if len(form.operands) > 1 else None
    return BarrierWait(name, form.read(0, u32), threads, aligned)


@instruction("bar", "barrier")
def _bar(form: Form) -> Step:
    if form.has("warp"):
        return _bar_warp(form)
    form.has("cta")
    form.has("aligned")
    form.choice("arrive")
    barrier, count = form.read(0, u32), form.read(1, u32)

    def step(active: Active) -> None:
        number, threads = (read(active).astype(np.int64) for read in (barrier, count))
        active.lanes.barriers.arrive(form.instruction, active, number, threads)

    return step


@instruction("membar", "fence")
def _fence(form: Form) -> Step:
    form.has("acq_rel", "sc", "acquire", "release")
    form.choice("cta", "gl", "gpu", "sys", "cluster")
    return lambda active: None


@instruction("nanosleep")
def _nanosleep(form: Form) -> Step:
    form.dtype("u32")
    form.read(0, u32)
    return lambda active: None


@instruction("griddepcontrol")
def _griddepcontrol(form: Form) -> Step:
    form.choice("launch_dependents", "wait")
    return lambda active: None


@instruction("trap")
def _trap(form: Form) -> Step:
    return lambda active: active.fail(EmulatorError, form.instruction, None, "trap")


@instruction("call")
def _call(form: Form) -> Step:
    """The variables of the function hold nothing when it starts; see `ptx.emulator.inline`."""
    form.has("uni")
    names = [item.name for item in form.items(0) if isinstance(item, Symbol)]
    return lambda active: active.lanes.local.forget(active, names)


def _bar_warp(form: Form) -> Step:
    form.choice("sync")
    members = membermask(form, 0)

    def step(active: Active) -> None:
        members(active)
        active.lanes.clocks.meet(np.unique(active.warp))

    return step
