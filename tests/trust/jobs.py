"""The proofs that the report is made of, and what is kept of each run."""

from __future__ import annotations

import dataclasses
import datetime
import glob
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.paths import ROOT

from oxijax._cli.check import CheckResult, check
from ptx.isa.assembler import ptxas_version
from ptx.isa.targets import TARGETS as GPUS
from ptx.kernel import KernelDefinition
from trust.texts import FAMILIES, TARGETS, family_of, kernels

__all__ = ["JOBS", "Job", "run"]

_FACTS = "OXIJAX_TRUST_FACTS"  # the name that the observer has for it


@dataclasses.dataclass(frozen=True)
class Job:
    """Proofs of kernels that run together.

    Attributes:
      families: whose kernels they are about.
      tests: what pytest runs; none for what ptxas says of all texts.
      parts: one of so many parts of the tests runs, chosen by their names, or of the
        configurations of each kernel.
    """

    families: tuple[str, ...]
    tests: tuple[str, ...] = ()
    parts: int = 1

    @property
    def options(self) -> tuple[str, ...]:
        """Of pytest."""
        sample = ("--sample", f"0/{self.parts}") if self.parts > 1 else ()
        return ("-n", "0", "--afresh", "all", *sample, *self.tests)

    @property
    def command(self) -> str:
        """What runs the proofs alone."""
        if self.tests:
            return f"python -m pytest {' '.join(self.options)}"
        chosen = [f"--kernel {k}" for k in kernels() if family_of(k) in self.families]
        return " ".join(["python -m oxijax check", *chosen, *(f"--target {t}" for t in TARGETS)])

    def configurations(self, kernel: KernelDefinition) -> list[str]:
        """Those of a kernel that are assembled."""
        return list(kernel.configs)[:: self.parts]


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_TEXTS, _CALLS = "tests/ptx/kernels", "tests/oxijax"
# A part of the tests where all of them take long: CI runs all, and keeps what has passed.
JOBS: Mapping[str, Job] = {
    "assembly-deform_conv": Job(("deform_conv",)),
    "assembly-sampling": Job(("sampling",), parts=3),
    "assembly-conv": Job(("conv",), parts=3),
    "assembly-gemm": Job(("gemm",), parts=3),
    "races": Job(
        ("deform_conv", "conv", "gemm"),
        _in(_TEXTS, "test_race_freedom.py", "test_lost_synchronisation.py"),
    ),
    "calls-conv": Job(("conv",), _in(f"{_CALLS}/conv", "test_emulated.py")),
    "calls-gemm": Job(("gemm",), _in(f"{_CALLS}/gemm", "test_emulated.py"), 4),
    "calls-deform_conv": Job(
        ("deform_conv",),
        _in(f"{_CALLS}/deform_conv", "test_emulated.py", "test_deterministic.py"),
        2,
    ),
    "calls-sampling": Job(
        ("sampling",), _in(f"{_CALLS}/sampling", "test_emulated.py", "test_packed.py"), 6
    ),
    **{
        f"mutants-{family}": Job((family,), _in(f"{_TEXTS}/{family}", "test_mutants.py"))
        for family in FAMILIES
    },
    "suites": Job(
        ("deform_conv", "sampling"),
        (
            f"{_CALLS}/deform_conv/test_torchvision_suite.py",
            f"{_CALLS}/deform_conv/test_mmcv_constants.py",
            f"{_CALLS}/deform_conv/test_values.py::test_golden",
            f"{_CALLS}/onnx/test_deform_conv.py",
            f"{_CALLS}/sampling/test_values.py::test_recorded",
            f"{_CALLS}/sampling/test_values.py::test_channels_of_a_group",
            f"{_CALLS}/test_deform_conv_modules.py::test_result_in_float32",
            f"{_CALLS}/test_deform_conv_modules.py::test_result_and_gradients_in_float64",
        ),
    ),
    "texts-deform_conv": Job(
        ("deform_conv",), _in(f"{_TEXTS}/deform_conv", "test_coverage.py", "test_direct.py"), 3
    ),
    "texts-sampling": Job(("sampling",), _in(f"{_TEXTS}/sampling", "test_coverage.py"), 2),
    "texts-conv": Job(("conv",), _in(f"{_TEXTS}/conv", "test_coverage.py", "test_direct.py")),
    "texts-gemm": Job(("gemm",), _in(f"{_TEXTS}/gemm", "test_kernels.py"), 2),
}


def run(job: Job, keys: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Runs a job's proofs: what they have shown, when, and of which texts.

    Args:
      job: the job.
      keys: of the texts that there are, by kernel and GPU.
    """
    start = time.monotonic()
    facts = _observed(job) if job.tests else _assembled(job)
    return {
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.monotonic() - start),
        "command": job.command,
        "parts": job.parts,
        "versions": _versions(),
        "keys": {name: dict(of) for name, of in keys.items() if family_of(name) in job.families},
        **facts,
    }


def _versions() -> dict[str, str]:
    names = ("jax", "numpy", "sentryward")
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "ptxas": ptxas_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def _observed(job: Job) -> dict[str, Any]:
    """What a job's tests show, which pytest runs in one process; it prints their progress."""
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder, "facts.json")
        paths = [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "pytest", "-p", "trust.observer"]
        command += ["-p", "no:cacheprovider", "--tb=short", *job.options]
        status = subprocess.run(
            command, cwd=ROOT, env={**environment, _FACTS: str(facts)}, check=False
        ).returncode
        found = json.loads(facts.read_text()) if facts.exists() else {"tests": {"failed": {}}}
    if status != 0 and not found["tests"]["failed"]:
        found["tests"]["failed"] = {job.command: f"pytest ended with status {status}"}
    return found


def _assembled(job: Job) -> dict[str, Any]:
    """What ptxas says of each kernel, by GPU."""
    rows, failed, passed = [], {}, 0
    for name, kernel in kernels().items():
        if family_of(name) not in job.families:
            continue
        for target in TARGETS:
            chosen = [glob.escape(config) for config in job.configurations(kernel)]
            results = check([kernel], [GPUS[target]], chosen)
            failed |= {r.name: "; ".join(r.messages) or r.status for r in results if r.failed}
            passed += sum(not result.failed for result in results)
            rows.append({"name": name, "target": target, **_cost(results)})
            print(f"  {name} for {target}: {rows[-1]}", flush=True)
    return {
        "tests": {"passed": passed, "skipped": 0, "failed": failed},
        "assembly": rows,
    }


def _cost(results: Sequence[CheckResult]) -> dict[str, Any]:
    entries = [entry for result in results for entry in result.kernels]
    registers = [entry.registers for entry in entries]
    return {
        "configurations": len(results),
        "assembled": sum(bool(result.kernels) for result in results),
        "registers": [min(registers, default=0), max(registers, default=0)],
        "spills": sum(entry.spills for entry in entries),
        "stack": sum(entry.local_bytes for entry in entries),
    }
