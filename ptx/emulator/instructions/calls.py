"""Calls, of which the functions stand in line. Source: PTX ISA, "call"."""

from __future__ import annotations

from ptx.emulator.form import Form
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import Step
from ptx.emulator.syntax import Symbol

__all__: list[str] = []


@instruction("call")
def _call(form: Form) -> Step:
    """The variables of the function hold nothing when it starts; see `ptx.emulator.inline`."""
    form.has("uni")
    names = [item.name for item in form.items(0) if isinstance(item, Symbol)]
    if not names:
        return lambda active: None
    return lambda active: active.lanes.local.forget(active, names)
