"""Tables of all facts of a family."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpu_suite.tables import table
from support.places import PRECISIONS

from trust.cells import LABELS, STALE, bold, cell, launched, share_of, total
from trust.evidence import Evidence, Fact, family_kernels, noticed_of
from trust.texts import TARGETS

__all__ = ["errors", "launches", "mutants", "races"]


def _by_target(facts: Sequence[Fact], show: Callable[[list[Any]], str]) -> list[str]:
    return [
        cell([fact for fact in facts if fact.value["target"] == target], show, "")
        for target in TARGETS
    ]


def errors(evidence: Evidence, family: str) -> Iterator[str]:
    rows = []
    for name in family_kernels(family):
        for precision, (_, _, tolerance) in PRECISIONS.items():
            facts = [f for f in evidence.facts("errors", name) if f.value["precision"] == precision]
            if facts:
                count = total((fact.value for fact in facts), "results")
                cells = _by_target(facts, _worst)
                rows.append([f"`{name}`", LABELS[precision], count, *cells, f"{tolerance:.0e}"])
    yield from table(["kernel", "precision", "results", *TARGETS, "allowed"], rows)


def _worst(values: list[Any]) -> str:
    worst = max(values, key=share_of)
    return bold(f"{worst['error']:.1e}", not share_of(worst) <= 1)


def launches(evidence: Evidence, family: str) -> Iterator[str]:
    rows = []
    for name in family_kernels(family):
        for dtype in ("f16", "bf16", "f32", "f64"):
            facts = [f for f in evidence.facts("launches", name) if f.value["dtype"] == dtype]
            if facts:
                rows.append([f"`{name}`", dtype, *_by_target(facts, launched)])
    yield from table(["kernel", "type", *TARGETS], rows)


def mutants(evidence: Evidence, family: str) -> Iterator[str]:
    rows, reasons = [], collections.Counter()
    for name in family_kernels(family):
        for fact in evidence.facts("mutants", name):
            value = fact.value
            survived = sum(value["survivors"].values())
            apart = [value["same"], value["rejected"], survived]
            numbers = [value["mutants"], value["tried"], noticed_of(value), *apart]
            rows.append([f"`{name}`", value["probe"], *numbers, STALE if fact.stale else fact.date])
            reasons.update(value["survivors"])
    headings = ["mutants", "tried", "noticed", "same machine code", "rejected by ptxas", "survived"]
    yield from table(["kernel", "layer", *headings, "proven"], rows)
    if reasons:
        yield "Why they survived:"
        yield ""
        yield from (f"- {why} ({count})" for why, count in reasons.most_common())
        yield ""


def races(evidence: Evidence, family: str) -> Iterator[str]:
    rows = []
    for name in family_kernels(family):
        facts = evidence.facts("races", name)
        if not facts:
            texts = evidence.texts.get(name, {}).values()
            count, of = total(texts, "synchronised"), total(texts, "configurations")
            rows.append(
                [f"`{name}`", "", f"not asked: {count} of {of} texts have barriers", "", ""]
            )
        for case in sorted({fact.value["case"] for fact in facts}):
            whole, broken = (
                [f for f in facts if f.value["case"] == case and f.value["whole"] == is_whole]
                for is_whole in (True, False)
            )
            proven = cell(whole, lambda v: ", ".join(v[0]["verdicts"]).replace("_", " "))
            noticed = cell(broken, _without, "")
            dates = [fact.date for fact in facts if fact.value["case"] == case]
            rows.append([f"`{name}`", case, proven, noticed, min(dates)])
    yield from table(["kernel", "launch", "verdict", "without one barrier", "proven"], rows)


def _without(values: list[Any]) -> str:
    """What the verifier says of a kernel without one of its barriers, waits and commits each."""
    counts: collections.Counter[str] = collections.Counter()
    for value in values:
        counts.update(value["verdicts"])
    needless = counts["race_free"]
    return f"{counts.total() - needless} noticed, {needless} needless"
