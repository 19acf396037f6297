"""Sectors of global memory that the accesses of a launch touch, by array, and tables of them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence

from ptx.emulator import Report
from ptx.emulator.report import Sectors

__all__ = ["TARGETS", "Access", "SectorTable", "sectors_of_arrays", "times"]

Access = tuple[str, str]  # "load", "copy", "store" or "add", and the parameter of the array
TARGETS = ("sm_80", "sm_90")  # of the tables

_MOST = 1.25  # times the least possible, without a reason

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


@dataclasses.dataclass(frozen=True)
class SectorTable:
    """A page's table of what accesses touch, and what the emulator counts.

    A row has the kernel, the access, the target or "both", a cell for each layer, and the letter of
    a reason or nothing.

    Attributes:
      page: its text.
      layers: the names of the table's columns.
      touched: gives what accesses to each array touch, of a kernel, a layer and a target.
    """

    page: str
    layers: Sequence[str]
    touched: Callable[[str, str, str], Mapping[Access, Sectors]]

    @functools.cached_property
    def rows(self) -> list[tuple[str, ...]]:
        """All rows of the page: kernel, access, target, the layers' cells as one text, reason."""
        row = r"^\| (\w+) \| (\w+ \w+) \| (sm_\d\d|both) \| (.*) \| (\w?) \|$"
        return re.findall(row, self.page, re.M)

    def written(self, kernel: str) -> list[tuple[str, ...]]:
        """The page's rows of a kernel, but for the reasons."""
        return [row[:4] for row in self.rows if row[0] == kernel]

    def counted(self, kernel: str) -> list[tuple[str, ...]]:
        """The rows of a kernel, but for the reasons, as the emulator counts."""
        found = {t: [self.touched(kernel, layer, t) for layer in self.layers] for t in TARGETS}
        accesses = dict.fromkeys(a for t in TARGETS for of_layer in found[t] for a in of_layer)
        result = []
        for access in accesses:
            cells = [
                " | ".join(_cell(of_layer.get(access)) for of_layer in found[target])
                for target in TARGETS
            ]
            same = cells[0] == cells[1]
            for target, of_target in zip(["both"] if same else TARGETS, cells, strict=False):
                result.append((kernel, " ".join(access), target, of_target))
        return result

    def check_reasons(self) -> None:
        """Asserts that rows have reasons where much is wasted, and there only, and all are used."""
        reasons = set(re.findall(r"^- \*\*(\w)\*\*: ", self.page, re.M))
        assert {row[4] for row in self.rows} == {"", *reasons}
        for *row, cells, reason in self.rows:
            worst = max(float(value) for value in re.findall(r"\(([\d.]+)\)", cells))
            assert (worst > _MOST) == bool(reason), row


def _cell(sectors: Sectors | None) -> str:
    """Sectors of a request, and how many times the least possible that is."""
    return f"{sectors.per_request:.1f} ({times(sectors):.2f})" if sectors else "none"


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
