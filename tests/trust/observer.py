"""A plugin of pytest: what the proofs show of each kernel while they run, as JSON.

It observes from outside, and no test knows of it: it wraps, before any test is imported, what
writes a kernel's text, the emulator's launch, and the functions of `support` in which results are
compared, mutants studied and races looked for. What a test shows counts only if the test passes.

`python -m pytest -p trust.observer` writes what was found to the file that `FILE_VARIABLE` names.
"""

from __future__ import annotations

import collections
import functools
import inspect
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import gemm_checks, helpers, mutants, race_freedom
from support.places import PRECISIONS

import ptx.emulator
import ptx.kernel
from oxijax._core.launch import _emulation
from trust.suites import case_of, suite_of

__all__ = ["FILE_VARIABLE", "Observer"]

FILE_VARIABLE = "OXIJAX_TRUST_FACTS"

# Which kernels make a result, by the family of the test that compares it. What is not here is
# XLA's: a sum that makes the gradient of a bias, for example. A result without a name is that of
# the only gathering kernel.
_GATHERED = ("deform_conv_backward_input_gather", "sampling_backward_value_gather")
_INPUT = ("deform_conv_backward_input", "deform_conv_backward_input_gather")
_VALUE = ("sampling_backward_value", "sampling_backward_value_gather")
_POINTS = ("sampling_backward_points",)
KERNELS_OF = {
    "deform_conv": {
        "": _GATHERED,
        "y": ("deform_conv_forward",),
        "dx": _INPUT,
        "doffset": ("deform_conv_backward_offset",),
        "dmask": ("deform_conv_backward_offset",),
        "dweight": ("deform_conv_backward_weight",),
    },
    "conv": {
        "y": ("conv_forward",),
        "dx": ("conv_backward_input",),
        "dweight": ("conv_backward_weight",),
    },
    "gemm": {"y": ("gemm",), "da": ("gemm",), "db": ("gemm",)},
    "sampling": {
        "": _GATHERED,
        "y": ("sampling_forward",),
        "dx": _VALUE,
        "dvalue": _VALUE,
        **dict.fromkeys(
            ("doffset", "dmask", "dgrid", "doffset_mask", "dsampling_locations"), _POINTS
        ),
        "dattention_weights": _POINTS,
    },
}
_DTYPES = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}
# What the library promises: (a kernel's type, tolerance) -> the name of the precision.
CONTRACT = {(_DTYPES[dtype], bound): name for name, (dtype, _, bound) in PRECISIONS.items()}


class Kernel(NamedTuple):
    """A kernel's name in the registry, its type, and the GPU that it is for."""

    name: str
    dtype: str
    target: str


class _Test:
    """What one test has shown so far."""

    def __init__(self, item: pytest.Item):
        self.nodeid = item.nodeid
        self.family = next(f for f in (*KERNELS_OF, "") if f"/{f}/" in item.nodeid or not f)
        self.suite, self.case = suite_of(item), case_of(item)
        self.written: list[Kernel] = []
        self.launches: list[tuple[Kernel, int | None, str]] = []
        self.errors: list[tuple[Kernel, str, float]] = []
        self.studies: list[dict[str, Any]] = []
        self.verdicts: list[str] = []


