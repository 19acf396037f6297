"""The plans of a call that are worth timing: those that can be launched, eight at most."""

import dataclasses
import time
from typing import Any

from oxijax._core.calls.kernel_call import KernelCall
from oxijax._core.calls.variations import variations
from oxijax._core.tuning.operands import random_operands
from ptx.devices import find_data_sheet
from ptx.isa.assembler import AssemblyError, ToolNotFoundError, assemble, find_ptxas
from ptx.isa.sass import find_nvdisasm
from ptx.launch import Launch
from ptx.model import model
from ptx.replay import MACHINES, Machine
from ptx.replay.warps import TraceError

__all__ = ["MOST", "Candidate", "candidates", "launch_of"]

MOST = 8  # candidates of a call
_MODEL_SECONDS = 40.0  # for the candidates of one call
_MODEL_BYTES = 2**30  # of a call's arrays, which the model has in the host's memory


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A plan that a kernel can be launched with.

    Attributes:
      plan: the plan.
      launch: the kernel's launch with it.
      modelled_us: microseconds by `ptx.model`; None where it was not asked.
    """

    plan: Any
    launch: Launch
    modelled_us: float | None = None


def candidates(call: KernelCall) -> list[Candidate]:
    """The kernel's own choice first, then those that the model finds fastest.

    The model takes seconds for each, and has `_MODEL_SECONDS`. It is not asked without a simulated
    machine for the GPU, without ptxas or without nvdisasm, nor of a kernel whose machine code it
    cannot follow. What it says nothing of comes last, in the order of `variations`.

    Raises:
      ValueError: the kernel cannot be launched with the plan that it chooses.
    """
    own, *others = variations(call)
    found = [Candidate(own, call.kernel.launch(call.config, call.target, call.shapes, plan=own))]
    for plan in others:
        launch = launch_of(call, plan)
        if launch is not None and launch not in [candidate.launch for candidate in found]:
            found.append(Candidate(plan, launch))
    first, *rest = _modelled(call, found)
    rest.sort(key=lambda c: float("inf") if c.modelled_us is None else c.modelled_us)
    return [first, *rest[: MOST - 1]]


def launch_of(call: KernelCall, plan: Any) -> Launch | None:
    """The launch of a call with one of its variations; None where there is none.

    There is none where the kernel cannot be written so, where a block would need more shared memory
    than it can have, and, if there is a ptxas to ask, where registers would be spilled.
    """
    try:
        launch = call.kernel.launch(call.config, call.target, call.shapes, plan=plan)
    except (AssertionError, ValueError):
        return None
    try:
        (assembled,) = assemble(launch.text, call.target).values()
    except ToolNotFoundError:
        return launch
    except AssemblyError:
        return None
    return None if assembled.spills else launch


def _modelled(call: KernelCall, found: list[Candidate]) -> list[Candidate]:
    """The same with modelled times, as many as there is time for."""
    machine, size = _machine(call), call.kernel.moved_bytes(call.config, call.instance.shapes)
    if machine is None or size > _MODEL_BYTES or len(found) == 1:
        return found
    end, result = time.monotonic() + _MODEL_SECONDS, []
    for candidate in found:
        if time.monotonic() < end:
            candidate = dataclasses.replace(candidate, modelled_us=_us(call, candidate, machine))
        result.append(candidate)
        if result[0].modelled_us is None:
            return found  # nor will it follow the others
    return result


def _us(call: KernelCall, candidate: Candidate, machine: Machine) -> float | None:
    operands, shapes = random_operands(call), call.instance.shapes
    try:
        modelled = model(call.kernel, call.config, operands, shapes, machine, plan=candidate.plan)
    except (TraceError, ValueError):
        return None  # machine code that the model cannot follow
    return modelled.us


def _machine(call: KernelCall) -> Machine | None:
    """The simulated GPU; None where there is none, or a tool is missing."""
    sheet = find_data_sheet(call.gpu)
    machine = None if sheet is None else MACHINES.get(sheet.name)
    if machine is None or machine.target is not call.target:
        return None
    try:
        find_ptxas()
        find_nvdisasm()
    except ToolNotFoundError:
        return None
    return machine
