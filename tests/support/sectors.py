"""Sectors of global memory that the accesses of a launch touch, by array."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence

import pytest

from ptx.emulator import Report
from ptx.emulator.report import Sectors

__all__ = ["TARGETS", "Access", "check_waste", "sectors_of_arrays", "times"]

Access = tuple[str, str]  # "load", "copy", "store" or "add", and the parameter of the array
TARGETS = ("sm_80", "sm_90")

_MOST = 1.25  # times the least possible, of accesses that are not named

_INSTRUCTION = re.compile(r"\s*(?:@!?%\w+\s+)?(?P<name>[a-z][\w.:]*)\s+(?P<operands>.*);")
_KINDS = {
    "ld.global": "load", "cp.async": "copy", "st.global": "store", "red.global": "add",
}  # fmt: skip


def sectors_of_arrays(text: str, report: Report) -> Mapping[Access, Sectors]:
    """What each kind of access to each array has touched.

    Args:
      text: the kernel's text.
      report: the report of a launch of it, with statistics.

    Raises:
      ValueError: an access is to an array that no parameter points to.
    """
    lines = text.splitlines()
    arrays = _arrays(lines)
    found: collections.defaultdict[Access, Sectors] = collections.defaultdict(
        lambda: Sectors(0, 0, 0)
    )
    for number, sectors in report.sectors.items():
        line = lines[number - 1]
        kind = next(kind for name, kind in _KINDS.items() if name in line)
        names = [arrays[r] for r in re.findall(r"\[(%\w+)", line) if r in arrays]
        if not names:
            raise ValueError(f"what array is this? {line}")
        found[kind, names[-1]] += sectors
    return found


def times(sectors: Sectors) -> float:
    """How many times the least possible they are."""
    return sectors.sectors / sectors.ideal


def check_waste(launches: Iterable[Mapping[Access, Sectors]], allowed: Mapping[str, float]) -> None:
    """Asserts that accesses touch few more sectors than they must, but for those that are named.

    Args:
      launches: what the accesses of each launch have touched.
      allowed: of accesses such as "load mask", the largest `times` of all launches.
    """
    worst: dict[str, float] = {}
    for launch in launches:
        for access, sectors in launch.items():
            name = " ".join(access)
            worst[name] = max(worst.get(name, 0), times(sectors))
    wasted = {name: value for name, value in worst.items() if value > _MOST}
    assert wasted == pytest.approx(dict(allowed), rel=0.01)


def _arrays(lines: Sequence[str]) -> Mapping[str, str]:
    """The parameter that each register of an address is a sum with."""
    found: dict[str, str] = {}
    for line in lines:
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        name, operands = instruction["name"], instruction["operands"]
        result, *sources = re.findall(r"%\w+", operands) or [""]
        if name == "ld.param.u64":
            (found[result],) = re.findall(r"\[(\w+)\]", operands)
        elif name.startswith(("cvta.", "add.", "mad.", "selp.", "mov.")):
            for source in sources:
                if source in found:
                    found[result] = found[source]
    return found
