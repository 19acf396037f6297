"""The part of a kernel that takes instructions: registers, literals, blocks, checks, the text."""

from __future__ import annotations

import contextlib
import math
import numbers
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import ml_dtypes
import numpy as np

from ptx.builder import provenance, text
from ptx.builder.text import (
    Address,
    Constant,
    Instruction,
    Label,
    Line,
    Register,
    Symbol,
    Vector,
)
from ptx.builder.values import Block, Scalar, Val, Var, is_number
from ptx.isa.dtypes import DType, pred
from ptx.isa.opcodes import Opcode, OperandKind, lookup
from ptx.isa.targets import Target, as_target

if TYPE_CHECKING:
    from ptx.builder.kernel_builder import Kernel

__all__ = ["Emitter", "Source"]

Source: TypeAlias = (
    Val | int | Sequence[Val] | Register | Constant | Symbol | Address | Vector | Label
)

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_$]*")
_SPECIAL_REGISTERS = (
    "tid", "ntid", "laneid", "warpid", "nwarpid", "ctaid", "nctaid", "smid", "nsmid", "gridid",
    "clock", "clock_hi", "clock64",
)  # fmt: skip
_HALVES = {
    "f16": np.float16,
    "f16x2": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "bf16x2": ml_dtypes.bfloat16,
}


# The budget of a kernel, so that a configuration which asks for too much ends in an error. Those
# that are registered have 9,000 lines at most, and take half a second. Registers need no limit of
# their own: the text declares those that its lines name, of which a line has a few.
MOST_LINES = 30_000  # a longer one would take ptxas minutes
MOST_SECONDS = 60.0


