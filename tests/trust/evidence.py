"""The contents of `docs/evidence/trust.json`: facts, their dates, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_suite.tables import results
from support.paths import DOCS, ROOT

from trust.kernels import FAMILIES, kernels_of

__all__ = [
    "EVIDENCE",
    "Evidence",
    "Fact",
    "as_text",
    "facts",
    "hardware",
    "noticed_of",
    "problems",
    "survived_of",
]

EVIDENCE = DOCS / "evidence" / "trust.json"
RESULTS = ROOT / "benchmarks" / "results"  # with those of GPUs

Evidence = dict[str, Any]  # as in the file: "texts" by kernel, "jobs" by name
Fact = Mapping[str, Any]  # something that a proof has shown, and the date on which it ran


def facts(evidence: Evidence, kind: str, name: str | None = None, **fields: str) -> list[Fact]:
    """The facts of a kind, such as "launches": of all kernels or one, with some fields."""
    wanted = {**fields, **({"name": name} if name else {})}
    return [
        {**fact, "date": job["date"]}
        for job in evidence["jobs"].values()
        for fact in job.get(kind, [])
        if wanted.items() <= {k: fact.get(k) for k in wanted}.items()
    ]


def problems(evidence: Evidence) -> Iterator[str]:
    """What is wrong, in words: tests fail where a figure is not what it has to be."""
    for name, job in evidence["jobs"].items():
        for test, why in job["tests"]["failed"].items():
            yield f"{name}: {test} failed: {why}"
    for name in kernels_of(*FAMILIES):
        for kind in ("assembly", "launches", "errors"):
            if not facts(evidence, kind, name):
                yield f"{name} has no {kind}: run python tests/trust"


def noticed_of(studies: Iterable[Fact]) -> int:
    """How many mutants of studies were noticed."""
    return sum(sum(study["noticed"].values()) for study in studies)


def survived_of(studies: Iterable[Fact]) -> int:
    """How many mutants of studies are another program, and were not noticed."""
    return sum(sum(study["survivors"].values()) for study in studies)


def hardware(folder: Path = RESULTS) -> dict[str, tuple[str, str]]:
    """Of each family of which all tests have passed on a GPU: the last date, and the GPU.

    Read from the reports of `benchmarks/gpu.py` that are committed.
    """
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        if not isinstance(report, dict) or report.get("mode") != "measure":
            continue
        tests, counts = report["sections"].get("tests", {}), results(report, "tests").get("counts")
        if tests.get("status") != "done" or tests["failures"] or not counts:
            continue
        if counts["passed"] != counts["collected"]:
            continue
        idle = results(report, "info").get("nvidia_smi", {}).get("idle", {})
        gpu = idle.get("name", "a GPU") if isinstance(idle, dict) else "a GPU"
        for family in FAMILIES:
            if family in results(report, "tests").get("passed_in", {}):
                found[family] = max(found.get(family, ("", "")), (report["date"], gpu))
    return found


def as_text(evidence: Evidence) -> str:
    """JSON with a line for each fact, so that versions are easy to compare."""
    parts = []
    for part, entries in evidence.items():
        lines = [f"  {json.dumps(name)}: {_entry(value)}" for name, value in entries.items()]
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _entry(value: Mapping[str, Any]) -> str:
    fields = []
    for name, field in value.items():
        text = json.dumps(field)
        if isinstance(field, list):
            text = "[\n" + ",\n".join(f"    {json.dumps(one)}" for one in field) + "\n   ]"
        fields.append(f"   {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n  }"
