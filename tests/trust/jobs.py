"""The proofs that the report is made of: which are stale, and what is kept of each run."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.paths import ROOT

from ptx.isa.assembler import ptxas_version
from trust.evidence import Evidence
from trust.kernels import FAMILIES, family_of, kernels_of, texts_of
from trust.sources import Sources, digest

__all__ = [
    "JOBS",
    "Job",
    "drawn",
    "prove_share",
    "run",
    "texts_key",
    "why_stale",
    "write_texts",
    "writers",
]

# Of the proofs, as pytest's option -m: those of the tier `proof`, and what is of none.
MARKS = "(proof or not proof) and not slow"
SHARE = 1 / 40  # of the recorded seconds
_EMULATOR = ROOT / "ptx" / "emulator" / "launch.py"


@dataclasses.dataclass(frozen=True)
class Job:
    """Proofs about the kernels of a family that run together.

    Attributes:
      family: the family whose kernels they are about.
      tests: the files, or tests, that pytest runs; those of other families in them are left out.
      of_texts: whether they hold for the same texts, whatever writes them.
    """

    family: str
    tests: tuple[str, ...]
    of_texts: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """Of pytest."""
        chosen = "conv and not deform_conv" if self.family == "conv" else self.family
        shared = any(self.family not in test for test in self.tests)
        return ("-m", MARKS, *(("-k", chosen) if shared else ()), *self.tests)

    @property
    def command(self) -> str:
        """What runs the proofs alone."""
        return f"python -m pytest {shlex.join(self.options)}"

    def has(self, nodeid: str) -> bool:
        """Whether a test is one of the job's."""
        return nodeid.startswith(self.tests) and family_of(nodeid) == self.family

    def checking(self, sources: Sources) -> str:
        """The hash of the tests, and of what they run but for what writes texts."""
        found = sources.closure(ROOT / test.partition("::")[0] for test in self.tests)
        emulator = sources.closure([_EMULATOR]) if _EMULATOR in found else frozenset()
        own = frozenset() if self.of_texts else writers(sources, self.family)
        every = (writers(sources, family) for family in FAMILIES)
        return sources.digest(found.difference(*every) | emulator | own)


@functools.cache
def writers(sources: Sources, family: str) -> frozenset[Path]:
    """What a family's texts are written by."""
    return sources.closure([ROOT / "ptx" / "kernels" / family / "__init__.py"])


_KERNELS, _OPERATORS = "tests/ptx/kernels", "tests/oxijax"
# A kind of proofs -> their files; of a family those that there are.
_FILES = {
    "assembly": [f"{_KERNELS}/test_assembled.py"],
    "races": [f"{_KERNELS}/test_race_freedom.py", f"{_KERNELS}/test_lost_synchronisation.py"],
    "mutants": [f"{_KERNELS}/FAMILY/test_mutants.py"],
    "texts": [
        f"{_KERNELS}/FAMILY/test_{name}.py" for name in ("coverage", "direct", "kernels", "tiles")
    ],
    "limits": [f"{_KERNELS}/FAMILY/test_limits.py"],
    "calls": [
        f"{_OPERATORS}/FAMILY/test_{name}.py"
        for name in ("emulated", "deterministic", "packed", "windows")
    ],
}
_SUITES = {
    "deform_conv": (
        f"{_OPERATORS}/deform_conv/test_torchvision_suite.py",
        f"{_OPERATORS}/deform_conv/test_mmcv_constants.py",
        f"{_OPERATORS}/deform_conv/test_values.py::test_golden",
        f"{_OPERATORS}/onnx/test_deform_conv.py",
        f"{_OPERATORS}/test_deform_conv_modules.py::test_result_in_float32",
        f"{_OPERATORS}/test_deform_conv_modules.py::test_result_and_gradients_in_float64",
    ),
    "sampling": (
        f"{_OPERATORS}/sampling/test_values.py::test_recorded",
        f"{_OPERATORS}/sampling/test_values.py::test_channels_of_a_group",
    ),
}


