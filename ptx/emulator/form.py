"""An instruction taken apart: modifiers, types, and operands as functions that read and write.

A function that compiles an instruction gets a `Form`, takes from it every modifier and operand
that the instruction has, and returns the step that executes it. What is not taken is a form
that the emulator does not know, and raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ptx.emulator.errors import UnknownInstructionError
from ptx.emulator.lanes import SPECIAL_REGISTERS, UNSIGNED, Active, Lanes, Step, numpy_type
from ptx.emulator.memory import CONST_WINDOW
from ptx.emulator.syntax import (
    Address,
    FloatLiteral,
    Instruction,
    IntegerLiteral,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Vector,
)
from ptx.isa.dtypes import DTYPES, DType, pred, u32

if TYPE_CHECKING:
    from ptx.emulator.program import Program

__all__ = ["Form", "Reader", "Writer", "elementwise"]

Reader = Callable[[Active], np.ndarray]
"""Gives the value of an operand for the active lanes: one element for each, or just one."""

Writer = Callable[[Active, np.ndarray], None]
"""Writes a result, of the operand's type, for the active lanes."""

_SINT = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


class Form:
    """One instruction while it is compiled.

    Attributes:
      instruction: the instruction.
      program: the program that it belongs to.
      operands: its operands; `operand` and the methods that read and write take from them.
      reads: registers that it reads.
      writes: registers that it writes.
    """

    def __init__(self, instruction: Instruction, program: Program):
        self.instruction, self.program = instruction, program
        self.operands = instruction.operands
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self._modifiers = list(instruction.modifiers)
        self._untaken = set(range(len(self.operands)))

    # ---- modifiers

    def has(self, *names: str) -> bool:
        """Whether the instruction has one of these modifiers, which are then taken."""
        found = [name for name in self._modifiers if name in names]
        for name in found:
            self._modifiers.remove(name)
        return bool(found)

    def choice(self, *names: str, default: str | None = None) -> str:
        """The one modifier out of `names` that the instruction has.

        Raises:
          UnknownInstructionError: it has none of them, and there is no default.
        """
        for name in self._modifiers:
            if name in names:
                self._modifiers.remove(name)
                return name
        if default is None:
            self.unknown(f"one of {', '.join('.' + name for name in names)} is expected")
        return default

    def dtype(self, *names: str) -> DType:
        """The type that the name ends in, which is then taken; one of `names`."""
        word = self._modifiers.pop() if self._modifiers else ""
        if word not in names:
            self.unknown(f"type .{word} where one of {', '.join(names)} is expected")
        return DTYPES[word]

    def skip_cache_hints(self) -> None:
        """Takes modifiers that change nothing but what stays in caches."""
        for name in list(self._modifiers):
            if name.split("::")[0] in ("L1", "L2") or name in ("ca", "cg", "cs", "lu", "cv", "wb"):
                self._modifiers.remove(name)
        self.has("wt")

    def finish(self) -> None:
        """Checks that nothing is left.

        Raises:
          UnknownInstructionError: a modifier or an operand is left.
        """
        if self._modifiers:
            self.unknown(f"modifier .{self._modifiers[0]}")
        if self._untaken:
            self.unknown(f"operand {min(self._untaken) + 1}")

    def unknown(self, what: str) -> NoReturn:
        raise UnknownInstructionError(
            f"{what}: no such form of {self.instruction.opcode}",
            kernel=self.program.source.name,
            line=self.instruction.line,
            text=self.instruction.text,
        )

    # ---- operands

    def operand(self, index: int) -> Operand:
        """The operand at `index`, which is then taken."""
        if index >= len(self.operands):
            self.unknown(f"{len(self.operands)} operands")
        self._untaken.discard(index)
        return self.operands[index]

    def items(self, index: int, count: int | None = None) -> tuple[Operand, ...]:
        """The items of a vector operand; of another operand, itself."""
        operand = self.operand(index)
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if count is not None and len(items) != count:
            self.unknown(f"{len(items)} registers where {count} are expected")
        return items

    def constant(self, index: int) -> int:
        """An operand that has to be an integer constant."""
        operand = self.operand(index)
        if not isinstance(operand, IntegerLiteral):
            self.unknown(f"operand {index + 1} is not an integer constant")
        return operand.value

    def read(self, operand: int | Operand, dtype: DType, *, wider: bool = False) -> Reader:
        """Reads an operand (or the one at an index) as `dtype`.

        Args:
          operand: the operand, or its index.
          dtype: its type.
          wider: whether a wider register will do, of which the low bits are taken.
        """
        if isinstance(operand, int):
            operand = self.operand(operand)
        if isinstance(operand, Register):
            return self._read_register(operand, dtype, wider)
        if isinstance(operand, Symbol):
            return self._read_symbol(operand, dtype)
        value = self._literal(operand, dtype)
        return lambda active: value

    def write(self, operand: int | Operand, dtype: DType, *, wider: bool = False) -> Writer:
        """Writes an operand as `dtype`; a wider register gets zeros or copies of the sign."""
        if isinstance(operand, int):
            operand = self.operand(operand)
        if isinstance(operand, Sink):
            return lambda active, value: None
        if not isinstance(operand, Register) or operand.negated:
            self.unknown("a register is expected for the result")
        self._check_width(operand, dtype, wider)
        self.writes.add(operand.index)
        index, bits = operand.index, operand.dtype.bits
        storage = UNSIGNED[bits]
        if bits == dtype.bits:

            def write(active: Active, value: np.ndarray) -> None:
                active.registers[index][active.selection] = value.view(storage)

        else:
            narrow = numpy_type(dtype) if dtype.kind == "signed" else UNSIGNED[dtype.bits]
            wide = _SINT[bits]

            def write(active: Active, value: np.ndarray) -> None:
                active.registers[index][active.selection] = (
                    value.view(narrow).astype(wide).view(storage)
                )

        return write

    def write_pair(self, index: int, dtype: DType, other: DType) -> tuple[Writer, Writer | None]:
        """Writers of `d|p`, or of `d` alone."""
        operand = self.operand(index)
        if isinstance(operand, Pair):
            return self.write(operand.first, dtype), self.write(operand.second, other)
        return self.write(operand, dtype), None

    def address(self, index: int) -> Reader:
        """The address, int64, one for each active lane, of an operand in brackets."""
        operand = self.operand(index)
        if not isinstance(operand, Address):
            self.unknown(f"operand {index + 1} is not an address")
        offset, base = operand.offset, operand.base
        if isinstance(base, Register):
            dtype = DTYPES[f"u{base.dtype.bits}"] if base.dtype.bits > 16 else u32
            register = self._read_register(base, dtype, False)
            if offset == 0:
                return lambda active: register(active).astype(np.int64)
            return lambda active: register(active).astype(np.int64) + offset
        if isinstance(base, Symbol):
            variable = self._variable(base)
            if callable(variable):
                return lambda active: np.full(
                    active.size, variable(active.lanes) + offset, np.int64
                )
            offset += variable

        def constant(active: Active) -> np.ndarray:
            return np.full(active.size, offset, np.int64)

        return constant

    # ---- the pieces

    def _read_register(self, register: Register, dtype: DType, wider: bool) -> Reader:
        self._check_width(register, dtype, wider)
        self.reads.add(register.index)
        index, kind = register.index, numpy_type(dtype)
        if register.negated:
            return lambda active: ~active.registers[index][active.selection]
        if register.dtype.bits != dtype.bits:
            narrow = UNSIGNED[dtype.bits]
            return lambda active: (
                active.registers[index][active.selection].astype(narrow).view(kind)
            )
        if kind is UNSIGNED[dtype.bits]:
            return lambda active: active.registers[index][active.selection]
        return lambda active: active.registers[index][active.selection].view(kind)

    def _check_width(self, register: Register, dtype: DType, wider: bool) -> None:
        have, want = register.dtype, dtype
        if have.bits == want.bits or (wider and have.bits > want.bits > 1):
            return
        self.unknown(f"register {register.name} is .{have}, where .{want} is expected")

    def _read_symbol(self, symbol: Symbol, dtype: DType) -> Reader:
        kind = numpy_type(dtype)
        if symbol.name in SPECIAL_REGISTERS:
            if dtype.bits != 32 or dtype.is_float:
                self.unknown(f"special register {symbol.name} is .u32, not .{dtype}")
            name = symbol.name
            return lambda active: active.lanes.special(name)[active.selection].view(kind)
        if dtype.bits not in (32, 64) or dtype.is_float:
            self.unknown(f"operand {symbol.name} as .{dtype}")
        variable, unsigned = self._variable(symbol), UNSIGNED[dtype.bits]
        if callable(variable):
            return lambda active: np.array([variable(active.lanes)], unsigned).view(kind)
        value = np.array([variable], unsigned)
        return lambda active: value.view(kind)

    def _variable(self, symbol: Symbol) -> int | Callable[[Lanes], int]:
        """The address of a variable in its space; of the module's only a launch knows it."""
        name, offset = symbol.name, symbol.offset
        for layout in (self.program.layout, self.program.local_layout):
            if name in layout.offsets:
                return layout.offsets[name] + offset
        space = self.program.spaces.get(name)
        if space is None:
            self.unknown(f"{name} is neither a register nor a variable")
        window = CONST_WINDOW if space == "const" else 0
        return lambda lanes: lanes.addresses[name] + window + offset

    def _literal(self, operand: Operand, dtype: DType) -> np.ndarray:
        kind, unsigned = numpy_type(dtype), UNSIGNED[dtype.bits]
        if isinstance(operand, IntegerLiteral) and not dtype.is_float:
            if dtype == pred:
                return np.array([operand.value != 0])
            return np.array([operand.value & ((1 << dtype.bits) - 1)], unsigned).view(kind)
        if isinstance(operand, FloatLiteral):
            exact = np.array([operand.bits], UNSIGNED[operand.width])
            if dtype.name in ("f32", "f64"):
                value = exact.view(np.float32 if operand.width == 32 else np.float64)
                return value if value.dtype == kind else value.astype(kind)
            if dtype.kind == "bits" and dtype.bits == operand.width:
                return exact
        self.unknown(f"operand {_spell(operand)} as .{dtype}")


def _spell(operand: Operand) -> str:
    match operand:
        case IntegerLiteral(value):
            return str(value)
        case FloatLiteral(bits, width):
            code = "<f" if width == 32 else "<d"
            return str(struct.unpack(code, bits.to_bytes(width // 8, "little"))[0])
        case _:
            return type(operand).__name__.lower()


def elementwise(
    form: Form, function: Callable[..., np.ndarray], sources: list[DType], result: DType
) -> Step:
    """A step that computes operand 0 from operands 1, 2, ... lane by lane."""
    write = form.write(0, result)
    readers = [form.read(i + 1, dtype) for i, dtype in enumerate(sources)]
    if len(readers) == 1:
        (a,) = readers
        return lambda active: write(active, function(a(active)))
    if len(readers) == 2:
        a, b = readers
        return lambda active: write(active, function(a(active), b(active)))
    if len(readers) == 3:
        a, b, c = readers
        return lambda active: write(active, function(a(active), b(active), c(active)))
    return lambda active: write(active, function(*(reader(active) for reader in readers)))
