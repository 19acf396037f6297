"""A plugin of pytest: what the proofs show of each kernel while they run, as JSON.

It observes from outside, and no test knows of it: it wraps, before any test is imported, what
writes a kernel's text, the emulator's launch, and the functions of `support` in which results are
compared, mutants studied, races looked for and texts assembled. What a test shows travels in its
report, from whichever process ran it, and counts only if the test passes.

`python -m pytest -p trust.observer` writes what was found to the file OXIJAX_TRUST_FACTS, and with
OXIJAX_TRUST_SHARE runs the share of the tests that this text draws.
"""

from __future__ import annotations

import collections
import functools
import inspect
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import gemm_checks, helpers, mutants, race_freedom
from support.places import PRECISIONS

import ptx.definition
import ptx.emulator
from oxijax._cli import check
from oxijax._core.launch import _emulation
from trust.evidence import EVIDENCE
from trust.jobs import drawn
from trust.kernels import family_of
from trust.suites import case_of, suite_of

__all__ = ["Observer", "combined"]

# The kernels that make a result which a test compares, by how their names end. What is not here is
# XLA's: a sum that makes the gradient of a bias, for example. A result without a name is that of
# the only gathering kernel.
_INPUT, _PLACES = "_backward_(input|value)(_gather)?", "_backward_(offset|points)"
MAKERS = {
    "": "_gather",
    "y": "_forward|gemm",
    **dict.fromkeys(("da", "db"), "gemm"),
    **dict.fromkeys(("dx", "dvalue"), _INPUT),
    "dweight": "_backward_weight",
    **dict.fromkeys(("doffset", "dmask", "dgrid", "doffset_mask"), _PLACES),
    **dict.fromkeys(("dsampling_locations", "dattention_weights"), _PLACES),
}
_DTYPES = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}
# What the library promises: (a kernel's type, tolerance) -> the name of the precision.
CONTRACT = {(_DTYPES[dtype], bound): name for name, (dtype, _, bound) in PRECISIONS.items()}


class Kernel(NamedTuple):
    """A kernel's name in the registry, its type, and the GPU that it is for."""

    name: str
    dtype: str
    target: str


class Shown:
    """What one test has shown so far."""

    def __init__(self, item: pytest.Item):
        self.nodeid = item.nodeid
        self.family = family_of(item.nodeid)
        self.suite, self.case = suite_of(item), case_of(item)
        self.written: list[Kernel] = []
        self.launches: list[tuple[Kernel, bool]] = []  # whether in a random order
        self.errors: list[tuple[Kernel, str, float]] = []
        self.mutants: list[dict[str, Any]] = []
        self.verdicts: list[str] = []
        self.assembly: list[dict[str, Any]] = []


class Observer:
    """Puts what each test shows into its reports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # emulated launches come from XLA's threads
        self._kernels: dict[str, Kernel] = {}  # by their texts, as the library writes them
        self._test: Shown | None = None

    # ---- what is wrapped

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Wraps what is observed, before modules of tests import it by name."""
        launch = self._launching(ptx.emulator.launch)
        patch.setattr(ptx.emulator, "launch", launch)
        patch.setattr(_emulation, "emulator_launch", launch)
        for module, name, wrapped in (
            (ptx.definition, "_written", self._writing),
            (helpers, "assert_close", self._comparing),
            (gemm_checks, "compare", self._comparing_products),
            (mutants, "check", self._studying),
            (race_freedom, "verdict", self._proving),
            (check, "check", self._assembling),
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
                    self._test.launches.append((one, asked.get("schedule") is not None))
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
        ends = re.compile(f"({MAKERS.get(what, '$.')})$")
        with self._lock:
            launched = {one for one, _ in test.launches}
        makers = {one for one in launched if ends.search(one.name) and test.family in one.name}
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
                self._test.mutants.append(study)

        return studied

    def _proving(self, verdict: Callable) -> Callable:
        @functools.wraps(verdict)
        def proven(text, how, folder):
            found = verdict(text, how, folder)
            assert self._test is not None
            self._test.verdicts.append(found)
            return found

        return proven

    def _assembling(self, assemble: Callable) -> Callable:
        @functools.wraps(assemble)
        def assembled(*arguments, **options):
            results = assemble(*arguments, **options)
            if self._test is not None:
                self._test.assembly += map(_cost, results)
            return results

        return assembled

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = Shown(item)
        try:
            return (yield)
        finally:
            self._test = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield
        assert self._test is not None
        item.user_properties.append(("shown", json.dumps(vars(self._test))))


def _cost(result: check.CheckResult) -> dict[str, Any]:
    registers = [entry.registers for entry in result.kernels]
    return {
        "name": result.kernel,
        "target": result.target.name,
        "configurations": 1,
        "assembled": bool(registers),
        "registers": registers,
        "spills": sum(entry.spills for entry in result.kernels),
        "stack": sum(entry.local_bytes for entry in result.kernels),
    }


class Share:
    """Leaves the share of the tests that a text draws."""

    def __init__(self, text: str):
        self._text = text

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        evidence = json.loads(EVIDENCE.read_text())
        chosen = drawn((item.nodeid for item in items), self._text, evidence)
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]


