"""A PTX module as values: kernels, instructions, operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ptx.isa.dtypes import DType

__all__ = [
    "Address",
    "FloatLiteral",
    "Instruction",
    "IntegerLiteral",
    "KernelSource",
    "Module",
    "Operand",
    "Pair",
    "Parameter",
    "Register",
    "SharedVariable",
    "Sink",
    "Symbol",
    "Vector",
]


@dataclasses.dataclass(frozen=True)
class Register:
    """A register; `index` counts the registers of the kernel, of all scopes and types."""

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
    """The operand `_`: a result that nobody wants."""


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
      modifiers: what follows, without the dots.
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
    name: str
    dtype: DType


@dataclasses.dataclass(frozen=True)
class SharedVariable:
    """A variable in shared memory; `size` is None for the dynamic one (`.extern`)."""

    name: str
    size: int | None
    alignment: int


@dataclasses.dataclass
class KernelSource:
    """One `.entry`.

    Attributes:
      name: of the kernel.
      line: of its `.entry`.
      parameters: in order.
      registers: all registers; `Register.index` indexes it.
      shared: its variables in shared memory, those of the module first.
      instructions: in the order of the text.
      labels: label -> index of the instruction that it stands before.
      limits: `.maxntid`, `.reqntid` and so on, by name without the dot.
    """

    name: str
    line: int
    parameters: list[Parameter] = dataclasses.field(default_factory=list)
    registers: list[Register] = dataclasses.field(default_factory=list)
    shared: list[SharedVariable] = dataclasses.field(default_factory=list)
    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    limits: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Module:
    """A PTX text: its target as written, for example "sm_80", and its kernels."""

    target: str
    kernels: Sequence[KernelSource]