class Emitter:
    """Takes instructions from the opcode table, checks them and prints them."""

    def __init__(self, name: str, target: Target | str):
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError(f"a kernel's name is a PTX identifier, not {name!r}")
        self.kernel_name = name
        self.target = as_target(target)
        self._ptx_version = self.target.lowest_ptx
        self._prologue: list[text.Item] = []
        self._body: list[text.Item] = []
        self._items = self._body
        self._root = Block(f"kernel {name}")
        self._blocks = [self._root]
        self._names: set[str] = set()
        self._labels: dict[str, int] = {}
        self._cause = "its configuration"
        self._deadline = math.inf

    def limit_time(self, config: object) -> None:
        """From now on writing the kernel may take `MOST_SECONDS`; errors say its configuration.

        Without it, as for a kernel that a person writes line by line, time does not count.
        """
        self._cause = f"its configuration {config}"
        self._deadline = time.monotonic() + MOST_SECONDS

    # ---- for kernels that need an instruction which has no method

    def op(self, name: str, dtype: DType, *sources: Source, where: Val | None = None) -> Val:
        """Emits instruction `name` of the opcode table with a new register as its destination.

        Args:
          name: with all modifiers, for example "popc.b32".
          dtype: type of the result.
          *sources: values, integers for constants, lists of values for vectors.
          where: a predicate that guards the instruction.

        Raises:
          ValueError: the table has no such instruction, or none with such operands; or the kernel
            has `MOST_LINES` already, or has taken `MOST_SECONDS` (see `limit_time`).
          UnsupportedError: the target lacks it.
        """
        destination = Register(dtype, origin=name)
        self.emit(name, destination, *sources, where=where)
        return Val(self._kernel, destination, self._blocks[-1])

    def emit(
        self, name: str, *operands: Source, where: Val | None = None, negate: bool = False
    ) -> None:
        """Emits instruction `name` of the opcode table; for arguments and errors see `op`."""
        if len(self._items) >= MOST_LINES:
            raise ValueError(
                f"kernel {self.kernel_name} would have more than {MOST_LINES} lines: {self._cause} "
                "unrolls too much"
            )
        if time.monotonic() > self._deadline:
            raise ValueError(
                f"kernel {self.kernel_name} would take more than {MOST_SECONDS:g} seconds to "
                f"write, and has {len(self._items)} lines by now: {self._cause} asks for too much"
            )
        opcode = lookup(name)
        opcode.require(self.target, self.kernel_name)
        self._ptx_version = max(self._ptx_version, opcode.lowest_ptx)
        given = tuple(self._operand(operand) for operand in operands)
        self._check_operands(opcode, given)
        guard = None if where is None else self.predicate(where)
        depth, origin = len(self._blocks) - 1, provenance.origin()
        self._items.append(Instruction(name, given, depth, guard, negate, origin))

    # ---- names and comments

    def comment(self, text: str) -> None:
        """Writes a comment line: what the next step of the algorithm is."""
        self._items += [Line(f"// {line}", len(self._blocks) - 1) for line in text.splitlines()]

    def directive(self, text: str) -> None:
        """Puts a directive between the instructions, for example `.pragma "nounroll"`."""
        self._items.append(Line(f"{text};", len(self._blocks) - 1))

    def name(self, **values: Val) -> None:
        """Names registers in the text: `k.name(row=row, col=col)` prints %row and %col."""
        for name, value in values.items():
            self.use(value)
            if value.register.name is None:
                value.register.name = self._unique(name)

    # ---- checks and literals

    def use(self, value: Val) -> Register:
        """The register of a value; TypeError if it may not be used here."""
        if value.kernel is not self:
            raise TypeError(
                f"{value!r} belongs to kernel {value.kernel.kernel_name}, not {self.kernel_name}"
            )
        if value.block not in self._blocks:
            raise TypeError(
                f"{value!r} is used outside the block that defines it ({value.block.name}), where "
                "its register may not have been written: carry it out in a k.var(...) made before "
                "the block"
            )
        return value.register

    def predicate(self, value: Val) -> Register:
        """The register of a predicate; TypeError for anything else."""
        if not isinstance(value, Val) or value.dtype is not pred:
            raise TypeError(f"expected a predicate such as a < b, got {value!r}")
        return self.use(value)

    def literal(self, value: Scalar, dtype: DType) -> Register | Constant:
        """A value or Python number as an operand of type `dtype`.

        Raises:
          TypeError: another type, or a fraction where an integer is needed.
          ValueError: an integer that does not fit.
        """
        if isinstance(value, Val):
            if value.dtype is not dtype:
                raise TypeError(
                    f"expected {dtype}, got {value!r}: types are never mixed; convert with "
                    f"k.convert(value, {dtype}) or, for the same bits, k.bitcast(value, {dtype})"
                )
            return self.use(value)
        if not is_number(value):
            raise TypeError(f"expected {dtype} or a Python number, got {value!r}")
        if dtype.kind == "predicate":
            raise TypeError(f"expected a predicate such as a < b, got {value!r}")
        if not dtype.is_float:
            if not isinstance(value, numbers.Integral):
                raise TypeError(f"expected {dtype} or an integer, got {value!r}")
            return Constant(_integer(int(value), dtype))
        if dtype.name in _HALVES:
            half = int(np.asarray(value).astype(_HALVES[dtype.name]).view(np.uint16))
            declared = text.register_type(dtype)
            bits = half | half << 16 if dtype.lanes == 2 else half
            register = Register(dtype, origin=f"literal {value}")
            self.emit(f"mov.{declared}", register, Constant(f"{bits:#x}"))
            return register
        if dtype.name == "f64":
            return Constant(f"0d{np.float64(value).view(np.uint64):016X}")
        if dtype.name == "f32":
            with np.errstate(over="ignore"):
                return Constant(f"0f{np.float32(value).view(np.uint32):08X}")
        raise TypeError(f"{dtype} has no literals: convert an f32 with k.convert(value, {dtype})")

    def common_type(self, *values: Scalar) -> DType:
        """The one type of the registers among `values`; TypeError where there is none."""
        types = [value.dtype for value in values if isinstance(value, Val)]
        if not types:
            raise TypeError(f"of {values!r}, at least one has to be a register")
        return types[0]

    # ---- registers

    def var(self, dtype: DType, initial: Scalar, name: str | None = None) -> Var:
        """A register that can be written again, set to `initial`."""
        register = Register(dtype, self._unique(name) if name else None, "k.var")
        variable = Var(self._kernel, register, self._blocks[-1])
        self.assign(variable, initial)
        return variable

    def assign(self, variable: Var, value: Scalar) -> None:
        """Writes `value` to a variable; `Var.set` calls it."""
        if not isinstance(variable, Var):
            raise TypeError(f"{variable!r} is immutable: only a k.var(...) can be set")
        source = self.literal(value, variable.dtype)
        self.emit(f"mov.{text.register_type(variable.dtype)}", self.use(variable), source)

    def copy(self, value: Val) -> Val:
        """The present value of a register as a new one."""
        return self.op(f"mov.{text.register_type(value.dtype)}", value.dtype, value)

    # ---- the machinery

    @contextlib.contextmanager
    def _block(self, name: str) -> Iterator[None]:
        self._blocks.append(Block(name))
        try:
            yield
        finally:
            self._blocks.pop()

    @contextlib.contextmanager
    def _at_entry(self) -> Iterator[None]:
        """What is emitted inside comes first in the kernel and is valid everywhere in it."""
        items, blocks = self._items, self._blocks
        self._items, self._blocks = self._prologue, [self._root]
        try:
            yield
        finally:
            self._items, self._blocks = items, blocks

    def _mark(self, label: Label) -> None:
        label.depth = len(self._blocks) - 1
        self._items.append(label)

    def _label(self, name: str) -> str:
        """A label's name with a number that makes it unique, without the dollar sign."""
        self._labels[name] = self._labels.get(name, 0) + 1
        return f"{name}_{self._labels[name]}"

    def _unique(self, name: str) -> str:
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError(f"a register's name is a PTX identifier, not {name!r}")
        if name in _SPECIAL_REGISTERS or name.rstrip("0123456789") in text.PREFIXES:
            name += "_"
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return f"%{unique}"

    def _operand(self, operand: Source) -> text.Operand:
        if isinstance(operand, Val):
            return self.use(operand)
        if isinstance(operand, Register | Constant | Symbol | Address | Vector | Label):
            return operand
        if isinstance(operand, numbers.Integral):
            return Constant(str(int(operand)))
        if isinstance(operand, Sequence):
            registers = []
            for value in operand:
                if not isinstance(value, Val | Register):
                    raise TypeError(f"a vector operand holds registers, not {value!r}")
                registers.append(self.use(value) if isinstance(value, Val) else value)
            return Vector(tuple(registers))
        raise TypeError(f"{operand!r} is not an operand")

    def _check_operands(self, opcode: Opcode, operands: tuple[text.Operand, ...]) -> None:
        if any(
            len(form) == len(operands) and all(map(_fits, form, operands)) for form in opcode.forms
        ):
            return
        given = ", ".join(_described(operand) for operand in operands)
        forms = " or ".join(
            "(" + ", ".join(_described(kind) for kind in form) + ")" for form in opcode.forms
        )
        raise ValueError(f"{opcode.name} takes {forms}, not ({given})")

    @property
    def _kernel(self) -> Kernel:
        return cast("Kernel", self)