def _jobs() -> Iterator[tuple[str, Job]]:
    for kind, files in _FILES.items():
        for family in FAMILIES:
            named = (file.replace("FAMILY", family) for file in files)
            tests = tuple(file for file in named if (ROOT / file).exists())
            # The verifier follows no addresses that depend on data, as those of tiles do.
            if (kind, family) != ("races", "sampling"):
                yield f"{kind}-{family}", Job(family, tests, of_texts=kind != "limits")
    yield from ((f"suites-{family}", Job(family, tests)) for family, tests in _SUITES.items())


JOBS: Mapping[str, Job] = dict(_jobs())


# ---- what is stale


def write_texts(evidence: Evidence, family: str, sources: Sources) -> list[str]:
    """Writes a family's texts if what writes them has changed; the kernels that have others now."""
    known, writing = evidence["texts"], sources.digest(writers(sources, family))
    changed = []
    for name, kernel in kernels_of(family).items():
        before = known.get(name, {})
        if before.get("writing") != writing:
            known[name] = {"writing": writing, **texts_of(kernel, before)}
            changed += [name] * (known[name]["key"] != before.get("key"))
    return changed


def why_stale(evidence: Evidence, name: str, sources: Sources) -> str:
    """Why a job has to run; empty where it need not.

    Where what writes the texts has changed, `write_texts` finds out whether they are the same.
    """
    job, known = JOBS[name], evidence["jobs"].get(name)
    if known is None:
        return "has not run yet"
    if known["tests"]["failed"]:
        return "has failed"
    if known["command"] != job.command:
        return "other tests belong to it now"
    if known["checking"] != job.checking(sources):
        return "what proves it has changed"
    if known["texts"] != texts_key(evidence, job.family):
        return "texts have changed"
    writing = sources.digest(writers(sources, job.family))
    if any(evidence["texts"][kernel]["writing"] != writing for kernel in kernels_of(job.family)):
        return "what writes the texts has changed"
    return ""


def texts_key(evidence: Evidence, family: str) -> str:
    """The hash of all recorded texts of a family."""
    return digest(*(evidence["texts"].get(k, {}).get("key", "") for k in kernels_of(family)))


# ---- what runs


def run(name: str, evidence: Evidence, sources: Sources) -> dict[str, Any]:
    """Runs a job's proofs on all cores: what they have shown, when, and of which texts."""
    job = JOBS[name]
    checking = job.checking(sources)
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder, "facts.json")
        status = _pytest(job.options, OXIJAX_TRUST_FACTS=str(facts))
        found = {"seconds": 0, "tests": {"passed": 0, "skipped": 0, "failed": {}}}
        found |= json.loads(facts.read_text()) if facts.exists() else {}
    if status != 0 and not found["tests"]["failed"]:
        found["tests"]["failed"] = {job.command: f"pytest ended with status {status}"}
    return {
        "date": datetime.date.today().isoformat(),
        "command": job.command,
        "versions": _versions(),
        "checking": checking,
        "texts": texts_key(evidence, job.family),
        **found,
    }


def prove_share(text: str) -> int:
    """Runs the share of all proofs that a text draws: pytest's status."""
    tests = {test for job in JOBS.values() for test in job.tests}
    return _pytest(["-m", MARKS, *sorted(tests)], OXIJAX_TRUST_SHARE=text)


def drawn(nodeids: Iterable[str], text: str, evidence: Evidence) -> set[str]:
    """The share of some tests that a text draws: what fits into `SHARE` of the recorded seconds.

    A test is taken to last as long as those of its job on average.
    """
    left = sum(job["seconds"] for job in evidence["jobs"].values()) * SHARE
    found = set()
    for nodeid in sorted(nodeids, key=lambda nodeid: digest(text, nodeid)):
        for name, known in evidence["jobs"].items():
            seconds = known["seconds"] / max(1, known["tests"]["passed"])
            if name in JOBS and JOBS[name].has(nodeid) and seconds <= left:
                found.add(nodeid)
                left -= seconds
    return found


def _pytest(options: Sequence[str], **variables: str) -> int:
    """Runs pytest with the observer; it prints the progress."""
    paths = [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
    arguments = ["-p", "trust.observer", "-p", "no:cacheprovider", "--tb=short", *options]
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _versions() -> dict[str, str]:
    names = ("jax", "numpy", "sentryward")
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "ptxas": ptxas_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }
