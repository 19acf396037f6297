"""Barriers and fences. Source: PTX ISA, "Parallel Synchronization Instructions"."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.emulator.errors import EmulatorError
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.instructions.warps import require_members
from ptx.emulator.lanes import Active, Step
from ptx.emulator.syntax import Instruction
from ptx.isa.dtypes import u32

__all__ = ["BarrierWait", "barrier_wait"]


@dataclasses.dataclass(frozen=True)
class BarrierWait:
    """`bar.sync` and its like, at which lanes wait.

    Attributes:
      instruction: for messages.
      barrier: number of the barrier.
      threads: how many threads it waits for; None: all of the block.
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
    number, threads, instruction = form.read(0, u32), form.read(1, u32), form.instruction

    def step(active: Active) -> None:
        active.lanes.barriers.arrive(
            instruction, active, number(active).astype(np.int64), threads(active).astype(np.int64)
        )

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
    instruction = form.instruction
    return lambda active: active.fail(EmulatorError, instruction, None, "trap")


def _bar_warp(form: Form) -> Step:
    form.choice("sync")
    members, instruction = form.read(0, u32), form.instruction

    def step(active: Active) -> None:
        require_members(active, instruction, members(active))
        active.lanes.clocks.meet(np.unique(active.warp))

    return step