class Observer:
    """Collects what passes; `facts` has it in a form that JSON can hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # emulated launches come from XLA's threads
        self._kernels: dict[str, Kernel] = {}  # by their texts, as the library writes them
        self._test: _Test | None = None
        self._shown: list[_Test] = []
        self._outcomes: dict[str, str] = {}
        self._failures: dict[str, str] = {}

    # ---- what is wrapped

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Wraps what is observed, before modules of tests import it by name."""
        launch = self._launching(ptx.emulator.launch)
        patch.setattr(ptx.emulator, "launch", launch)
        patch.setattr(_emulation, "emulator_launch", launch)
        for module, name, wrapped in (
            (ptx.kernel, "_written", self._writing),
            (helpers, "assert_close", self._comparing),
            (gemm_checks, "compare", self._comparing_products),
            (mutants, "check", self._studying),
            (race_freedom, "verdict", self._proving),
        ):
            patch.setattr(module, name, wrapped(getattr(module, name)))

    def _writing(self, write: Callable) -> Callable:
        @functools.wraps(write)
        def written(kernel, config, target, plan):
            result = write(kernel, config, target, plan)
            one = Kernel(kernel.name, str(config.float_type), target.name)
            with self._lock:
                self._kernels[result.text] = one
                if self._test is not None:
                    self._test.written.append(one)
            return result

        return written

    def _launching(self, launch: Callable) -> Callable:
        signature = inspect.signature(launch)

        @functools.wraps(launch)
        def launched(*arguments, **options):
            report = launch(*arguments, **options)
            asked = signature.bind(*arguments, **options).arguments
            with self._lock:
                # A text that the library did not write is a mutant, or broken on purpose.
                one = self._kernels.get(asked["text"])
                if one and self._test and asked.get("check_races", True):
                    self._test.launches.append((one, asked.get("schedule"), asked["text"]))
            return report

        return launched

    def _comparing(self, compare: Callable) -> Callable:
        @functools.wraps(compare)
        def compared(actual, expected, tolerance: float, what: str = ""):
            compare(actual, expected, tolerance, what)
            self._note_error(what, helpers.relative_error(actual, expected), tolerance)

        return compared

    def _comparing_products(self, compare: Callable) -> Callable:
        @functools.wraps(compare)
        def compared(operands, y, gradients, wanted, tolerance: float):
            errors = compare(operands, y, gradients, wanted, tolerance)
            for name, error in errors.items():
                self._note_error(name, error, tolerance)
            return errors

        return compared

    def _note_error(self, what: str, error: float, tolerance: float) -> None:
        """Keeps the error of a result that one kernel of this test has made, in one precision."""
        test = self._test
        if test is None:
            return
        makers = KERNELS_OF.get(test.family, {}).get(what, ())
        with self._lock:
            launched = {one for one, _, _ in test.launches}
        makers = {one for one in launched if one.name in makers}
        within = {one for one in makers if (one.dtype, tolerance) in CONTRACT}
        if len(within) == 1:
            (one,) = within
            test.errors.append((one, CONTRACT[one.dtype, tolerance], float(error)))

    def _studying(self, check: Callable) -> Callable:
        @functools.wraps(check)
        def studied(kernels, target, limit, equivalent, negligible):
            check(kernels, target, limit, equivalent, negligible)
            assert self._test is not None
            for name, probes in kernels.items():
                # The same calls as those of the check, which are kept.
                report = mutants.report_of(probes, target, limit)
                emitters = mutants.emitters_of(probes[0])
                whys = collections.Counter(
                    next(
                        reason.why
                        for reason in (*equivalent, *negligible)
                        if reason.covers(mutant, emitters[mutant.line])
                    )
                    for mutant in report.survivors
                )
                study = {
                    "probe": name,
                    **self._kernels[probes[0].text]._asdict(),
                    "mutants": report.total,
                    "tried": len(report.outcomes),
                    "noticed": dict(report.killed),
                    "rejected": len(report.stillborn),
                    "same": len(report.same),
                    "survivors": dict(whys.most_common()),
                }
                self._test.studies.append(study)

        return studied

    def _proving(self, verdict: Callable) -> Callable:
        @functools.wraps(verdict)
        def proven(text, how, folder):
            found = verdict(text, how, folder)
            assert self._test is not None
            self._test.verdicts.append(found)
            return found

        return proven

    # ---- pytest's hooks

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = _Test(item)
        try:
            return (yield)
        finally:
            test, self._test = self._test, None
            if self._outcomes.get(test.nodeid) == "passed":
                self._shown.append(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            before = self._outcomes.get(report.nodeid, "passed")
            self._outcomes[report.nodeid] = report.outcome if before == "passed" else before
        if report.failed:
            lines = report.longreprtext.strip().splitlines() or [""]
            self._failures[report.nodeid] = lines[-1][:200]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures[report.nodeid] = "could not be collected"

    def pytest_sessionfinish(self) -> None:
        pathlib.Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(self.facts()))

    # ---- what is written

    def facts(self) -> dict[str, Any]:
        """Everything that tests which passed have shown, and which tests did not."""
        outcomes = collections.Counter(self._outcomes.values())
        return {
            "tests": {
                "passed": outcomes["passed"],
                "skipped": outcomes["skipped"],
                "failed": self._failures,
            },
            "launches": self._launches(),
            "errors": self._errors(),
            "mutants": [study for test in self._shown for study in test.studies],
            "races": list(self._races()),
            "suites": list(self._suites()),
        }

    def _launches(self) -> list[dict[str, Any]]:
        found: dict[Kernel, list[tuple[int | None, str, str]]] = collections.defaultdict(list)
        for test in self._shown:
            for one, schedule, text in test.launches:
                found[one].append((schedule, text, test.nodeid))
        return [
            {
                **one._asdict(),
                "launches": len(launches),
                "random": sum(schedule is not None for schedule, _, _ in launches),
                "texts": len({text for _, text, _ in launches}),
                "tests": len({nodeid for _, _, nodeid in launches}),
            }
            for one, launches in sorted(found.items())
        ]

    def _errors(self) -> list[dict[str, Any]]:
        worst: dict[tuple[Kernel, str], tuple[float, str]] = {}
        counts: collections.Counter[tuple[Kernel, str]] = collections.Counter()
        for test in self._shown:
            for one, precision, error in test.errors:
                counts[one, precision] += 1
                worst[one, precision] = max(
                    worst.get((one, precision), (-1.0, "")), (error, test.nodeid)
                )
        return [
            {
                **one._asdict(),
                "precision": precision,
                "error": float(np.format_float_scientific(error, 2)),
                "tolerance": PRECISIONS[precision][2],
                "results": counts[one, precision],
                "worst": nodeid,
            }
            for (one, precision), (error, nodeid) in sorted(worst.items())
        ]

    def _races(self) -> Iterator[dict[str, Any]]:
        for test in self._shown:
            if test.verdicts:
                (kernel,) = set(test.written)
                function, _, case = test.nodeid.rpartition("::")[2].rstrip("]").partition("[")
                counts = collections.Counter(test.verdicts)
                yield {
                    **kernel._asdict(),
                    "case": case,
                    "whole": function == "test_race_free",
                    "verdicts": dict(counts),
                }

    def _suites(self) -> Iterator[Mapping[str, Any]]:
        names = sorted({test.suite for test in self._shown if test.suite})
        for name in names:
            tests = [test for test in self._shown if test.suite == name]
            launched = [{one for one, _, _ in test.launches} for test in tests]
            yield {
                "suite": name,
                "cases": sorted({test.case for test in tests}),
                "passed": len(tests),
                "on_kernels": sum(map(bool, launched)),
                "kernels": sorted({(one.name, one.target) for each in launched for one in each}),
            }


def pytest_configure(config: pytest.Config) -> None:
    observer, patch = Observer(), pytest.MonkeyPatch()
    observer.install(patch)
    config.add_cleanup(patch.undo)
    config.pluginmanager.register(observer, "oxijax_trust_observer")
