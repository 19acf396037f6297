"""A PTX module as values: kernels, instructions, operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ptx.isa.dtypes import DType

__all__ = [
    "Address",
    "Code",
    "FloatLiteral",
    "FunctionSource",
    "Instruction",
    "IntegerLiteral",
    "KernelSource",
    "Module",
    "ModuleVariable",
    "Operand",
    "Pair",
    "Parameter",
    "Reference",
    "Register",
    "Sink",
    "Symbol",
    "Variable",
    "Vector",
]


@dataclasses.dataclass(frozen=True)
class Register:
    """A register; `index` counts those of the kernel or function, of all scopes and types."""

    name: str
    index: int
    dtype: DType
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class IntegerLiteral:
    value: int


@dataclasses.dataclass(frozen=True)
class FloatLiteral:
    """A floating-point constant: the bits of a value of `width` 32 or 64 bits."""

    bits: int
    width: int


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A label, a special register, a parameter or a variable, plus a constant."""

    name: str
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Sink:
    """The operand `_`: a result to discard."""


@dataclasses.dataclass(frozen=True)
class Vector:
    """Operands in braces."""

    items: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two results, as in `%p1|%p2`."""

    first: Operand
    second: Operand


@dataclasses.dataclass(frozen=True)
class Address:
    """An operand in brackets: a base plus a constant number of bytes."""

    base: Register | Symbol | None
    offset: int


Operand = Register | IntegerLiteral | FloatLiteral | Symbol | Sink | Vector | Pair | Address


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      opcode: the name up to the first dot.
      modifiers: the rest of the name, without the dots.
      operands: in the order of the text; the carry flag, where it takes part, after them.
      guard: the predicate of `@%p` or `@!%p`, or None.
      line: line of the text, from 1.
      text: the instruction as written.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: `count` values of a type, one after the other."""

    name: str
    dtype: DType
    count: int = 1

    @property
    def size(self) -> int:
        """Bytes."""
        return self.dtype.bytes * self.count


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of a kernel or function; `size` is None for dynamic shared memory (`.extern`)."""

    name: str
    size: int | None
    alignment: int


@dataclasses.dataclass(frozen=True)
class Reference:
    """Eight bytes of a variable that hold the address of another.

    Attributes:
      position: the position of the first of these bytes.
      name: the other variable's name.
      addend: bytes that are added to its address.
      generic: whether it is a generic address, not one of the variable's own space.
    """

    position: int
    name: str
    addend: int
    generic: bool


@dataclasses.dataclass(frozen=True)
class ModuleVariable:
    """A variable of the module, which all kernels share.

    Attributes:
      name: the variable's name.
      space: "global" or "const".
      alignment: the alignment of its address, in bytes.
      data: its initial bytes, with zeros where there are references.
      references: addresses in it.
    """

    name: str
    space: str
    alignment: int
    data: bytes
    references: tuple[Reference, ...]


@dataclasses.dataclass
class Code:
    """What stands between the braces of a kernel or a device function.

    Attributes:
      name: the name of the kernel or function.
      line: the line of its `.entry` or `.func`.
      registers: all registers; `Register.index` indexes it.
      shared: its variables in shared memory, those of the module first.
      local: its variables of which each thread has its own: `.local` and `.param`.
      instructions: in the order of the text.
      labels: label -> index of the instruction that it stands before.
    """

    name: str
    line: int
    registers: list[Register] = dataclasses.field(default_factory=list)
    shared: list[Variable] = dataclasses.field(default_factory=list)
    local: list[Variable] = dataclasses.field(default_factory=list)
    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class KernelSource(Code):
    """One `.entry`.

    Attributes:
      parameters: in order.
      limits: `.maxntid`, `.reqntid` and so on, by name without the dot.
    """

    parameters: list[Parameter] = dataclasses.field(default_factory=list)
    limits: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class FunctionSource(Code):
    """One `.func` with a body.

    Attributes:
      results: the variables that it returns; these and `arguments` are among `local`.
      arguments: the variables that it is called with.
    """

    results: list[Variable] = dataclasses.field(default_factory=list)
    arguments: list[Variable] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Module:
    """A PTX text as values.

    Attributes:
      target: as written, for example "sm_80".
      kernels: in the order of the text.
      functions: the functions with a body, by name.
      variables: the variables outside kernels and functions, except shared ones.
    """

    target: str
    kernels: Sequence[KernelSource]
    functions: Mapping[str, FunctionSource]
    variables: Sequence[ModuleVariable]
