"""The parts of a kernel while it is being written, and their printed form."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from ptx.builder.provenance import Origin
from ptx.isa.dtypes import DTYPES, DType, b16, b32

__all__ = [
    "Address",
    "Constant",
    "Instruction",
    "Item",
    "Label",
    "Line",
    "Operand",
    "Register",
    "Symbol",
    "Vector",
    "check_dtype",
    "declarations",
    "printed",
    "register_type",
]

_PREFIX_OF = {
    "pred": "p", "f16": "h", "bf16": "h", "f16x2": "hh", "bf16x2": "hh", "tf32": "t",
    "f32": "f", "f64": "d", "u16": "rs", "u32": "r", "u64": "rd", "s16": "ss", "s32": "s",
    "s64": "sd", "b16": "bs", "b32": "b", "b64": "bd",
}  # fmt: skip
PREFIXES = frozenset(_PREFIX_OF.values())


def register_type(dtype: DType) -> DType:
    """The type that a register of `dtype` is declared with: halves and tf32 are bits to PTX."""
    if dtype.name in ("f16", "bf16"):
        return b16
    return b32 if dtype.name in ("f16x2", "bf16x2", "tf32") else dtype


def check_dtype(dtype: object) -> None:
    """Raises TypeError, which lists the types, unless it is one of them."""
    if not isinstance(dtype, DType):
        raise TypeError(
            f"a dtype must be one of ptx.isa.dtypes, {', '.join(DTYPES)}, got {dtype!r}"
        )


@dataclasses.dataclass(eq=False)
class Register:
    """A virtual register. Without a name of its own it is numbered when the kernel is printed."""

    dtype: DType
    name: str | None = None
    origin: str = ""
    numbered: str = ""

    def __post_init__(self):
        check_dtype(self.dtype)

    def __str__(self) -> str:
        return self.name or self.numbered


@dataclasses.dataclass(frozen=True)
class Constant:
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(eq=False)
class Symbol:
    """A parameter or an array in shared memory: an address by name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Address:
    base: Register | Symbol
    offset: int = 0

    def __str__(self) -> str:
        return f"[{self.base}+{self.offset}]" if self.offset else f"[{self.base}]"


@dataclasses.dataclass(frozen=True)
class Vector:
    registers: tuple[Register, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.registers)) + "}"


@dataclasses.dataclass(eq=False)
class Label:
    name: str
    depth: int = 0

    def __str__(self) -> str:
        return self.name


Operand = Register | Constant | Symbol | Address | Vector | Label


@dataclasses.dataclass(eq=False)
class Instruction:
    name: str
    operands: tuple[Operand, ...]
    depth: int
    predicate: Register | None = None
    negated: bool = False
    origin: Origin | None = None  # where somebody asks for it


@dataclasses.dataclass(eq=False)
class Line:
    """A comment or directive, as it is printed."""

    text: str
    depth: int


Item = Instruction | Label | Line


def declarations(items: Iterable[Item]) -> list[str]:
    """Numbers the registers in order of appearance; the `.reg` lines, a class a line."""
    counts = collections.Counter[tuple[str, str]]()
    named: dict[str, list[str]] = {}
    for register in dict.fromkeys(_registers(items)):
        declared = register_type(register.dtype).name
        if register.name is not None:
            named.setdefault(declared, []).append(register.name)
            continue
        prefix = "%" + _PREFIX_OF[register.dtype.name]
        register.numbered = f"{prefix}{counts[declared, prefix]}"
        counts[declared, prefix] += 1
    lines = [(declared, f"{prefix}<{count}>") for (declared, prefix), count in counts.items()]
    for declared, names in named.items():
        lines += [(declared, ", ".join(names[i : i + 8])) for i in range(0, len(names), 8)]
    return [f"    .reg .{declared:<5}{names};" for declared, names in lines]


def printed(item: Item) -> str:
    """A line of a kernel's body, operands aligned."""
    indent = "    " * (item.depth + 1)
    match item:
        case Line():
            return f"{indent}{item.text}"
        case Label():
            return f"{indent[4:]}{item.name}:"
    guard = f"@{'!' if item.negated else ''}{item.predicate} " if item.predicate else ""
    operands = ", ".join(map(str, item.operands))
    return f"{indent}{f'{guard}{item.name}':<22} {operands}".rstrip() + ";"


def _registers(items: Iterable[Item]) -> Iterator[Register]:
    for item in items:
        if not isinstance(item, Instruction):
            continue
        if item.predicate is not None:
            yield item.predicate
        for operand in item.operands:
            match operand:
                case Register():
                    yield operand
                case Vector():
                    yield from operand.registers
                case Address(base=Register() as base):
                    yield base
