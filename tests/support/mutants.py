"""Shared parts of the studies of mutants: the place of a mutant, and the reason of its survival."""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ptx.builder import provenance
from ptx.emulator import (
    DivergenceError,
    EmulatorError,
    UndefinedResultError,
    UninitializedError,
)
from ptx.emulator.program import load
from ptx.testing.mutate import Mutant, MutationReport, mutants, study

__all__ = [
    "Probe",
    "Reason",
    "Result",
    "change_of",
    "check",
    "check_constructs",
    "result_of",
    "text_of",
]

NOTICED_BY = {
    "AssertionError",  # wrong numbers
    "DivergenceError",
    "InFlightError",
    "MisalignedError",
    "OutOfBoundsError",
    "RaceError",
    "ReadOnlyError",
    "StepLimitError",
    "UndefinedResultError",
    "UninitializedError",
    "UnwrittenError",
}
# Of all mutants of a text, those that a reason without evidence would excuse.
MOST_WITHOUT_EVIDENCE = 0.075


class Result(enum.IntEnum):
    """How the result of a changed instruction differs from the unchanged one's.

    It is measured, by threads that compute both wherever the kernel comes by in any probe.
    """

    SAME = 0  # bit for bit, for every thread, each time
    NEAR = 1  # by a unit in the last place, and so by less than results are rounded to
    OTHER = 2  # or the instruction has no result that could be compared


class Reason(NamedTuple):
    """Why nothing notices a mutant, and which mutants that is said of.

    Attributes:
      why: a sentence, for the reader.
      emitted_by: the function that emitted the instruction, or one of several; "f > g" is g in a
        call of f, with any functions between, and "ptx" is every function.
      opcodes: what the instruction may be: first parts of its name, with spaces between.
      changes: what may be done to it, as `change_of` says it, with spaces between.
      result: how far its result may be from the unchanged one's.
    """

    why: str
    emitted_by: str | tuple[str, ...]
    opcodes: str
    changes: str
    result: Result = Result.SAME

    def names(self, functions: Sequence[str]) -> bool:
        """Whether these functions emitted an instruction that the reason is about."""
        for *callers, emitter in self.paths:
            if emitter in ("ptx", functions[-1]) and {*callers} <= {*functions[:-1]}:
                return True
        return False

    @property
    def paths(self) -> list[list[str]]:
        """The functions that emit its instructions, each after those that have called it."""
        emitters = (self.emitted_by,) if isinstance(self.emitted_by, str) else self.emitted_by
        return [emitter.split(" > ") for emitter in emitters]

    def covers(self, mutant: Mutant, functions: Sequence[str]) -> bool:
        """Whether it is said of a mutant of an instruction that these functions emitted."""
        if not self.names(functions):
            return False
        words = mutant.original.split()
        opcode = words[words[0].startswith("@")].split(".")[0]
        return opcode in self.opcodes.split() and change_of(mutant) in self.changes.split()


class Probe(Protocol):
    """A call of a kernel that shows whether it is broken."""

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        ...

    def run(self, text: str) -> object:
        """Raises if a text does not compute what the kernel does."""


def change_of(mutant: Mutant) -> str:
    """The class of a change: what is changed about the instruction."""
    kind = mutant.kind
    first = kind.split()[0]
    if "%" in kind:
        operands = [re.split(r"[\s,;]+", c) for c in (mutant.original, mutant.replacement)]
        index = next(i for i, (a, b) in enumerate(zip(*operands, strict=True)) if a != b)
        return "destination" if index == 1 + mutant.original.startswith("@") else "source"
    if first in ("constant", "offset", "guard", "deleted", "elements", "one", "operands"):
        return first
    if first in ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"):
        return "rounding"
    return "operator"


def text_of(probe: Probe) -> str:
    """The text of a kernel, without stores to shared memory that nothing loads."""
    lines = probe.text.split("\n")
    for array in re.findall(r"\.shared .*\.b8 (\w+)\[", probe.text):
        addresses, known = {array, f"%{array}"}, 0
        while known != len(addresses):
            known = len(addresses)
            for line in lines:
                found = re.match(r"\s*(?:mov|add|mad|selp)\S*\s+(%\w+), (.*);", line)
                if found and addresses.intersection(re.findall(r"%\w+", found[2])):
                    addresses.add(found[1])
        used = [
            number
            for number, line in enumerate(lines)
            if addresses.intersection(re.findall(r"\[(%?\w+)", line))
        ]
        if all("st.shared" in lines[number] for number in used):
            for number in used:
                lines[number] = ""
    return "\n".join(lines)


