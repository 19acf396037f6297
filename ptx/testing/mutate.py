"""Mutants of PTX, one instruction changed at a time, which show whether a check notices.

A test that passes on a kernel proves little until it is known to fail on a broken one. `mutants`
makes the broken ones; `study` runs a check on each, and lists those that the check lets through.
"""

import collections
import dataclasses
import math
import random
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ptx.isa.assembler import AssemblyError, cubin
from ptx.isa.targets import Target, as_target

__all__ = ["Mutant", "MutationReport", "mutants", "study"]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A PTX text with one instruction changed.

    Attributes:
      line: 1-based number of the changed line.
      kind: the change, for example "constant +1" or "deleted".
      original: the instruction as it was.
      replacement: the instruction as it is; empty where it was deleted.
      unchanged: the lines of the original text.
    """

    line: int
    kind: str
    original: str
    replacement: str
    unchanged: tuple[str, ...] = dataclasses.field(repr=False)

    @property
    def text(self) -> str:
        """The whole changed text, with as many lines as the original."""
        lines = list(self.unchanged)
        lines[self.line - 1] = lines[self.line - 1].replace(self.original, self.replacement, 1)
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"line {self.line}, {self.kind}: {self.original} -> {self.replacement or '(none)'}"


@dataclasses.dataclass(frozen=True)
class MutationReport:
    """The fate of the mutants of one text.

    Attributes:
      total: mutants that the text has; those of the report are a sample where it has fewer.
      outcomes: each mutant tried, with the name of the exception that it was noticed by,
        `SURVIVED`, `STILLBORN`: ptxas rejects it, so that it could never have run, or `SAME`: it
        was not noticed, but ptxas makes the same machine code of it.
    """

    total: int
    outcomes: tuple[tuple[Mutant, str], ...]

    SURVIVED = "survived"
    STILLBORN = "stillborn"
    SAME = "same"

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """The mutants that nothing noticed, although their machine code is another."""
        return tuple(m for m, outcome in self.outcomes if outcome == self.SURVIVED)

    @property
    def stillborn(self) -> tuple[Mutant, ...]:
        return tuple(m for m, outcome in self.outcomes if outcome == self.STILLBORN)

    @property
    def same(self) -> tuple[Mutant, ...]:
        """The mutants that are another text, but the same program."""
        return tuple(m for m, outcome in self.outcomes if outcome == self.SAME)

    @property
    def killed(self) -> Mapping[str, int]:
        """How many mutants were noticed by each type of exception, most first."""
        apart = (self.SURVIVED, self.STILLBORN, self.SAME)
        counts = collections.Counter(o for _, o in self.outcomes if o not in apart)
        return dict(counts.most_common())

    @property
    def rate(self) -> float:
        """The share of mutants that was noticed, of those that run and are another program."""
        killed = sum(self.killed.values())
        viable = killed + len(self.survivors)
        return killed / viable if viable else math.nan

    def __str__(self) -> str:
        killed = sum(self.killed.values())
        lines = [
            f"{killed} of {killed + len(self.survivors)} mutants noticed ({self.rate:.1%}); "
            f"{len(self.stillborn)} that ptxas rejects, {len(self.same)} that it makes the same "
            f"code of; {self.total} in all",
            *(f"  {count:5} {name}" for name, count in self.killed.items()),
            *(f"  survived: {mutant}" for mutant in self.survivors),
        ]
        return "\n".join(lines)


def mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a PTX text, line by line.

    One instruction is changed in one of these ways: a register replaced by the one of its type
    that was mentioned last, a parameter by another of its type; an integer or floating-point
    constant, or an address's offset, changed; an operator, comparison or rounding replaced;
    operands whose order matters, or neighbours in a vector, swapped; a guard negated or dropped;
    `.trans` dropped; `wait_group` asked to wait for one group less; a store, barrier, wait,
    commit, copy, branch or `mma` deleted.

    Args:
      text: PTX with one instruction a line at most.

    Raises:
      ValueError: a line holds more than one instruction.
    """
    lines = tuple(text.split("\n"))
    names = _Names(text)
    for index, line in enumerate(lines):
        instruction = _Instruction.parse(line, index + 1)
        if instruction is None:
            continue
        seen = {instruction.changed()}  # itself, as the changes are written
        for kind, code in _changes(instruction, names):
            if code in seen:
                continue
            seen.add(code)
            yield Mutant(index + 1, kind, instruction.code, code, lines)
        names.mention(instruction.code)