class Collector:
    """Combines what tests have shown, in whichever process, and writes it to a file."""

    def __init__(self, file: str):
        self._file = pathlib.Path(file)
        self._reports: list[pytest.TestReport | pytest.CollectReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._reports.append(report)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(combined(self._reports)))


def combined(reports: Iterable[Any]) -> dict[str, Any]:
    """The facts of pytest's reports: what tests which passed have shown, and which did not."""
    outcomes: dict[str, str] = {}
    failures: dict[str, str] = {}
    shown: dict[str, dict[str, Any]] = {}
    seconds = 0.0
    for report in reports:
        seconds += getattr(report, "duration", 0)
        if outcomes.get(report.nodeid, "passed") == "passed":
            outcomes[report.nodeid] = report.outcome
        if report.failed:
            lines = report.longreprtext.strip().splitlines() or [""]
            failures[report.nodeid] = lines[-1][:200]
        for name, value in getattr(report, "user_properties", ()):
            if name == "shown":
                shown[report.nodeid] = json.loads(value)
    counts = collections.Counter(outcomes.values())
    tests = [shown[nodeid] for nodeid in sorted(shown) if outcomes[nodeid] == "passed"]
    facts = {
        "launches": _launches(tests),
        "errors": _errors(tests),
        "mutants": [study for test in tests for study in test["mutants"]],
        "races": list(_races(tests)),
        "suites": list(_suites(tests)),
        "assembly": _assembly(tests),
    }
    return {
        "seconds": round(seconds),
        "tests": {"passed": counts["passed"], "skipped": counts["skipped"], "failed": failures},
        **{kind: found for kind, found in facts.items() if found},
    }


Tests = Sequence[Mapping[str, Any]]


def _launches(tests: Tests) -> list[dict[str, Any]]:
    counts, random = collections.Counter[Kernel](), collections.Counter[Kernel]()
    for one, is_random in (launch for test in tests for launch in test["launches"]):
        counts[Kernel(*one)] += 1
        random[Kernel(*one)] += is_random
    return [
        {**one._asdict(), "launches": counts[one], "random": random[one]} for one in sorted(counts)
    ]


def _errors(tests: Tests) -> list[dict[str, Any]]:
    found: dict[tuple[Kernel, str], list[tuple[float, str]]] = collections.defaultdict(list)
    for test in tests:
        for one, precision, error in test["errors"]:
            found[Kernel(*one), precision].append((error, test["nodeid"]))
    return [
        {
            **one._asdict(),
            "precision": precision,
            "error": float(np.format_float_scientific(max(errors)[0], 2)),
            "tolerance": PRECISIONS[precision][2],
            "results": len(errors),
            "worst": max(errors)[1],
        }
        for (one, precision), errors in sorted(found.items())
    ]


def _races(tests: Tests) -> Iterator[dict[str, Any]]:
    for test in tests:
        if test["verdicts"]:
            (kernel,) = {Kernel(*one) for one in test["written"]}
            function, _, case = test["nodeid"].rpartition("::")[2].rstrip("]").partition("[")
            yield {
                **kernel._asdict(),
                "case": case,
                "whole": function == "test_race_free",
                "verdicts": dict(collections.Counter(test["verdicts"])),
            }


def _suites(tests: Tests) -> Iterator[Mapping[str, Any]]:
    for name in sorted({test["suite"] for test in tests if test["suite"]}):
        of = [test for test in tests if test["suite"] == name]
        yield {
            "suite": name,
            "cases": sorted({test["case"] for test in of}),
            "passed": len(of),
            "on_kernels": sum(bool(test["launches"]) for test in of),
        }


def _assembly(tests: Tests) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    for one in (one for test in tests for one in test["assembly"]):
        found[one["name"], one["target"]].append(one)
    return [
        {
            "name": name,
            "target": target,
            **{k: sum(one[k] for one in of) for k in ("configurations", "assembled")},
            "registers": [f(n for one in of for n in one["registers"]) for f in (min, max)],
            **{k: sum(one[k] for one in of) for k in ("spills", "stack")},
        }
        for (name, target), of in found.items()
    ]


def pytest_configure(config: pytest.Config) -> None:
    observer, patch = Observer(), pytest.MonkeyPatch()
    observer.install(patch)
    config.add_cleanup(patch.undo)
    config.pluginmanager.register(observer, "oxijax_trust_observer")
    file = os.environ.get("OXIJAX_TRUST_FACTS")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(file), "oxijax_trust_collector")
    if text := os.environ.get("OXIJAX_TRUST_SHARE"):
        config.pluginmanager.register(Share(text), "oxijax_trust_share")
