"""Parts that all pages of figures have: a page, its head, tables and numbers."""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evidence_pages.charts import Chart, Interval, number
from evidence_pages.readings import Reading

__all__ = [
    "RATIO",
    "Page",
    "cell",
    "geometric_mean",
    "head",
    "interval",
    "number",
    "paragraph",
    "picture",
]

RATIO = "oxijax's time / the other's (below 1 oxijax takes less)"


@dataclasses.dataclass(frozen=True)
class Page:
    """A page and its pictures, by the names of their files beside it."""

    lines: Sequence[str]
    charts: Mapping[str, Chart]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip() + "\n"


def head(reading: Reading, command: str, more: Mapping[str, str] | None = None) -> Iterable[str]:
    """When, where, with what and how a result was measured.

    Args:
      reading: the result.
      command: the command that measures it again.
      more: further versions.
    """
    versions = {**reading.versions, **(more or {})}
    yield f"- **Measured** on {reading.date[:10]}, on this machine: {reading.machine}."
    yield (
        "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    )
    yield f"- Command: `{command}`"
    yield f"- All figures: `benchmarks/results/{reading.name}`"
    yield ""


def paragraph(text: str) -> Iterable[str]:
    """The text in lines of 100 characters, and an empty line."""
    yield from textwrap.wrap(
        " ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False
    )
    yield ""


def interval(place: Mapping[str, Any], key: str) -> Interval:
    """The median and quartiles of a figure, or the figure alone where its file has no spread."""
    if "spread" not in place:
        return Interval(place[key])
    found = place["spread"][key]
    return Interval(found["median"], found["lower_quartile"], found["upper_quartile"])


def cell(value: Interval) -> str:
    """For example: 7.54 (7.41 to 7.93)."""
    if value.low is None or value.high is None:
        return number(value.value)
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(math.fsum(map(math.log, values := list(values))) / len(values))


def picture(name: str, words: str) -> Iterable[str]:
    """A picture, with what it shows in words."""
    yield f"![{words}]({name})"
    yield ""