def study(
    text: str,
    notices: Callable[[str], object],
    *,
    target: Target | str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> MutationReport:
    """Finds the mutants of a text that a check does not notice.

    Args:
      text: PTX that passes the check.
      notices: the check: takes a text, and raises any exception if it notices that something is
        wrong. A mutant may loop for ever: the check has to set a bound, as the emulator does.
      target: where it is given, mutants that ptxas rejects for it, or that it makes the same code
        of, are told apart. So are changes of instructions that ptxas removes.
      limit: mutants to try at most, drawn at random; None tries all.
      seed: the seed of the draw.

    Raises:
      ValueError: the unchanged text does not pass.

    Source: Papadakis et al., "Trivial Compiler Equivalence" (ICSE 2015).
    """
    target = None if target is None else as_target(target)
    try:
        notices(text)
    except Exception as error:
        raise ValueError(f"the unchanged text does not pass: {error}") from error
    code = None if target is None else cubin(text, target)
    found = picked = list(mutants(text))
    if limit is not None and limit < len(found):
        chosen = random.Random(seed).sample(range(len(found)), limit)
        picked = [found[index] for index in sorted(chosen)]
    outcomes = tuple((mutant, _outcome(mutant, notices, target, code)) for mutant in picked)
    return MutationReport(len(found), outcomes)


def _outcome(
    mutant: Mutant,
    notices: Callable[[str], object],
    target: Target | None,
    code: bytes | None,
) -> str:
    """The outcome of a mutant, with the unchanged text's machine code."""
    same = False
    if target is not None:
        try:
            same = cubin(mutant.text, target) == code
        except AssemblyError:
            return MutationReport.STILLBORN
    try:
        notices(mutant.text)
    except Exception as error:
        return type(error).__name__
    return MutationReport.SAME if same else MutationReport.SURVIVED


# ---- reading a line

_INSTRUCTION = re.compile(
    r"^\s*(?:[\w$]+:\s*)?"
    r"(?P<code>(?:(?P<guard>@!?%[\w$]+)\s+)?(?P<name>[a-z][\w.:]*)(?:\s+(?P<operands>[^;]*))?;)"
    r"\s*(?://.*)?$"
)
# A register, special registers with their axis included.
_REGISTER = re.compile(r"%[A-Za-z_$][\w$]*(?:\.[xyzw]\b)?")
_CONSTANT = re.compile(r"-?\d+|0[xX][0-9a-fA-F]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}")


@dataclasses.dataclass(frozen=True)
class _Instruction:
    """One instruction: `@guard name operands;`, and its operands split."""

    code: str
    guard: str
    name: str
    operands: tuple[str, ...]

    @classmethod
    def parse(cls, line: str, number: int) -> "_Instruction | None":
        code = line.partition("//")[0].strip()
        if not code.endswith(";") or code.startswith("."):
            return None  # a directive, declaration, label, brace or part of the parameter list
        found = _INSTRUCTION.match(line)
        if found is None:
            raise ValueError(f"line {number} is not one instruction: {code}")
        operands = _split(found["operands"] or "")
        return cls(found["code"], found["guard"] or "", found["name"], operands)

    @property
    def parts(self) -> list[str]:
        """The name's parts, for example ["setp", "lt", "s32"]."""
        return self.name.split(".")

    def changed(self, **fields: Any) -> str:
        """The code with other fields."""
        new = dataclasses.replace(self, **fields)
        return f"{new.guard} {new.name} {', '.join(new.operands)}".strip() + ";"

    def with_part(self, index: int, part: str) -> str:
        parts = self.parts
        parts[index : index + 1] = [part] if part else []
        return self.changed(name=".".join(parts))

    def with_operand(self, index: int, operand: str) -> str:
        return self.changed(operands=(*self.operands[:index], operand, *self.operands[index + 1 :]))

    def with_swapped(self, first: int, second: int) -> str:
        operands = list(self.operands)
        operands[first], operands[second] = operands[second], operands[first]
        return self.changed(operands=operands)


def _split(operands: str) -> tuple[str, ...]:
    """Splits at the commas outside braces and brackets."""
    found = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", operands)
    return tuple(operand.strip() for operand in found if operand.strip())


class _Names:
    """The registers and parameters of a text, by type, and which register was mentioned last."""

    def __init__(self, text: str):
        self._types: dict[str, str] = {}
        for declared, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", text):
            for name in names.split(","):
                prefix, _, count = name.strip().partition("<")
                if count:
                    numbers = range(int(count.rstrip("> ")))
                    self._types |= {f"{prefix}{number}": declared for number in numbers}
                else:
                    self._types[prefix] = declared
        self._mentioned: dict[str, list[str]] = collections.defaultdict(list)
        self._parameters: dict[str, str] = {}
        for declared, rest in re.findall(r"\.param\s+\.(\w+)\s+([^,;)]+)", text):
            self._parameters[rest.split()[-1]] = declared

    def mention(self, code: str) -> None:
        for name in _REGISTER.findall(code):
            if name in self._types:
                recent = self._mentioned[self._types[name]]
                if name in recent:
                    recent.remove(name)
                recent.append(name)

    def other_register(self, name: str) -> str | None:
        """Another register of the same type: the one last mentioned; None if there is none."""
        recent = self._mentioned[self._types[name]] if name in self._types else []
        return next((other for other in reversed(recent) if other != name), None)

    def other_parameter(self, name: str) -> str | None:
        """The next parameter of the same type, after the last the first; None if there is none."""
        same = [p for p, declared in self._parameters.items() if declared == self._parameters[name]]
        other = same[(same.index(name) + 1) % len(same)]
        return other if other != name else None


# ---- the changes

_COMPARISONS = {
    "lt": ("le", "ge"), "le": ("lt", "gt"), "gt": ("ge", "le"), "ge": ("gt", "lt"),
    "lo": ("ls", "hs"), "ls": ("lo", "hi"), "hi": ("hs", "ls"), "hs": ("hi", "lo"),
    "ltu": ("leu", "geu"), "leu": ("ltu", "gtu"), "gtu": ("geu", "leu"), "geu": ("gtu", "ltu"),
    "eq": ("ne",), "ne": ("eq",), "equ": ("neu",), "neu": ("equ",), "num": ("nan",),
    "nan": ("num",),
}  # fmt: skip
_OPERATORS = {
    "add": "sub", "sub": "add", "min": "max", "max": "min", "div": "mul", "rem": "div",
    "and": "or", "or": "and", "xor": "or", "neg": "abs", "abs": "neg", "popc": "clz",
    "rn": "rz", "rz": "rn", "rm": "rp", "rp": "rm", "rna": "rz",
    "rni": "rzi", "rzi": "rni", "rmi": "rpi", "rpi": "rmi",
    "down": "up", "up": "down", "bfly": "down",
}  # fmt: skip
_PRODUCT_HALVES = {"lo": "hi", "hi": "lo"}  # of mul and mad
# What memory has in place of a subtraction.
_ATOMIC_OPERATORS = {"add": "max", "min": "max", "max": "min", "and": "or", "or": "and"}
_DELETED = ("bar", "barrier", "bra", "cp", "fence", "membar", "mma", "red", "st")
# Instructions whose operands of these places have one type and no order to spare.
_ORDERED = {"sub": (1, 2), "div": (1, 2), "rem": (1, 2), "shl": (1, 2), "shr": (1, 2),
            "selp": (1, 2), "setp": (1, 2), "mad": (2, 3), "fma": (2, 3)}  # fmt: skip
_SYMMETRIC = ("eq", "ne", "equ", "neu", "num", "nan")
_AXES = {"x": "y", "y": "x", "z": "x"}


def _changes(instruction: _Instruction, names: _Names) -> Iterator[tuple[str, str]]:
    """(kind, changed instruction) of each change."""
    if instruction.guard:
        sign, name = ("@", "@!") if "!" not in instruction.guard else ("@!", "@")
        yield "guard negated", instruction.changed(guard=instruction.guard.replace(sign, name, 1))
        yield "guard dropped", instruction.changed(guard="")
    if instruction.parts[0] in _DELETED:
        yield "deleted", ""
    yield from _operators(instruction)
    yield from _swaps(instruction)
    for index, operand in enumerate(instruction.operands):
        for kind, changed in _operand_changes(instruction, operand, names):
            yield kind, instruction.with_operand(index, changed)


def _operand_changes(
    instruction: _Instruction, operand: str, names: _Names
) -> Iterator[tuple[str, str]]:
    """(kind, changed operand) of each change."""
    for match in _REGISTER.finditer(operand):
        if other := _other_register(match[0], names):
            changed = operand[: match.start()] + other + operand[match.end() :]
            yield f"{match[0]} -> {other}", changed
    if operand.startswith("[") and instruction.name.startswith("ld.param"):
        name = operand.strip("[] ")
        if other := names.other_parameter(name):
            yield f"{name} -> {other}", f"[{other}]"
    elif operand.startswith("["):
        yield from _offsets(operand, _access_bytes(instruction))
    elif operand.startswith("{"):
        yield from _neighbours(operand)
    elif _CONSTANT.fullmatch(operand):
        yield from _constants(operand, instruction.parts)


def _operators(instruction: _Instruction) -> Iterator[tuple[str, str]]:
    parts = instruction.parts
    operators = _OPERATORS | (_PRODUCT_HALVES if parts[0] in ("mul", "mad") else {})
    for index, part in enumerate(parts):
        if parts[0] == "setp" and index == 1:
            others = _COMPARISONS.get(part, ())
        elif parts[0] in ("atom", "red"):
            others = (_ATOMIC_OPERATORS[part],) if part in _ATOMIC_OPERATORS else ()
        elif part in operators:
            others = (operators[part],)
        else:
            others = ("",) if part == "trans" else ()
        for other in others:
            kind = f"{part} -> {other}" if other else f"{part} dropped"
            yield kind, instruction.with_part(index, other)
    if parts[0] in ("shl", "shr"):
        width = parts[-1][1:]
        other = f"shr.u{width}" if parts[0] == "shl" else f"shl.b{width}"
        yield f"{parts[0]} -> {other[:3]}", instruction.changed(name=other)


def _swaps(instruction: _Instruction) -> Iterator[tuple[str, str]]:
    parts = instruction.parts
    places = _ORDERED.get(parts[0])
    # The third operand of mad.wide is twice as wide as its neighbour.
    if places is None or "wide" in parts or (parts[0] == "setp" and parts[1] in _SYMMETRIC):
        return
    yield "operands swapped", instruction.with_swapped(*places)


def _other_register(name: str, names: _Names) -> str | None:
    stem, _, axis = name.partition(".")
    if axis in _AXES:
        return f"{stem}.{_AXES[axis]}"
    return names.other_register(name)


def _neighbours(operand: str) -> Iterator[tuple[str, str]]:
    elements = [element.strip() for element in operand[1:-1].split(",")]
    for first in range(len(elements) - 1):
        swapped = elements.copy()
        swapped[first : first + 2] = reversed(elements[first : first + 2])
        yield f"elements {first} and {first + 1} swapped", "{" + ", ".join(swapped) + "}"


def _offsets(operand: str, width: int) -> Iterator[tuple[str, str]]:
    if found := re.fullmatch(r"\[\s*([^+\s]+?)\s*(?:\+\s*(-?\d+))?\s*\]", operand):
        base, offset = found[1], int(found[2] or 0)
        for change in (width, -width):
            moved = offset + change  # PTX writes a negative offset as +-4
            yield f"offset {change:+d}", f"[{base}+{moved}]" if moved else f"[{base}]"


def _access_bytes(instruction: _Instruction) -> int:
    """Bytes that the instruction moves, so that a shifted address stays aligned."""
    if instruction.parts[0] in ("cp", "ldmatrix"):
        return 16
    bits = re.search(r"\.[a-z]+?f?(8|16|32|64)(x2)?$", instruction.name)
    if bits is None:
        return 4
    vector = re.search(r"\.v([24])\.", instruction.name)
    return int(bits[1]) // 8 * (2 if bits[2] else 1) * int(vector[1] if vector else 1)


def _constants(constant: str, parts: list[str]) -> Iterator[tuple[str, str]]:
    if parts[0] in ("bar", "barrier"):
        return  # another barrier's number does as well
    if "wait_group" in parts:
        yield "one group less", str(int(constant) + 1)
        return
    for kind, factor, change in (("+1", 1, 1), ("-1", 1, -1), ("x2", 2, 0)):
        if constant[:2].lower() in ("0f", "0d"):
            changed = _changed_float(constant, factor, change)
        else:
            value = int(constant, 0)
            other = factor * value + change
            changed = constant if other == value else str(other)
        yield f"constant {kind}", changed


def _changed_float(text: str, factor: int, change: int) -> str:
    single = text[:2].lower() == "0f"
    as_float, as_bits = (">f", ">I") if single else (">d", ">Q")
    (value,) = struct.unpack(as_float, bytes.fromhex(text[2:]))
    value = factor * value + change
    try:
        (bits,) = struct.unpack(as_bits, struct.pack(as_float, value))
    except OverflowError:  # beyond the largest f32
        return text
    return f"0f{bits:08X}" if single else f"0d{bits:016X}"
