"""The trust report says what the recorded proofs say, no more, and what is wrong with them."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.conv_kernels import Call
from trust import page, texts
from trust.cells import NONE, STALE
from trust.evidence import EVIDENCE, Evidence, as_text, hardware
from trust.observer import Observer

from ptx.emulator import RaceError
from ptx.kernels.conv import ConvConfig

RECORDED = json.loads(EVIDENCE.read_text())
ANEW = "run `python tests/trust`; with --texts it only marks what is stale"


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A copy of what is recorded, which a test may change."""
    return copy.deepcopy(RECORDED)


def first(recorded: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(job[kind][0] for job in recorded["jobs"].values() if job.get(kind))


def row(text: str, kernel: str, target: str) -> str:
    """The kernel's line in the tables at a glance."""
    return next(li for li in text.splitlines() if li.startswith(f"| `{kernel}` | {target} |"))


def test_page_is_what_is_recorded():
    assert as_text(RECORDED) == EVIDENCE.read_text()
    assert page.render(RECORDED, hardware()) == page.PAGE.read_text(), ANEW


def test_texts_are_those_of_today():
    """Two texts of each kernel and GPU where sources have changed; the command compares all."""
    for name, kernel in texts.kernels().items():
        for target in texts.TARGETS:
            known = RECORDED["texts"][name][target]
            if known["sources"] != texts.sources() or (name, target) == ("conv_forward", "sm_80"):
                message = f"{name} for {target} has changed: {ANEW}"
                assert texts.sample_keys(kernel, target) == known["sample"], message


def test_nothing_is_wrong_and_no_kernel_is_left_out():
    assert list(Evidence(RECORDED).problems()) == []
    text = page.PAGE.read_text()
    for name in texts.kernels():
        for target in texts.TARGETS:
            assert row(text, name, target)


# ---- what is tampered with


def spill(recorded):
    first(recorded, "assembly")["spills"] = 8


def not_assembled(recorded):
    first(recorded, "assembly")["assembled"] -= 1


def error(recorded):
    first(recorded, "errors")["error"] = 0.5


def no_number(recorded):
    first(recorded, "errors")["error"] = float("nan")


def tolerance(recorded):
    first(recorded, "errors").update(error=0.5, tolerance=1.0)


def race(recorded):
    first(recorded, "races")["verdicts"] = {"potential_race": 1}


def failure(recorded):
    recorded["jobs"]["calls-conv"]["tests"]["failed"] = {"test_case[plain]": "AssertionError"}


def mutants_left_out(recorded):
    first(recorded, "mutants")["survivors"] = {}


def survivors(recorded):
    for job in recorded["jobs"].values():
        for value in job.get("mutants", []):
            value.update(survivors={"it computes the same": value["tried"]}, noticed={})
            value.update(same=0, rejected=0)


def no_kernel(recorded):
    del recorded["texts"]["gemm"]


SAID: dict[Callable[[dict[str, Any]], None], str] = {
    spill: "spills 8 bytes",
    not_assembled: "1 configurations were not assembled",
    error: "an error of 0.5",
    no_number: "an error of nan",
    tolerance: "a tolerance of 1e+00, not",
    race: "the verifier says potential_race",
    failure: "test_case[plain] failed: AssertionError",
    mutants_left_out: "do not add up",
    survivors: "mutants were noticed",
    no_kernel: "gemm for sm_75 has no entry",
}
SHOWN = {spill, error, no_number, tolerance, race, failure}  # in a cell of a table, too


@pytest.mark.parametrize("tamper", SAID, ids=lambda tamper: tamper.__name__)
def test_what_is_wrong_is_said(recorded, tamper):
    tamper(recorded)
    assert any(SAID[tamper] in problem for problem in Evidence(recorded).problems())
    text = page.render(recorded, {})
    assert "Something is wrong" in text
    assert SAID[tamper] in text
    cells = [re.findall(r"\| \*\*[^*|]+\*\*", t) for t in (page.render(RECORDED, {}), text)]
    assert (len(cells[0]) < len(cells[1])) == (tamper in SHOWN)


def test_what_has_not_run_is_said(recorded):
    del recorded["jobs"]["assembly-gemm"]
    text = page.render(recorded, {})
    assert "| assembly-gemm | has not run |" in text
    assert row(text, "gemm", "sm_90").split(" | ")[2:4] == [NONE, NONE]


def test_a_changed_text_makes_its_proofs_stale(recorded):
    recorded["texts"]["conv_forward"]["sm_80"]["key"] = "another"
    before, after = page.PAGE.read_text(), page.render(recorded, hardware())
    cells = row(after, "conv_forward", "sm_80").split(" | ")[2:]
    assert cells.count(STALE) >= 5
    assert not re.search(r"\d", " ".join(cells))  # no figure is left
    assert f"; some {STALE} |" in after  # of the family
    assert "Something is wrong" not in after
    for name in texts.kernels():
        for target in texts.TARGETS:
            if (name, target) != ("conv_forward", "sm_80"):
                assert row(after, name, target) == row(before, name, target)


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
                "worst_errors": {"conv": {"exact": {"y": 1e-7}}},
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
    recorded["texts"]["conv_forward"]["sm_90"]["since"] = "2100-01-02"
    assert STALE in row(page.render(recorded, found), "conv_forward", "sm_90")


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


@dataclasses.dataclass
class Outcome:
    """As much of a test's report as the observer looks at."""

    outcome: str
    nodeid: str = Item.nodeid
    when: str = "call"
    longreprtext: str = "AssertionError"

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"


def observed(monkeypatch, test: Callable[[], object], outcome: str = "passed") -> dict[str, Any]:
    """The facts of one test."""
    observer = Observer()
    with monkeypatch.context() as patch:
        observer.install(patch)
        running = observer.pytest_runtest_protocol(Item())  # pyright: ignore
        next(running)
        test()
        observer.pytest_runtest_logreport(Outcome(outcome))  # pyright: ignore
        next(running, None)
    return observer.facts()


CALL = Call("forward", ConvConfig(8, 8, 1, 1, pad_h=0, pad_w=0), images=1, height=2, width=4)


def test_launches_of_tests_that_pass_count(monkeypatch):
    facts = observed(monkeypatch, lambda: [CALL.run(), CALL.run(schedule=3)])
    assert facts["tests"] == {"passed": 1, "skipped": 0, "failed": {}}
    (launches,) = facts["launches"]
    expected = {"name": "conv_forward", "dtype": "f32", "target": "sm_80", "launches": 2}
    assert launches == expected | {"random": 1, "texts": 1, "tests": 1}


def test_those_of_tests_that_fail_do_not(monkeypatch):
    facts = observed(monkeypatch, CALL.run, "failed")
    assert facts["tests"]["failed"] == {Item.nodeid: "AssertionError"}
    assert facts["launches"] == []


def test_broken_texts_and_unchecked_launches_do_not(monkeypatch):
    def run() -> None:
        CALL.run(f"{CALL.text}\n")
        CALL.run(check_races=False)
        with pytest.raises(RaceError):
            CALL.run(CALL.text.replace("bar.sync", "// bar.sync"))

    assert observed(monkeypatch, run)["launches"] == []