@functools.cache
def emitters_of(probe: Probe) -> Mapping[int, tuple[str, ...]]:
    """Line of a kernel's text -> the functions that emitted its instruction."""
    with provenance.recorded() as found:
        text = probe.text
    # A comprehension is no function of its own from Python 3.12 on.
    comprehension = re.compile(r"(\.<locals>\.<(listcomp|genexpr|dictcomp|setcomp|lambda)>)+$")
    return {
        line: tuple(comprehension.sub("", name) for name in origin.functions)
        for line, origin in found[text].items()
    }


@functools.cache
def report_of(probes: Sequence[Probe], target: str, limit: int) -> MutationReport:
    """What becomes of so many mutants of a kernel, if each has to solve all of the probes."""

    def notices(text: str) -> None:
        try:
            for probe in probes:
                probe.run(text)
        finally:
            load.cache_clear()  # the programs of hundreds of texts take a GiB

    return study(text_of(probes[0]), notices, target=target, limit=limit, seed=1)


# ---- what a changed instruction computes

_WITH_RESULT = re.compile(
    r"(?:(?P<guard>@!?%[\w.]+)\s+)?(?P<name>[a-z][\w.:]*)\s+"
    r"(?P<result>%[\w$]+|\{[^}]*\}),\s*(?P<sources>.*);"
)
_OTHER_KINDS = ("st", "red", "atom", "ld", "ldmatrix", "bra", "cp", "bar", "vote")


def result_of(probes: Sequence[Probe], text: str, mutant: Mutant) -> Result:
    """How much the changed instruction's results differ in any of the probes.

    The instruction and the changed one both run, and a thread traps where they differ too much.
    """
    for result in (Result.SAME, Result.NEAR):
        compared = _compared(text, mutant, result)
        if compared is None:
            break
        try:
            for probe in probes:
                probe.run(compared)
        except (DivergenceError, UndefinedResultError, UninitializedError):
            return Result.OTHER  # of the changed instruction alone
        except EmulatorError as error:
            if "trap" not in str(error):
                raise
            continue
        return result
    return Result.OTHER


def _compared(text: str, mutant: Mutant, result: Result) -> str | None:
    """A text that traps where results are not as near; None for what has no single result."""
    before, after = map(_WITH_RESULT.fullmatch, (mutant.original, mutant.replacement))
    if before is None or after is None:
        return None
    if before["guard"] != after["guard"] or before["result"] != after["result"]:
        return None
    if before["name"].split(".")[0] in _OTHER_KINDS:
        return None
    registers = re.findall(r"%[\w$]+", before["result"])
    declared = _declared(text, registers[0])
    bits = 0 if declared == "pred" else int(declared[1:])
    if not bits and result is Result.NEAR:
        return None
    others = {register: f"%other{index}" for index, register in enumerate(registers)}
    renamed = re.sub(r"%[\w$]+", lambda register: others[register[0]], before["result"])
    code = [
        f"{after['name']} {renamed}, {after['sources']};",
        f"{before['name']} {before['result']}, {before['sources']};",
    ]
    for register, other in others.items():
        if not bits:
            code += [f"xor.pred %differs, {other}, {register};", "@%differs trap;"]
            continue
        code += [
            f"mov.b{bits} %bits, {register};",
            f"mov.b{bits} %other_bits, {other};",
            f"max.u{bits} %larger, %bits, %other_bits;",
            f"min.u{bits} %bits, %bits, %other_bits;",
            f"sub.u{bits} %larger, %larger, %bits;",
            f"setp.gt.u{bits} %differs, %larger, {int(result)};",
            "@%differs trap;",
        ]
    if before["guard"]:  # where it is off, nothing differs, and nothing is compared
        code = [
            line if line.startswith("@") else f"{before['guard']} {line}"
            for line in ("setp.ne.u32 %differs, 0, 0;", *code)
        ]
        code[0] = "setp.ne.u32 %differs, 0, 0;"
    declarations = [
        f".reg .{declared} {', '.join(others.values())};",
        ".reg .pred %differs;",
        f".reg .u{bits or 32} %bits, %other_bits, %larger;",
    ]
    lines = text.split("\n")
    lines[mutant.line - 1] = "\n".join(code)
    first = lines.index("{")
    lines[first] = "\n".join(["{", *declarations])
    return "\n".join(lines)


