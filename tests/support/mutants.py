"""What the studies of the kernels' mutants share: where a mutant is, and why it survives."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ptx.testing.mutate import Mutant, MutationReport, study

__all__ = ["Probe", "Reason", "check", "explained", "part", "report_of", "text_of"]

# Why nothing notices a mutant, and regular expressions of the kernel's name, of where in it, of the
# instruction, and of what is done to it.
Reason = tuple[str, str, str, str, str]

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


class Probe(Protocol):
    """A call of a kernel that shows whether it is broken."""

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        ...

    def run(self, text: str) -> object:
        """Raises if a text does not compute what the kernel does."""


def text_of(probe: Probe) -> str:
    """The text of a kernel, without stores to shared memory that nothing loads."""
    lines = probe.text.split("\n")
    for array in re.findall(r"\.shared .*\.b8 (\w+)\[", "\n".join(lines)):
        registers = re.findall(rf"(%r\d+), .*%{array};", "\n".join(lines))
        place = re.compile(rf"\[({'|'.join([f'%{array}', *registers])})(\+\d+)?\]")
        used = [number for number, line in enumerate(lines) if place.search(line)]
        if all("st.shared" in lines[number] for number in used):
            for number in used:
                lines[number] = ""
    return "\n".join(lines)


@functools.cache
def report_of(probes: Sequence[Probe], target: str, limit: int) -> MutationReport:
    """What becomes of so many mutants of a kernel, if each has to solve all of the probes."""

    def notices(text: str) -> None:
        for probe in probes:
            probe.run(text)

    return study(text_of(probes[0]), notices, target=target, limit=limit, seed=1)


def part(text: str, line: int) -> str:
    """Where a line is: the last comment before it, and the last loop that begins after that."""
    comment, loop = "setup", ""
    for before in text.split("\n")[:line]:
        if found := re.match(r"\s+// ([a-z].*)", before, re.I):
            comment, loop = found[1].partition(":")[0], ""
        elif found := re.match(r"\$(loop_\w+?)_\d+:", before):
            loop = f" / {found[1]}"
    return comment + loop


def explained(name: str, text: str, mutant: Mutant, reasons: Iterable[Reason]) -> bool:
    """Whether one of the reasons is why a mutant of a kernel's text is not noticed."""
    code = re.sub(r" +", " ", mutant.original)
    where = (name, part(text, mutant.line), code, mutant.kind)
    return any(
        all(re.fullmatch(pattern, value) for pattern, value in zip(patterns, where, strict=True))
        for _, *patterns in reasons
    )


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
    killed, same, survived, by = 0, 0, 0, set()
    for name, probes in kernels.items():
        report, text = report_of(probes, target, limit), text_of(probes[0])
        every = (*equivalent, *negligible)
        unexplained = [str(m) for m in report.survivors if not explained(name, text, m, every)]
        assert unexplained == [], name
        killed += sum(report.killed.values())
        survived += len(report.survivors)
        same += sum(explained(name, text, m, equivalent) for m in report.survivors)
        by |= report.killed.keys()
    assert by <= NOTICED_BY
    assert len(by) >= 3
    assert killed >= 0.95 * (killed + survived - same)
    assert killed >= 0.85 * (killed + survived)  # the reasons do not explain everything away
