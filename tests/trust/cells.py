"""What a cell of a table says: what facts show, that they are stale, or that there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trust.evidence import Fact, noticed_of

__all__ = [
    "LABELS",
    "NONE",
    "STALE",
    "bold",
    "cell",
    "launched",
    "nearest",
    "noticed",
    "proven",
    "spilled",
    "total",
]

STALE = "not proven since it changed"
NONE = "not run"
LABELS = {
    "float64": "f64",
    "exact": 'f32, `precision="highest"`',
    "tf32": "f32 as TF32",
    "bfloat16": "bf16",
    "float16": "f16",
}


def cell(facts: Sequence[Fact], show: Callable[[list[Any]], str], otherwise: str = NONE) -> str:
    """What facts say that are not stale; that they are, or that there are none."""
    if not facts:
        return otherwise
    values = [fact.value for fact in facts if not fact.stale]
    return show(values) if values else STALE


def bold(value: Any, wrong: Any) -> str:
    return f"**{value}**" if wrong else str(value)


def spilled(values: list[Any]) -> str:
    spills, assembled = total(values, "spills"), total(values, "assembled")
    return f"{bold(spills, spills)} in {assembled}"


def launched(values: list[Any]) -> str:
    return f"{total(values, 'launches')} ({total(values, 'random')})"


def total(values: Iterable[Mapping[str, Any]], field: str) -> int:
    return sum(value[field] for value in values)


def noticed(values: list[Any]) -> str:
    noticed = sum(map(noticed_of, values))
    return f"{noticed} of {noticed + sum(sum(v['survivors'].values()) for v in values)}"


def proven(values: list[Any]) -> str:
    free = sum({*value["verdicts"]} == {"race_free"} for value in values)
    return bold(f"{free} of {len(values)} proven", free != len(values))


def nearest(values: list[Any]) -> str:
    share, precision = max((v["error"] / v["tolerance"], v["precision"]) for v in values)
    label = LABELS[precision].split(",")[0]
    return bold(f"{share:.0%} ({label})", not share <= 1)