def _integer(value: int, dtype: DType) -> str:
    lowest = 0 if dtype.kind == "unsigned" else -(1 << dtype.bits - 1)
    highest = (1 << (dtype.bits - (dtype.kind == "signed"))) - 1
    if not lowest <= value <= highest:
        raise ValueError(f"{value} does not fit {dtype}, which holds {lowest} to {highest}")
    return str(value)


_WITHOUT_TYPE = {"address": Address, "constant": Constant, "label": Label}


def _fits(kind: OperandKind, operand: text.Operand) -> bool:
    if kind.kind in _WITHOUT_TYPE:
        return isinstance(operand, _WITHOUT_TYPE[kind.kind])
    if kind.kind == "vector" or kind.count > 1:
        registers = operand.registers if isinstance(operand, Vector) else ()
        return len(registers) == kind.count and all(kind.accepts(r.dtype) for r in registers)
    if isinstance(operand, Register):
        return kind.accepts(operand.dtype)
    return isinstance(operand, Constant | Symbol if kind.kind == "register" else Constant)


def _described(operand: Any) -> str:
    match operand:
        case OperandKind(kind="memory" | "vector", dtype=dtype, count=count):
            return f"{count} x {dtype}"
        case Vector(registers=registers):
            return f"{len(registers)} x {registers[0].dtype if registers else 'nothing'}"
        case OperandKind(kind="register", dtype=dtype) | Register(dtype=dtype):
            return str(dtype)
        case OperandKind(kind="address") | Address():
            return "an address"
        case OperandKind(kind="label") | Label():
            return "a label"
        case OperandKind():
            return "a constant"
    return f"a constant {operand}"
