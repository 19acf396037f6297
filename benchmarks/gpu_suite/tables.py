"""Figures out of the report, and tables of Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["microseconds", "number", "results", "table"]


def results(report: dict[str, Any], section: str) -> dict[str, Any]:
    """What a section has found; empty if it has not run."""
    return report["sections"].get(section, {}).get("results", {})


def microseconds(times: dict[str, Any], layer: str, dtype: str, operation: str) -> float | None:
    """The median, of a section's "times"."""
    return times.get(layer, {}).get(dtype, {}).get(operation, {}).get("median_us")


def number(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(value, form)


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterable[str]:
    for row in (headings, ["---"] * len(headings), *rows):
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""
