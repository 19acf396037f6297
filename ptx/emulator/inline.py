"""Device functions in place of their calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ptx.emulator.errors import ParseError
from ptx.emulator.syntax import (
    Address,
    Code,
    FunctionSource,
    Instruction,
    KernelSource,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)

__all__ = ["inlined"]


def inlined(kernel: KernelSource, functions: Mapping[str, FunctionSource]) -> KernelSource:
    """A kernel without calls: what the functions do stands where they are called.

    Each call has registers and local variables of its own. In its place stays a `call` whose one
    operand names the variables that hold nothing at the start of the function; arguments and
    results are the variables that the caller names. A call that says that an assertion has failed
    is a trap.

    Raises:
      ParseError: a call through a register, of a function that has no body, with other arguments
        than it takes, or of a function that is being called already: recursion.
    """
    if not any(instruction.opcode == "call" for instruction in kernel.instructions):
        return kernel
    return _Inliner(kernel, functions).kernel


class _Inliner:
    """Copies instructions into one kernel.

    Attributes:
      kernel: the copied code.
    """

    def __init__(self, kernel: KernelSource, functions: Mapping[str, FunctionSource]):
        self.kernel = dataclasses.replace(
            kernel, registers=[], local=[], instructions=[], labels={}, shared=list(kernel.shared)
        )
        self._functions, self._calls = functions, 0
        self._variables: dict[str, Variable] = {}  # by their names in the kernel
        self._copy(kernel, self._declare(kernel, {}, ""), "", ())

    def _declare(self, code: Code, known: dict[str, str], suffix: str) -> dict[str, str]:
        """Adds the variables of `code`, but for those that are `known` by another name."""
        names = dict(known)
        for variable in code.local:
            if variable.name not in names:
                names[variable.name] = variable.name + suffix
                self._variables[variable.name + suffix] = variable
                self.kernel.local.append(dataclasses.replace(variable, name=names[variable.name]))
        if isinstance(code, FunctionSource):
            have = {variable.name for variable in self.kernel.shared}
            self.kernel.shared.extend(v for v in code.shared if v.name not in have)
        return names

    def _copy(self, code: Code, names: dict[str, str], suffix: str, stack: tuple[str, ...]) -> None:
        """Adds the instructions of `code`.

        Args:
          code: a kernel or a function.
          names: the names of its local variables in the kernel.
          suffix: the suffix of its labels in the kernel.
          stack: names of the functions that are being called.
        """
        registers = [
            dataclasses.replace(register, index=len(self.kernel.registers) + i)
            for i, register in enumerate(code.registers)
        ]
        self.kernel.registers.extend(registers)
        positions: list[int] = []
        for instruction in code.instructions:
            positions.append(len(self.kernel.instructions))
            opcode, guard = instruction.opcode, instruction.guard
            if opcode == "bra":
                label = instruction.operands[0]
                operands = (Symbol(label.name + suffix) if isinstance(label, Symbol) else label,)
            elif opcode == "ret" and stack:
                opcode, operands = "bra", (Symbol(_RETURN + suffix),)
            else:
                operands = tuple(_map(o, registers, names) for o in instruction.operands)
            if guard is not None:
                guard = dataclasses.replace(registers[guard.index], negated=guard.negated)
            instruction = dataclasses.replace(
                instruction, opcode=opcode, operands=operands, guard=guard
            )
            if instruction.opcode == "call":
                self._call(instruction, stack)
            else:
                self.kernel.instructions.append(instruction)
        positions.append(len(self.kernel.instructions))
        for label, index in code.labels.items():
            self.kernel.labels[label + suffix] = positions[index]
        if stack:
            self.kernel.labels[_RETURN + suffix] = positions[-1]

    def _call(self, call: Instruction, stack: tuple[str, ...]) -> None:
        results, name, arguments = self._parts(call)
        if name == _ASSERTION:
            trap = dataclasses.replace(call, opcode="trap", modifiers=(), operands=())
            self.kernel.instructions.append(trap)
            return
        function = self._functions.get(name)
        if function is None:
            raise self._error(call, f"function {name} has no body here")
        if name in stack:
            raise self._error(call, f"function {name} calls itself: recursion is not supported")
        self._calls += 1
        suffix = f"@{name}@{self._calls}"
        known = self._matched(call, function.results, results)
        known |= self._matched(call, function.arguments, arguments)
        names = self._declare(function, known, suffix)
        if call.guard is not None:
            skip = dataclasses.replace(call.guard, negated=not call.guard.negated)
            over = dataclasses.replace(
                call, opcode="bra", modifiers=(), operands=(Symbol(_OVER + suffix),), guard=skip
            )
            self.kernel.instructions.append(over)
        unwritten = [names[v.name] for v in function.local if v not in function.arguments]
        variables = Vector(tuple(Symbol(variable) for variable in unwritten))
        self.kernel.instructions.append(
            dataclasses.replace(call, operands=(variables,), guard=None)
        )
        self._copy(function, names, suffix, (*stack, name))
        self.kernel.labels[_OVER + suffix] = len(self.kernel.instructions)

    def _parts(self, call: Instruction) -> tuple[Operand | None, str, Operand | None]:
        """Results, name and arguments of a call."""
        operands = list(call.operands)
        results = operands.pop(0) if operands and isinstance(operands[0], Vector) else None
        name, arguments = (*operands, None, None)[:2]
        if not isinstance(name, Symbol) or len(operands) > 2:
            raise self._error(call, "only calls by name are supported")
        return results, name.name, arguments

    def _matched(
        self, call: Instruction, formal: list[Variable], actual: Operand | None
    ) -> dict[str, str]:
        """The caller's variables for a function's results or arguments."""
        items = actual.items if isinstance(actual, Vector) else ()
        if len(items) != len(formal):
            raise self._error(call, f"{len(formal)} .param variables are expected")
        names = {}
        for variable, item in zip(formal, items, strict=True):
            given = self._variables.get(item.name) if isinstance(item, Symbol) else None
            if given is None or not isinstance(item, Symbol):
                raise self._error(call, "results and arguments have to be .param variables")
            if given.size != variable.size:
                raise self._error(call, f"{item.name} has not the size of {variable.name}")
            names[variable.name] = item.name
        return names

    def _error(self, call: Instruction, message: str) -> ParseError:
        return ParseError(message, kernel=self.kernel.name, line=call.line, text=call.text)


_RETURN, _OVER = "return", "over"  # labels at the end of a function, and after a call
_ASSERTION = "__assertfail"  # a function of the driver, which an assertion calls that fails


def _map(operand: Operand, registers: list[Register], names: Mapping[str, str]) -> Operand:
    """An operand with the kernel's registers and variables for those of the function."""
    match operand:
        case Register(index=index, negated=negated):
            return dataclasses.replace(registers[index], negated=negated)
        case Symbol(name, offset):
            return Symbol(names.get(name, name), offset)
        case Address(Register() | Symbol() as base, offset):
            mapped = _map(base, registers, names)
            assert isinstance(mapped, Register | Symbol)
            return Address(mapped, offset)
        case Vector(items):
            return Vector(tuple(_map(item, registers, names) for item in items))
        case Pair(first, second):
            return Pair(_map(first, registers, names), _map(second, registers, names))
        case _:
            return operand
