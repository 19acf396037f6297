"""What a cell of a table says: what facts show, that they are stale, or that there are none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from support.places import PRECISIONS

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
    "share_of",
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
    """The largest error, as a share of what is allowed."""
    worst = max(values, key=share_of)
    label = LABELS[worst["precision"]].split(",")[0]
    return bold(f"{share_of(worst):.0%} ({label})", not share_of(worst) <= 1)


def share_of(value: Mapping[str, Any]) -> float:
    """An error, as a share of what is allowed; one that is no number is beyond all."""
    share = value["error"] / PRECISIONS[value["precision"]][2]
    return math.inf if math.isnan(share) else share
