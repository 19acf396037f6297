"""The benchmark's own arithmetic, and what it says of memory; never how fast a machine is."""

import json
import math
import time

import pytest

from oxijax.__main__ import main
from oxijax._cli import bench
from oxijax.testing import BENCHMARK_CASES


def test_table_and_json(tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert main(["bench", "--suite", "cpu", "--repeats", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert list(report["layers"]) == list(BENCHMARK_CASES)
    for name, layer in report["layers"].items():
        assert name in printed
        for what in ("forward", "forward_backward"):
            ratio = layer[f"{what}_ms"] / layer[f"conv_{what}_ms"]
            assert layer[f"{what}_ratio"] == pytest.approx(ratio)
    ratios = [layer["forward_ratio"] for layer in report["layers"].values()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert report["geometric_means"]["forward_ratio"] == pytest.approx(mean)
    # No column buffer: nine times the image alone would be 14 MiB, and autodiff keeps many.
    assert report["layers"]["56x56x64"]["temporaries_mib"] <= 32


def test_best_times_is_the_fastest_after_the_first():
    pauses = iter([0.0, 0.05, 0.02, 0.04])
    times = bench.best_times({"program": (lambda: time.sleep(next(pauses)), [])}, repeats=3)
    assert 20 <= times["program"] < 40


def test_unknown_suite(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--suite", "tpu"])
    assert "--suite" in capsys.readouterr().err
