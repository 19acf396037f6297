"""The trust report is up to date, and says what the recorded proofs say."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import mutants
from support.conv_kernels import ConvCall
from support.paths import ROOT
from trust import __main__ as command
from trust import jobs, kernels, page
from trust.evidence import EVIDENCE, as_text, hardware, problems
from trust.jobs import JOBS
from trust.kernels import FAMILIES, TARGETS, kernels_of
from trust.observer import Observer, combined
from trust.sources import Sources

import oxijax
import oxijax.nnx
import ptx.emulator
from oxijax._core.primitive import kernel_primitive
from ptx.emulator import RaceError
from ptx.kernels.conv import ConvConfig, definitions
from ptx.tile import loop

RECORDED = json.loads(EVIDENCE.read_text())


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A copy of what is recorded, which a test may change."""
    return copy.deepcopy(RECORDED)


def row(text: str, kernel: str, target: str) -> str:
    """The kernel's line in the tables at a glance."""
    return next(li for li in text.splitlines() if li.startswith(f"| `{kernel}` | {target} |"))


# ---- what is recorded


def test_nothing_is_stale():
    sources = Sources()
    stale = {name: why for name in JOBS if (why := jobs.why_stale(RECORDED, name, sources))}
    assert stale == {}, "run `python tests/trust`, which proves again what has to be"


def test_page_is_what_is_recorded():
    assert as_text(RECORDED) == EVIDENCE.read_text()
    assert page.render(RECORDED, hardware()) == page.PAGE.read_text(), "run `python tests/trust`"


def test_nothing_is_wrong_and_no_kernel_is_left_out():
    assert list(problems(RECORDED)) == []
    for name in kernels_of(*FAMILIES):
        for target in TARGETS:
            assert row(page.PAGE.read_text(), name, target)


def test_a_failure_is_said(recorded):
    recorded["jobs"]["calls-conv"]["tests"]["failed"] = {"test_case[plain]": "AssertionError"}
    text = page.render(recorded, {})
    assert "Something is wrong" in text
    assert "calls-conv: test_case[plain] failed: AssertionError" in text
    assert "| **1** |" in text


def test_what_has_not_run_is_said(recorded):
    del recorded["jobs"]["assembly-gemm"]
    text = page.render(recorded, {})
    assert "gemm has no assembly" in text
    assert "| assembly-gemm | has not run |" in text
    assert row(text, "gemm", "sm_90").split(" | ")[2:4] == [page.NONE, page.NONE]


def test_every_proof_belongs_to_one_job():
    marked = re.compile(r"^(@|pytestmark = .*)pytest\.mark\.proof\b", re.MULTILINE)
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]
    proofs = [file for file in files if marked.search((ROOT / file).read_text())]
    for file in proofs:
        families = [
            family
            for family in FAMILIES
            if any(
                job.has(f"{file}::test[{family}]") for job in JOBS.values() if job.family == family
            )
        ]
        assert families, f"{file} belongs to no proof of the report"
    for job in JOBS.values():
        assert job.tests
        for test in job.tests:
            path, _, function = test.partition("::")
            assert not function or f"def {function}" in (ROOT / path).read_text()


# ---- what makes it stale


def file_of(thing: Any) -> Path:
    module = thing if inspect.ismodule(thing) else sys.modules[thing.__module__]
    return Path(str(module.__file__))


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """A record of jobs that have all passed, of the sources of now."""
    sources = Sources()
    evidence: dict[str, Any] = {"texts": {}, "jobs": {}}
    for family in FAMILIES:
        writing = sources.digest(jobs.writers(sources, family))
        for name in kernels_of(family):
            text = {"since": "2000-01-01", "configurations": 1, "synchronised": {}}
            evidence["texts"][name] = {"writing": writing, "key": f"texts of {name}", **text}
    for name, job in JOBS.items():
        evidence["jobs"][name] = {
            "seconds": 400,
            "command": job.command,
            "checking": job.checking(sources),
            "texts": jobs.texts_key(evidence, job.family),
            "tests": {"passed": 4, "failed": {}},
        }
    return evidence


def of(*kinds: str, family: str = "") -> set[str]:
    """The names of jobs: of some kinds, or all, and of a family, or of all."""
    return {
        n
        for n, j in JOBS.items()
        if n.split("-")[0] in (kinds or [n.split("-")[0]]) and family in ("", j.family)
    }


