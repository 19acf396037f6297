"""What `docs/evidence/trust.json` says: facts, their dates, which are stale, and what is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_suite.tables import results
from support.paths import DOCS, ROOT
from support.places import PRECISIONS

from trust.texts import FAMILIES, TARGETS, family_of, kernels

__all__ = [
    "EVIDENCE",
    "Evidence",
    "Fact",
    "as_text",
    "family_kernels",
    "hardware",
    "noticed_of",
]

EVIDENCE = DOCS / "evidence" / "trust.json"
RESULTS = ROOT / "benchmarks" / "results"  # with those of GPUs
# Of the mutants that run and are another program, those that a check has to notice.
LEAST_NOTICED = 0.85


@dataclasses.dataclass(frozen=True)
class Fact:
    """Something that a proof has shown.

    Attributes:
      value: as the job has recorded it.
      date: on which the proof ran.
      stale: whether texts that it is about have changed since.
    """

    value: Mapping[str, Any]
    date: str
    stale: bool


class Evidence:
    """The recorded facts, beside the texts of today.

    Attributes:
      texts: of each kernel and GPU what `trust.texts.texts_of` returns.
      jobs: what `trust.jobs.run` returns, by the names of jobs.
    """

    def __init__(self, recorded: Mapping[str, Any]):
        self.texts: Mapping[str, Mapping[str, Any]] = recorded["texts"]
        self.jobs: Mapping[str, Mapping[str, Any]] = recorded["jobs"]

    def facts(self, kind: str, name: str | None = None, target: str | None = None) -> list[Fact]:
        """The facts of a kind, such as "launches": of all kernels or one, for all GPUs or one."""
        found = []
        for job in self.jobs.values():
            for value in job.get(kind, []):
                about = _about(value)
                if name in (None, *(kernel for kernel, _ in about)) and (
                    target in (None, *(gpu for _, gpu in about))
                ):
                    stale = any(self.is_changed(job, *one) for one in about)
                    found.append(Fact(value, job["date"], stale))
        return found

    def is_changed(self, job: Mapping[str, Any], kernel: str, target: str) -> bool:
        """Whether a kernel's text for a GPU is another one than a job's proofs had."""
        then = job["keys"].get(kernel, {}).get(target)
        return then != self.texts.get(kernel, {}).get(target, {}).get("key")

    def problems(self) -> Iterator[str]:
        """What is wrong, in words; what has only not been proven yet is not."""
        for name in kernels():
            for target in TARGETS:
                if target not in self.texts.get(name, {}):
                    yield f"{name} for {target} has no entry: run python tests/trust"
        for name, job in self.jobs.items():
            for test, why in job["tests"]["failed"].items():
                yield f"{name}: {test} failed: {why}"
        for value in (fact.value for fact in self.facts("assembly")):
            where = f"{value['name']} for {value['target']}"
            if value["spills"]:
                yield f"{where} spills {value['spills']} bytes of registers"
            if value["assembled"] != value["configurations"]:
                missing = value["configurations"] - value["assembled"]
                yield f"{where}: {missing} configurations were not assembled"
        for value in (fact.value for fact in self.facts("errors")):
            where = f"{value['name']} for {value['target']} in {value['precision']}"
            tolerance = PRECISIONS[value["precision"]][2]
            if value["tolerance"] != tolerance:
                yield f"{where}: a tolerance of {value['tolerance']:.0e}, not {tolerance:.0e}"
            if not value["error"] <= tolerance:
                yield f"{where}: an error of {value['error']:.2g}, over {tolerance:.0e}"
        for value in (fact.value for fact in self.facts("races")):
            if value["whole"] and {*value["verdicts"]} != {"race_free"}:
                verdicts = ", ".join(value["verdicts"])
                yield f"{value['name']}, {value['case']}: the verifier says {verdicts}"
        for value in (fact.value for fact in self.facts("mutants")):
            noticed, survived = noticed_of(value), sum(value["survivors"].values())
            if noticed + survived + value["rejected"] + value["same"] != value["tried"]:
                yield f"{value['probe']}: {value['tried']} mutants do not add up"
        for name in kernels():
            studies = [fact.value for fact in self.facts("mutants", name)]
            noticed = sum(map(noticed_of, studies))
            survived = sum(sum(value["survivors"].values()) for value in studies)
            if studies and noticed < LEAST_NOTICED * (noticed + survived):
                yield f"{name}: only {noticed} of {noticed + survived} mutants were noticed"


def noticed_of(study: Mapping[str, Any]) -> int:
    """How many mutants of a study were noticed."""
    return sum(study["noticed"].values())


def _about(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The kernels and GPUs that a fact is about."""
    if "kernels" in value:
        return [(kernel, target) for kernel, target in value["kernels"]]
    return [(value["name"], value["target"])]


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
            if family in results(report, "tests").get("worst_errors", {}):
                found[family] = max(found.get(family, ("", "")), (report["date"], gpu))
    return found


def as_text(recorded: Mapping[str, Any]) -> str:
    """JSON with a line for each fact, so that versions are easy to compare."""
    lines = []
    for part in ("texts", "jobs"):
        entries = []
        for name, value in recorded[part].items():
            fields = [f"   {json.dumps(k)}: {_field(v)}" for k, v in value.items()]
            entries.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(fields) + "\n  }")
        lines.append(f' "{part}": {{\n' + ",\n".join(entries) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _field(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {json.dumps(one)}" for one in value) + "\n   ]"
    return json.dumps(value)


def family_kernels(family: str) -> list[str]:
    return [name for name in kernels() if family_of(name) == family]
