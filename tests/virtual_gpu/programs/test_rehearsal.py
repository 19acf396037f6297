"""The GPU suite's script, from end to end on a GPU, with tiny layers."""

import json

import pytest
from gpu_suite.plan import SECTIONS
from support.paths import ROOT
from support.processes import python

pytestmark = pytest.mark.gpu


def test_rehearsal(tmp_path):
    sections = [name for name in SECTIONS if name != "tests"]  # this is one of them
    script = str(ROOT / "benchmarks" / "gpu.py")
    status, said = python(script, "--rehearse", "--out", str(tmp_path), "--sections", *sections)
    assert status == 0, said
    report = json.loads((tmp_path / "gpu-results.json").read_text())
    assert {report["sections"][name]["status"] for name in sections} == {"done"}
    assert "no time in it means anything" in said
    times = report["sections"]["times-conv"]["results"]["times"]
    assert times["launch floor"]["bfloat16"]["forward"]["median_us"] > 0