EDITS: dict[str, tuple[Any, set[str]]] = {
    "kernel": (definitions, of(family="conv")),
    "tile": (loop, of() - of(family="sampling")),
    "emulator": (ptx.emulator.launch, of() - of("assembly") - {"limits-deform_conv"}),
    "primitive": (kernel_primitive, of("calls", "suites")),
    "operator": (oxijax.gemm, of("calls", family="gemm")),
    "layer": (oxijax.nnx.DCNv3, set()),
    "support": (mutants, of("mutants")),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_makes_stale_what_depends_on_it(edit, fresh):
    thing, expected = EDITS[edit]
    path = file_of(thing)
    sources = Sources({path: f"{path.read_text()}\nADDED = 1\n"})
    assert {n for n in JOBS if jobs.why_stale(fresh, n, sources)} == expected


def test_a_comment_or_a_docstring_makes_nothing_stale(fresh):
    path = file_of(ptx.emulator.launch)
    text = f"{path.read_text()}\n# A comment.\n".replace('"""', '"""Indeed: ', 1)
    assert not any(jobs.why_stale(fresh, name, Sources({path: text})) for name in JOBS)


def test_a_comment_inside_of_a_string_does(fresh):
    path = file_of(ptx.emulator.launch)
    text = f'{path.read_text()}\nADDED = """\n# A line.\n"""\n'
    edited = text.replace("# A line", "# Another line")
    hashes = [Sources({path: one}).digest([path]) for one in (text, edited)]
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [("command", "pytest"), ("texts", "others"), ("tests", {"failed": {"test": "Error"}})],
)
def test_what_else_makes_a_proof_stale(field, value, fresh):
    changed = copy.deepcopy(fresh)
    changed["jobs"]["calls-gemm"][field] = value
    del changed["jobs"]["mutants-gemm"]
    sources = Sources()
    stale = {n for n in JOBS if jobs.why_stale(changed, n, sources)}
    assert stale == {"calls-gemm", "mutants-gemm"}


class Text(NamedTuple):
    """What a kernel writes, as far as the report looks at it."""

    text: str = "bar.sync 0;"


def kernel_of(text: Text) -> Any:
    """As much of a kernel as the report looks at: all of its texts are the same."""
    return types.SimpleNamespace(configs={"a": None, "b": None}, write_named=lambda *named: text)


def test_texts_that_are_the_same_are_not_proven_again(monkeypatch, fresh):
    evidence, sources = copy.deepcopy(fresh), Sources()
    known = evidence["jobs"]["calls-gemm"]
    monkeypatch.setattr(jobs, "kernels_of", lambda family: {"gemm": kernel_of(Text())})
    for expected in (["gemm"], []):  # the first time, what the key stands for are no texts
        evidence["texts"]["gemm"]["writing"] = "others"
        assert "what writes" in jobs.why_stale(evidence, "calls-gemm", sources)
        assert jobs.write_texts(evidence, "gemm", sources) == expected
        assert jobs.why_stale(evidence, "calls-gemm", sources) == (
            "texts have changed" if expected else ""
        )
        known["texts"] = jobs.texts_key(evidence, "gemm")


def test_what_is_kept_of_texts():
    found = kernels.texts_of(kernel_of(Text()), {})
    assert found["configurations"] == 2
    assert found["synchronised"] == dict.fromkeys(TARGETS, 2)
    then = {**found, "since": "2000-01-01"}
    assert kernels.texts_of(kernel_of(Text()), then) == then
    assert kernels.texts_of(kernel_of(Text("ret;")), then)["since"] > then["since"]


# ---- what the command proves


@pytest.fixture
def proven(monkeypatch, tmp_path, fresh) -> list[str]:
    """The jobs that the command runs, where what is recorded is fresh but for texts of conv."""
    evidence = copy.deepcopy(fresh)
    evidence["jobs"]["calls-conv"]["texts"] = "others"
    for name in JOBS:
        evidence["jobs"][name] |= {"date": "2000-01-01", "versions": {}}
        evidence["jobs"][name]["tests"]["skipped"] = 0
    monkeypatch.setattr(command, "EVIDENCE", tmp_path / "trust.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "trust.md")
    command.EVIDENCE.write_text(as_text(evidence))
    ran: list[str] = []

    def run(name: str, evidence: dict[str, Any], sources: Sources) -> dict[str, Any]:
        ran.append(name)
        return evidence["jobs"][name]

    monkeypatch.setattr(jobs, "run", run)
    return ran


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"calls-conv"}),
        (["--family", "gemm"], set()),
        (["--family", "gemm", "--all"], of(family="gemm")),
        (["--job", "calls-gemm", "--job", "calls-conv"], {"calls-conv"}),
        (["--page"], set()),
    ],
)
def test_the_command_proves_what_is_stale(arguments, expected, proven):
    command.main(arguments)
    assert set(proven) == expected
    assert page.PAGE.read_text().startswith("# Trust")


