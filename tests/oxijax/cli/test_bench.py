"""The benchmark's own arithmetic, and what it says of memory; never how fast a machine is."""

import contextlib
import io
import json
import math
import sys
import time
import types

import numpy as np
import pytest
from support.processes import python
from support.xla_flags import cpu_flags

import oxijax
from oxijax._cli import CommandError, bench, bench_rounds, bench_torchvision
from oxijax.testing import BENCHMARK_CASES, CASES, IMAGE_SIZE_CASES

# The command in a process of its own, whose XLA optimises: the layers are large. There is no torch,
# wherever this test runs.
COMMAND = """
import sys
sys.modules["torch"] = None
from oxijax.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_table_and_json(tmp_path):
    file = tmp_path / "bench.json"
    options = ("--suite", "cpu", "--repeats", "1", "--json", str(file))
    settings = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(cpu_flags(1))}
    status, printed = python("-c", COMMAND, "bench", *options, **settings)
    assert status == 0, printed
    report = json.loads(file.read_text())
    assert list(report["layers"]) == list(BENCHMARK_CASES)
    for name, layer in report["layers"].items():
        assert name in printed
        for what in ("forward", "forward_backward"):
            ratio = layer[f"{what}_ms"] / layer[f"conv_{what}_ms"]
            assert layer[f"{what}_ratio"] == pytest.approx(ratio)
            assert layer["spread"][f"{what}_ratio"]["median"] == pytest.approx(ratio)
        assert layer["rounds"] == 1
    ratios = [layer["forward_ratio"] for layer in report["layers"].values()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert report["geometric_means"]["forward_ratio"] == pytest.approx(mean)
    # No column buffer: nine times the image alone would be 14 MiB, and autodiff keeps many.
    assert report["layers"]["56x56x64"]["temporaries_mib"] <= 12
    # Nothing of all samples: those of the last layer's nine taps would be 127 MiB.
    limits = {"R50-c3": 30, "R50-c4": 20, "R50-c5": 16, "BasicVSR++": 180}
    for name, limit in limits.items():
        assert report["layers"][name]["temporaries_mib"] <= limit

    assert list(report["image_sizes"]) == list(IMAGE_SIZE_CASES)
    first, *others = report["image_sizes"].values()
    assert first["forward_growth"] == first["forward_backward_growth"] == 1
    for size in others:
        growth = size["forward_us_per_pixel"] / first["forward_us_per_pixel"]
        assert size["forward_growth"] == pytest.approx(growth)
        assert size["spread"]["forward_growth"]["median"] == pytest.approx(growth)

    launch = report["launch"]
    assert launch["rounds"] == {
        **{"native_us": 1, "ctypes_us": 1, "native_busy_us": 1, "ctypes_busy_us": 8}
    }
    for key in launch["rounds"]:
        assert launch["spread"][key]["min"] <= launch[key] <= launch["spread"][key]["max"]
    assert {"oxijax", "jax", "jaxlib", "python"} == set(report["versions"])
    assert {"processor", "cores", "load_before"} == set(report["machine"])

    # What is not there is not left out silently.
    for text in (printed, report["torchvision"]["not_measured"]):
        assert "torch" in text
        assert "requirements-torchvision.txt" in text


class Terminal(io.StringIO):
    """What a reader has seen is what was flushed."""

    seen = ""

    def flush(self):
        self.seen = self.getvalue()


@pytest.mark.quick
def test_a_row_is_printed_when_it_is_measured(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    seen: list[str] = []

    def measure(case):
        seen.append(terminal.seen)
        passes = ("forward", "forward_backward")
        times = {f"{prefix}{what}_ms": 2.5 for prefix in ("", "conv_") for what in passes}
        return {**times, **{f"{what}_ratio": 1.0 for what in passes}}

    bench._print_comparison("title", "conv", "conv_", measure)
    names = list(BENCHMARK_CASES)
    assert len(seen) == len(names)
    for i, text in enumerate(seen):
        assert "forward ms" in text
        assert [line.split()[0] for line in text.splitlines() if "2.50" in line] == names[:i]
    assert terminal.seen.splitlines()[-1].split() == ["mean", "(geom.)", "1.00", "1.00"]


def test_the_second_run_of_a_turn_is_timed_and_the_first_round_is_not():
    pauses = iter([0.0, 0.0, 0.0, 0.05, 0.0, 0.02, 0.0, 0.04])
    program = (lambda: time.sleep(next(pauses)), [])
    rounds = bench_rounds.time_rounds({"program": program}, repeats=3)["program"]
    for ms, pause in zip(rounds, (50, 20, 40), strict=True):
        assert ms >= pause


def test_programs_settle_before_they_are_timed():
    turns = []
    program = (lambda: turns.append(None), [])
    bench_rounds.time_rounds({"program": program}, repeats=1, settle=0.02)
    assert len(turns) > 2 * 2


def test_rounds_end_in_time():
    turns = []
    program = (lambda: turns.append(time.sleep(0.01)), [])
    rounds = bench_rounds.time_rounds({"program": program}, repeats=1000, seconds=0.1)
    assert 3 < len(rounds["program"]) < 100
    turns.clear()
    bench_rounds.time_rounds({"program": program}, repeats=1000, seconds=0)
    assert len(turns) == 2 * 4  # in the first round nothing is timed


def test_the_spread_is_of_paired_rounds():
    """A round in which everything takes twice as long has the ratio of the others."""
    rounds = {
        **{"forward_ms": [1.0, 4.0, 3.0, 2.0], "conv_forward_ms": [0.5, 2.0, 1.5, 1.0]},
        **{"forward_backward_ms": [6.0] * 4, "conv_forward_backward_ms": [1.0, 2.0, 3.0, 6.0]},
    }
    figures = bench._with_ratios(rounds, "conv_")
    assert figures["rounds"] == 4
    assert figures["forward_ms"] == 1.0  # the best
    quartiles = {"lower_quartile": 1.75, "median": 2.5, "upper_quartile": 3.25}
    assert figures["spread"]["forward_ms"] == {"min": 1.0, "max": 4.0, **quartiles}
    assert set(figures["spread"]["forward_ratio"].values()) == {2.0}
    assert figures["forward_backward_ratio"] == 6.0
    assert figures["spread"]["forward_backward_ratio"]["median"] == 2.5


class Tensor:
    """What the benchmark asks of a tensor."""

    def __init__(self, array):
        self.array = array

    def requires_grad_(self):
        return self

    detach = requires_grad_

    def numpy(self):
        return self.array


def stand_ins(change=0.0):
    """Modules whose operator is the reference, in torchvision's layout, with something added."""

    def deform_conv2d(x, offset, weight, bias, *, mask, stride, padding, dilation):
        y = oxijax.reference.deform_conv(
            x.array,
            offset.array,
            weight.array,
            None if mask is None else mask.array,
            None if bias is None else bias.array,
            strides=stride,
            padding=[(p, p) for p in padding],
            dilation=dilation,
            data_format="NCHW",
        )
        return Tensor(np.asarray(y) + change)

    def grad(y, operands, grad_y):
        assert grad_y.array.shape == y.array.shape
        return list(operands)

    torch = types.SimpleNamespace(
        from_numpy=Tensor,
        no_grad=contextlib.nullcontext,
        autograd=types.SimpleNamespace(grad=grad),
    )
    return torch, types.SimpleNamespace(ops=types.SimpleNamespace(deform_conv2d=deform_conv2d))


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["v2", "offset-groups", "groups", "v1", "no-bias"])
def test_torchvision_gets_the_same_layer(name):
    figures = bench.measure_against_torchvision(*stand_ins(), CASES[name], repeats=1)
    for what in ("forward", "forward_backward"):
        ratio = figures[f"{what}_ms"] / figures[f"torchvision_{what}_ms"]
        assert figures[f"{what}_ratio"] == ratio


def test_another_output_is_not_compared():
    with pytest.raises(CommandError, match="torchvision finds another output of v2"):
        bench.measure_against_torchvision(*stand_ins(change=0.1), CASES["v2"], repeats=1)


def test_what_of_torchvision_is_missing(monkeypatch):
    torch = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert "torchvision" in bench_torchvision.import_torchvision(threads=3)[2]
    asked = []
    torch.set_num_threads = asked.append
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace())
    assert bench_torchvision.import_torchvision(threads=3)[2] == ""
    assert asked == [3]
