"""A kernel made ready to run: its instructions as steps, in basic blocks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Iterator

from ptx.emulator.errors import ParseError, UninitializedError
from ptx.emulator.flow import BasicBlock, basic_blocks, definitions
from ptx.emulator.form import Form, Reader
from ptx.emulator.inline import inlined
from ptx.emulator.instructions import BarrierWait, barrier_wait, compile_instruction
from ptx.emulator.lanes import Active, Step
from ptx.emulator.memory import VariableLayout
from ptx.emulator.parse import parse
from ptx.emulator.syntax import KernelSource, Module, Symbol
from ptx.isa.dtypes import pred

__all__ = ["CompiledBlock", "Program", "load"]


@functools.lru_cache(maxsize=32)  # a program of 3,000 lines is large
def load(text: str, kernel: str | None) -> Program:
    """Compiles one kernel of a PTX module.

    Args:
      text: the module.
      kernel: name of the kernel; None for the only one.

    Raises:
      ParseError: the text is not PTX, or holds what the emulator does not have.
      UnknownInstructionError: an instruction that it does not have.
      ValueError: the module has no such kernel, or `kernel` is None and it has several.
    """
    with _without_collection():
        module = parse(text)
        if not module.kernels:
            raise ParseError("the text has no .entry")
        names = [source.name for source in module.kernels]
        if kernel is None and len(names) == 1:
            kernel = names[0]
        if kernel not in names:
            raise ValueError(f"{kernel=}: the module has the kernels {', '.join(names)}")
        return Program(module, module.kernels[names.index(kernel)])


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage among many new objects of which none is.

    It would do so again and again, and that takes longer than all else.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclasses.dataclass(frozen=True)
class CompiledBlock(BasicBlock):
    """A basic block that can run.

    Attributes:
      steps: its steps, without the branch or barrier at its end.
      barrier: the barrier that it ends in, or None.
      guard: the lanes that branch or wait; None: all.
    """

    steps: tuple[Step, ...]
    barrier: BarrierWait | None
    guard: Reader | None


class Program:
    """A compiled kernel.

    Attributes:
      source: the parsed kernel, without calls.
      target: the module's `.target`.
      layout: the layout of its shared variables.
      local_layout: the layout of each thread's own variables.
      variables: the module's variables.
      spaces: the spaces of these variables, by name.
      blocks: its basic blocks. Lanes in lower ones run first; `len(blocks)` is the end.
      tracked: registers that some way through the kernel reads before it writes them. Their use
        is checked while the kernel runs; all others are written on every way to every use.
      guarded: instructions with a predicate, branches and barriers apart.
      granule: bytes of the narrowest access, by space: what races are looked for in.
    """

    def __init__(self, module: Module, kernel: KernelSource):
        self.source, self.target = inlined(kernel, module.functions), module.target
        self.layout = VariableLayout("shared", self.source.shared)
        self.local_layout = VariableLayout("local", self.source.local)
        self.variables = module.variables
        self.spaces = {variable.name: variable.space for variable in module.variables}
        self.granule = {"shared": 16, "global": 16}
        self._forms: list[Form] = []
        self._guards: list[Reader | None] = []
        self._steps: dict[int, Step] = {}
        self._barriers: dict[int, BarrierWait] = {}
        self._targets: dict[int, int] = {}
        for index in range(len(self.source.instructions)):
            self._compile(index)
        conditional = {index for index in self._targets if self._guards[index]}
        flow = basic_blocks(
            len(self.source.instructions), self._targets, conditional, set(self._barriers)
        )
        self.guarded = {index for index in self._steps if self._guards[index]}
        self._undefined: dict[int, set[int]] = {}
        entry = definitions(
            flow, [self._surely_written(index) for index in range(len(self._forms))]
        )
        for block, defined in zip(flow, entry, strict=True):
            for index in range(block.start, block.stop):
                if missing := {r for r in self._forms[index].reads if not defined >> r & 1}:
                    self._undefined[index] = missing
                defined |= self._surely_written(index)
        self.tracked: set[int] = set().union(*self._undefined.values())
        self.blocks = [self._compiled(block) for block in flow]

    def accesses(self, space: str, width: int) -> None:
        """Takes note that the kernel accesses `width` bytes of a space, or of "generic"."""
        for name in self.granule:
            if space in (name, "generic"):
                self.granule[name] = min(self.granule[name], width)

    def _compile(self, index: int) -> None:
        instruction = self.source.instructions[index]
        form = Form(instruction, self)
        self._forms.append(form)
        self._guards.append(form.read(instruction.guard, pred) if instruction.guard else None)
        if instruction.opcode == "bra":
            form.has("uni")
            label = form.operand(0)
            if not isinstance(label, Symbol) or label.name not in self.source.labels:
                form.unknown("a branch needs a label of this kernel")
            self._targets[index] = self.source.labels[label.name]
        elif instruction.opcode in ("ret", "exit"):
            form.has("uni")
            self._targets[index] = len(self.source.instructions)
        elif wait := barrier_wait(form):
            self._barriers[index] = wait
        else:
            self._steps[index] = compile_instruction(form)
        form.finish()

    def _compiled(self, block: BasicBlock) -> CompiledBlock:
        indices = range(block.start, block.stop)
        last = block.stop - 1 if indices else -1
        return CompiledBlock(
            **vars(block),
            steps=tuple(step for index in indices for step in self._complete(index)),
            barrier=self._barriers.get(last),
            guard=self._guards[last] if last in self._targets or last in self._barriers else None,
        )

    def _surely_written(self, index: int) -> int:
        if self._guards[index] is not None:
            return 0
        return sum(1 << register for register in self._forms[index].writes)

    def _complete(self, index: int) -> list[Step]:
        """The step of an instruction with its guard and the checks of its registers."""
        form, guard, missing = self._forms[index], self._guards[index], self._undefined.get(index)
        steps, checks = [], []
        if missing:
            used = form.instruction.guard
            of_guard = {used.index} & missing if used else set()
            checks = [self._check_defined(form, of_guard)] if of_guard else []
            if missing - of_guard:
                steps.append(self._check_defined(form, missing - of_guard))
        if index in self._steps:
            steps.append(self._steps[index])
        if marked := form.writes & self.tracked:
            steps.append(_mark_defined(marked))
        if guard is None or not steps:
            return checks + steps
        count = index if index in self.guarded else None
        return [*checks, _guarded(steps, guard, count)]

    def _check_defined(self, form: Form, registers: set[int]) -> Step:
        names = {index: self.source.registers[index].name for index in registers}

        def step(active: Active) -> None:
            if active.lanes.lenient:
                return
            for index, name in names.items():
                defined = active.lanes.defined[index][active.selection]
                if not defined.all():
                    message = f"register {name} is read before it is written"
                    active.fail(UninitializedError, form.instruction, ~defined, message)

        return step


def _mark_defined(registers: set[int]) -> Step:
    def step(active: Active) -> None:
        for index in registers:
            active.lanes.defined[index][active.selection] = True

    return step


def _guarded(steps: list[Step], guard: Reader, count: int | None) -> Step:
    """The steps for the lanes where `guard` is true; `count`: the instruction to count."""

    def guarded(active: Active) -> None:
        mask = guard(active)
        if not mask.all():
            if not mask.any():
                return
            active = active.subset(mask)
        if count is not None:
            active.lanes.report.count_guarded(count, active.size)
        for step in steps:
            step(active)

    return guarded