def _declared(text: str, register: str) -> str:
    """The type that a register is declared with."""
    for declared, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", text):
        for name in re.split(r",\s*", names.strip()):
            prefix, _, count = name.partition("<")
            if name == register or (count and re.fullmatch(re.escape(prefix) + r"\d+", register)):
                return declared
    raise ValueError(f"{register} is not declared")


# ---- what is asserted


def check(
    kernels: Mapping[str, Sequence[Probe]],
    target: str,
    limit: int,
    equivalent: Sequence[Reason],
    negligible: Sequence[Reason],
) -> None:
    """Asserts that every survivor is explained, and that few compute something else.

    Args:
      kernels: the probes of each, by name.
      target: for which the kernels are.
      limit: mutants of each.
      equivalent: reasons why mutants compute the same for all operands of the probes' sizes.
      negligible: reasons why they compute something else, but far less than results are rounded to.
    """
    killed, same, survived, by, unexplained = 0, 0, 0, set(), []
    for name, probes in kernels.items():
        report, text = report_of(probes, target, limit), text_of(probes[0])
        emitters = emitters_of(probes[0])

        every = (*equivalent, *negligible)
        explained = functools.partial(_explained, probes)
        unexplained += [
            f"{name}: {m}, by {emitters[m.line][-3:]}"
            for m in report.survivors
            if not explained(every, m)
        ]
        killed += sum(report.killed.values())
        survived += len(report.survivors)
        same += sum(explained(equivalent, m) for m in report.survivors)
        by |= report.killed.keys()
        _check_share(text, emitters, [r for r in every if r.result is Result.OTHER])
        _check_refused(probes, report, every)
    assert unexplained == [], "\n".join(unexplained)
    assert by <= NOTICED_BY, by
    assert len(by) >= 3, by
    assert killed >= 0.95 * (killed + survived - same), (killed, survived, same)
    # The reasons do not explain everything away.
    assert killed >= 0.85 * (killed + survived), (killed, survived)


def check_constructs(reasons: Iterable[Reason]) -> None:
    """Asserts that the functions exist that reasons name."""
    names = {name for reason in reasons for path in reason.paths for name in path} - {"ptx"}
    missing = [name for name in sorted(names) if name not in _functions_of(_module_of(name))]
    assert missing == [], missing


def _module_of(name: str) -> str:
    """The module that has a function of some qualified name."""
    module = name
    while module not in sys.modules:
        module = module.rpartition(".")[0]
    return module


@functools.cache
def _functions_of(module: str) -> set[str]:
    """The qualified names of a module's functions, those inside of functions among them."""
    found: set[str] = set()
    waiting = [compile(inspect.getsource(sys.modules[module]), module, "exec")]
    while waiting:
        code = waiting.pop()
        found.add(f"{module}.{code.co_qualname}")
        waiting += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return found


def _explained(probes: Sequence[Probe], reasons: Iterable[Reason], mutant: Mutant) -> bool:
    """Whether one of the reasons is why a mutant is not noticed, by what it computes too."""
    functions = emitters_of(probes[0])[mutant.line]
    covering = [reason.result for reason in reasons if reason.covers(mutant, functions)]
    if not covering or max(covering) is Result.OTHER:
        return bool(covering)
    return result_of(probes, text_of(probes[0]), mutant) <= max(covering)


def _check_refused(
    probes: Sequence[Probe], report: MutationReport, reasons: Sequence[Reason]
) -> None:
    """Asserts that what is noticed, and covered by reasons that need evidence, is not excused."""
    emitters = emitters_of(probes[0])
    noticed = [m for m, outcome in report.outcomes if outcome in report.killed]
    covered = [
        m
        for m in noticed
        if {r.result for r in reasons if r.covers(m, emitters[m.line])} == {Result.SAME}
    ]
    excused = [str(m) for m in covered[:3] if _explained(probes, reasons, m)]
    assert excused == [], excused


def _check_share(
    text: str, emitters: Mapping[int, tuple[str, ...]], reasons: Sequence[Reason]
) -> None:
    """Asserts that reasons which need no evidence are said of few mutants of a text."""
    said = {
        line: [reason for reason in reasons if reason.names(functions)]
        for line, functions in emitters.items()
    }
    covered = [any(r.covers(m, emitters[m.line]) for r in said[m.line]) for m in mutants(text)]
    assert sum(covered) <= MOST_WITHOUT_EVIDENCE * len(covered), sum(covered) / len(covered)