def test_a_share_is_drawn_and_nothing_written(proven, monkeypatch):
    calls = []

    def pytest_runs(command, **options):
        calls.append((command, options["env"]))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", pytest_runs)
    assert command.main(["--share", "a commit"]) == 1
    ((arguments, environment),) = calls
    assert environment["OXIJAX_TRUST_SHARE"] == "a commit"
    assert {test for job in JOBS.values() for test in job.tests} <= set(arguments)
    assert proven == []
    assert not page.PAGE.exists()


def test_shares_are_drawn_from_a_text(fresh):
    tests = [f"{job.tests[0]}::test[{job.family}-{n}]" for job in JOBS.values() for n in range(4)]
    shares = [jobs.drawn(tests, f"commit {n}", fresh) for n in range(400)]
    assert jobs.drawn(tests[::-1], "commit 0", fresh) == shares[0]
    count = int(len(tests) * jobs.SHARE)  # all of them last as long
    assert {len(share) for share in shares} == {count}
    assert set().union(*shares) == set(tests)
    assert jobs.drawn(["tests/test_sdist.py::test"], "commit", fresh) == set()


# ---- what has run on a GPU

REPORT = {
    "date": "2100-01-01",
    "mode": "measure",
    "sections": {
        "info": {"results": {"nvidia_smi": {"idle": {"name": "NVIDIA H200"}}}},
        "tests": {
            "status": "done",
            "failures": [],
            "results": {
                "counts": {"collected": 9, "ran": 9, "passed": 9},
                "passed_in": {"conv": 9},
            },
        },
    },
}


def test_a_report_of_a_gpu_is_read(tmp_path, recorded):
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    found = hardware(tmp_path)
    assert found == {"conv": ("2100-01-01", "NVIDIA H200")}
    text = page.render(recorded, found)
    assert "Convolution on NVIDIA H200 (2100-01-01)" in text
    assert "NVIDIA H200, 2100-01-01" in row(text, "conv_forward", "sm_90")
    assert "not yet" in row(text, "gemm", "sm_90")
    recorded["texts"]["conv_forward"]["since"] = "2100-01-02"
    assert "not since it changed" in row(page.render(recorded, found), "conv_forward", "sm_90")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("mode",), "rehearse"),
        (("sections", "tests", "status"), "ended with exit status 1"),
        (("sections", "tests", "failures"), [{"what": "test", "why": "wrong"}]),
        (("sections", "tests", "results", "counts", "passed"), 8),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, tuple) else "",
)
def test_a_report_that_is_not_whole_proves_nothing(tmp_path, place, value):
    report = copy.deepcopy(REPORT)
    inner: Any = report
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert hardware(tmp_path) == {}


# ---- what is observed


@dataclasses.dataclass
class Item:
    """As much of a test as the observer looks at."""

    nodeid: str = "tests/ptx/kernels/conv/test_coverage.py::test"
    user_properties: list[tuple[str, object]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Outcome:
    """As much of a test's report as the observer looks at."""

    outcome: str
    user_properties: list[tuple[str, object]]
    nodeid: str = Item.nodeid
    duration: float = 1.0
    longreprtext: str = "AssertionError"

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"


def observed(monkeypatch, test: Callable[[], object], outcome: str = "passed") -> dict[str, Any]:
    """The facts of one test."""
    observer, item = Observer(), Item()
    with monkeypatch.context() as patch:
        observer.install(patch)
        running = observer.pytest_runtest_protocol(item)  # pyright: ignore
        calling = observer.pytest_runtest_call(item)  # pyright: ignore
        next(running)
        next(calling)
        test()
        next(calling, None)
        next(running, None)
    return combined([Outcome(outcome, item.user_properties), Outcome("passed", [])])


CALL = ConvCall("forward", ConvConfig(8, 8, 1, 1, pad_h=0, pad_w=0), images=1, height=2, width=4)


def test_launches_of_tests_that_pass_count(monkeypatch):
    facts = observed(monkeypatch, lambda: [CALL.run(), CALL.run(schedule=3)])
    assert facts["tests"] == {"passed": 1, "skipped": 0, "failed": {}}
    assert facts["seconds"] == 2
    kernel = {"name": "conv_forward", "dtype": "f32", "target": "sm_80"}
    assert facts["launches"] == [{**kernel, "launches": 2, "random": 1}]


def test_those_of_tests_that_fail_do_not(monkeypatch):
    facts = observed(monkeypatch, CALL.run, "failed")
    assert facts["tests"]["failed"] == {Item.nodeid: "AssertionError"}
    assert "launches" not in facts


def test_broken_texts_and_unchecked_launches_do_not(monkeypatch):
    def run() -> None:
        CALL.run(f"{CALL.text}\n")
        CALL.run(check_races=False)
        with pytest.raises(RaceError):
            CALL.run(CALL.text.replace("bar.sync", "// bar.sync"))

    assert "launches" not in observed(monkeypatch, run)
