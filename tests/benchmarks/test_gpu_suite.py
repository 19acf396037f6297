"""The GPU suite's script, without a GPU: a dry run, and what its parts conclude from figures."""

import contextlib
import ctypes
import json
import runpy
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from gpu_suite import device_launch, handler, sanitizer, times_xla
from gpu_suite.deform_conv_layers import work
from gpu_suite.device_launch import device_launches
from gpu_suite.merge import merged
from gpu_suite.plan import COMMANDS, SECTIONS, seconds_for
from gpu_suite.recorder import Mode, Recorder
from gpu_suite.report import ratios, stem
from gpu_suite.report_tuning import tuning
from gpu_suite.sanitizer import errors_of
from gpu_suite.timing import time_chain
from support.paths import ROOT
from support.places import PRECISIONS

from oxijax._core.launch import _seal
from oxijax._core.launch._emulation import EmulatedArray, _Loaded
from oxijax._core.launch._handler import LAUNCH_FUNCTION
from oxijax.testing import GPU_BENCHMARK_CASES

_RACES = "========= RACECHECK SUMMARY:"


def run_suite(out, *options):
    command = [sys.executable, "benchmarks/gpu.py", "--out", str(out), "--dry-run", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    files = {path.name: path.read_text() for path in out.iterdir()}
    assert "gpu-results.json" in files, done.stdout + done.stderr
    return done, json.loads(files["gpu-results.json"]), files


@pytest.fixture
def section(tmp_path):
    """A function that runs a section alone, by the script: its results, the report and the page."""

    def run(name):
        done, report, files = run_suite(tmp_path, "--sections", name)
        shown = done.stdout + done.stderr
        assert list(report["sections"]) == ["build", name]
        for ran in report["sections"].values():
            assert (ran["status"], ran["failures"], ran["cut"]) == ("done", [], []), shown
        assert done.returncode == 0, shown
        assert len(files) == 3
        (page,) = (text for name, text in files.items() if name.endswith(".md"))
        assert page in done.stdout
        assert "no time in it means anything" in page
        return report["sections"][name]["results"], report, page

    return run


def test_every_section_runs_though_one_crashes(tmp_path):
    done, report, files = run_suite(tmp_path, "--plant", "--sections", "info", "times-torch")
    sections = report["sections"]
    assert list(sections) == ["build", "info", "planted", "times-torch"]
    assert sections["planted"]["status"] == "crashed: SIGABRT"
    assert sections["planted"]["results"] == {"before_the_crash": 1}
    assert [sections[name]["status"] for name in ("build", "info", "times-torch")] == ["done"] * 3
    assert done.returncode == 1
    (page,) = (text for name, text in files.items() if name.endswith(".md"))
    assert "failed, planted: planted: crashed: SIGABRT" in page


def test_info(section):
    results, _, _ = section("info")
    assert results["versions"]["jax"] == jax.__version__
    assert results["oxijax"]["versions"]["jax"] == jax.__version__


@pytest.mark.slow
def test_tests(section):
    results, _, _ = section("tests")
    assert results["counts"] == {"collected": 6, "ran": 6, "passed": 6}
    assert results["passed_in"] == {"deform_conv": 3, "conv": 1, "gemm": 1, "sampling": 1}
    worst = results["worst_errors"]
    assert set(worst) == {"deform_conv", "conv", "gemm"}
    assert set(worst["deform_conv"]) == {"float16", "tf32"}
    assert set(worst["conv"]) == {"bfloat16"}
    assert set(worst["gemm"]) == {"bfloat16"}
    named = {"y", "dx", "dweight", "dbias"}
    for function, names in (
        ("deform_conv", {*named, "doffset", "dmask"}),
        ("conv", named),
        ("gemm", {"y", "da", "db", "dc", "dalpha", "dbeta"}),
    ):
        for precision, errors in worst[function].items():
            assert set(errors) == names
            assert all(0 < error <= PRECISIONS[precision][2] for error in errors.values())


@pytest.mark.slow
def test_sanitizer(section):
    checks = section("sanitizer")[0]["checks"]
    assert checks["memcheck layers"]["kernels_ran"] == 2 * 4
    assert checks["memcheck strange"]["kernels_ran"] == 2 * 4
    assert checks["memcheck conv"]["kernels_ran"] == 2 * 3
    assert checks["memcheck gemm"]["kernels_ran"] == 2 * 3
    assert "OutOfBoundsError" in checks["memcheck out-of-bounds"]["output_tail"]
    assert "RaceError" in checks["racecheck race"]["output_tail"]


def assert_plausible(entries):
    """Times as they should be: there are some, and no median is below the least."""
    for found in entries:
        assert 0 < found["min_us"] <= found["median_us"]


@pytest.mark.slow
def test_times_torch(section):
    results, _, page = section("times-torch")
    assert "torch" in results["not_measured"]
    assert "not measured, times-torch: " in page


@pytest.mark.slow
def test_times_oxijax(section):
    results, report, _ = section("times-oxijax")
    assert report["layers"] == list(GPU_BENCHMARK_CASES)
    assert set(results["times"]["BasicVSR++"]["float16"]) == {"forward"}  # it does not train so
    times = results["times"]["BasicVSR++-train"]["float16"]
    kernels = {"backward_input", "backward_offset", "backward_weight"}
    assert set(times) == {"forward", "forward_backward", *kernels}
    assert_plausible(times.values())


@pytest.mark.slow
def test_times_xla(section):
    times = section("times-xla")[0]["times"]["R50-c3"]["float16"]
    passes = ("forward", "forward_backward")
    assert set(times) == {f"{prefix}_{key}" for prefix in ("conv", "xla") for key in passes}
    assert_plausible(times.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers", "operations"),
    [
        (
            "times-conv",
            ("ResNet50-conv1", "ResNet50-conv3-shortcut"),
            ("forward", "backward_input", "backward_weight"),
        ),
        (
            "times-sampling",
            ("attention", "window"),
            ("forward", "backward_value", "backward_points"),
        ),
    ],
)
def test_times_against_xla(section, name, layers, operations):
    results, report, page = section(name)
    assert set(results["times"]) == {"launch floor", *layers}
    for layer in layers:
        times = results["times"][layer]["bfloat16"]
        assert set(times) == {*operations, *(f"xla_{operation}" for operation in operations)}
        assert_plausible(times.values())
        for operation in operations:
            assert times[operation]["calls"]["oxijax_launch"] == 2  # one for each set of operands
            assert "oxijax_launch" not in times[f"xla_{operation}"]["calls"]
        assert f"| {layer} |" in page
    for operation in operations:
        found = report["against_xla"][name]["bfloat16"][operation]["layers"]
        assert set(found) == set(layers)


@pytest.mark.slow
def test_times_gemm(section):
    times = section("times-gemm")[0]["times"]
    assert set(times) == {"launch floor", "16K-16K-8", "1M-63-63", "64-64-4M"}
    assert set(times["64-64-4M"]) == {"bfloat16", "float32", "float64"}
    products = [product for dtypes in times.values() for product in dtypes.values()]
    for found in products:
        assert found["product"]["calls"] == {"oxijax_launch": 2}
        assert "oxijax_launch" not in found["xla_product"]["calls"]
        assert_plausible(found.values())


@pytest.mark.slow
def test_tuning(section):
    """An emulated GPU has no time, and the page says so."""
    results, _, page = section("tuning")
    assert "not_measured" in results["tuned"]
    assert "not measured, tuning, tuned: an emulated GPU has no time" in page


def test_tuning_table():
    def one(own, kept, first):
        figures = {"own_us": own, "kept_us": kept, "model_first_us": first}
        return {**figures, "candidates": 8, "kept": "TilePlan(m=64)"}

    tuned = {"R50-c3": {"forward": one(40.0, 20.0, 25.0), "backward_input": one(20.0, 10.0, None)}}
    page = "\n".join(tuning({"sections": {"tuning": {"results": {"tuned": tuned}}}}))
    assert "| R50-c3 | forward | 8 | 40.0 | 20.0 | 2.00 | 25.0 | 1.25 | TilePlan(m=64) |" in page
    assert "| R50-c3 | backward_input | 8 | 20.0 | 10.0 | 2.00 |  |  | TilePlan(m=64) |" in page
    assert "own choice: 2.000 times as fast" in page
    assert "first takes 1.250 times as long" in page


@pytest.mark.slow
def test_out_of_time(tmp_path):
    """All sections are begun; one that does not end is ended, and the report says so."""
    done, report, _ = run_suite(tmp_path, "--budget", "0.2")
    assert done.returncode == 1
    assert list(report["sections"]) == ["build", *SECTIONS]
    for name in SECTIONS:
        assert report["sections"][name]["status"].startswith("did not end by itself"), name


def test_cut(tmp_path):
    """What there is no time for is listed, and nothing is left out unsaid."""
    recorder = Recorder(tmp_path / "findings.json", 0, Mode.DRY_RUN)
    times_xla.run(recorder)
    assert len(recorder.content["cut"]) == 4
    assert "times" not in recorder.content["results"]
    assert json.loads((tmp_path / "findings.json").read_text()) == recorder.content


def test_handler_without_setuptools(tmp_path, monkeypatch):
    """The C compiler alone builds it where setup.py cannot; a compiler's error is a failure."""
    monkeypatch.setattr(handler, "_ROOT", tmp_path)  # in which there is no setup.py
    monkeypatch.setattr(handler, "_FOLDER", tmp_path)
    source = (ROOT / "oxijax" / "_core" / "launch" / "handler.c").read_text()
    (tmp_path / "handler.c").write_text(source)
    done, failures = handler.build_handler()
    assert (done["built"], failures) == ("by cc, because setup.py failed", [])
    assert ctypes.CDLL(str(tmp_path / "libhandler.so")).oxijax_api_minor() > 0
    assert _seal.fault(tmp_path / "libhandler.so") is None
    assert handler.build_handler() == ({"built": "earlier"}, [])
    (tmp_path / "libhandler.so").unlink()
    (tmp_path / "handler.c").write_text(source + "nonsense")
    done, (failure,) = handler.build_handler()
    assert done == {"built": "not at all"}
    assert "nonsense" in failure["why"]


def test_shares_of_the_time():
    """Each section gets what it takes, as long as there is time; more if there is more."""
    names, left = list(SECTIONS), 480.0
    for i, name in enumerate(names):
        limit = seconds_for(name, left, names[i + 1 :])
        assert limit == pytest.approx(min(left, SECTIONS[name].seconds))
        left -= limit
    assert left == pytest.approx(0)
    assert seconds_for(names[-1], 1000.0, []) == 1000  # what others left over
    assert seconds_for("info", 2 * sum(s.seconds for s in SECTIONS.values()), names[1:]) == 40


def test_commands_have_all_sections():
    assert [name for sections in COMMANDS for name in sections] == list(SECTIONS)
    assert all(sum(SECTIONS[n].seconds for n in names) * 1.1 <= 540 for names in COMMANDS)


def test_the_plan_has_the_tests_of_all_families(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--plan"])
    assert runpy.run_path(str(ROOT / "benchmarks" / "gpu.py"))["main"]() == 0
    page = capsys.readouterr().out
    files = [str(f.relative_to(ROOT)) for f in (ROOT / "tests").rglob("test*_gpu.py")]
    for family in ("conv", "deform_conv", "gemm", "sampling", "core"):
        assert any(f"oxijax/{family}/" in file for file in files)
    for file in files:
        assert file in page
    assert all(f"  {name} " in page for name in SECTIONS)


class TestReport:
    def report(self):
        def times(**us):
            return {n: {"float16": {"forward": {"median_us": t}}} for n, t in us.items()}

        def section(times):
            return {"results": {"times": times}, "failures": [], "cut": []}

        return {
            "date": "2026-01-02",
            "mode": "measure",
            "layers": ["a", "b", "c"],
            "sections": {
                "info": {
                    "results": {
                        "versions": {"jax": "0.11.2", "torch": "2.11.0+cu130"},
                        "nvidia_smi": {"idle": {"name": "NVIDIA H200"}},
                    }
                },
                "times-oxijax": section(times(a=100.0, b=50.0, c=1.0)),
                "times-torch": section(times(a=200.0, b=400.0)),
            },
        }

    def test_ratios(self):
        found = ratios(self.report())
        assert found["float16"]["forward"].pop("geometric_mean") == pytest.approx(4)
        assert found == {"float16": {"forward": {"a": 2.0, "b": 8.0, "lacks": ["c"]}}}

    def test_runs_of_one_gpu_are_merged(self):
        """Of each section the last run counts."""
        first, second = self.report(), self.report()
        del second["sections"]["info"]
        own = second["sections"]["times-oxijax"]["results"]
        own |= {"times": {}, "device": "NVIDIA H200"}
        second["date"] = "2026-01-03"
        whole = merged([first, second])
        dated = [
            {name: {"date": one["date"], **section} for name, section in one["sections"].items()}
            for one in (first, second)
        ]
        assert whole["sections"] == {**dated[0], **dated[1]}
        assert whole["date"] == "2026-01-03"
        own["device"] = "NVIDIA H100"
        with pytest.raises(ValueError, match="the same GPUs"):
            merged([first, second])
        with pytest.raises(ValueError, match="'measure', got 'rehearse'"):
            merged([first, {**second, "mode": "rehearse"}])
        with pytest.raises(ValueError, match="the same versions"):
            merged([{**first, "sections": {"times-oxijax": second["sections"]["times-oxijax"]}}])

    def test_name_of_the_files(self):
        assert stem(self.report()) == "2026-01-02-h200-jax-0.11.2-torch-2.11.0-cu130"


@pytest.mark.parametrize(
    ("tool", "output", "errors"),
    [
        ("memcheck", "x\n========= ERROR SUMMARY: 0 errors\n", 0),
        ("memcheck", "========= ERROR SUMMARY: 1 error\n", 1),
        ("memcheck", "========= ERROR SUMMARY: 12 errors\n", 12),
        ("memcheck", f"{_RACES} 0 hazards displayed (0 errors, 0 warnings)\n", None),
        ("racecheck", f"{_RACES} 1 hazard displayed (1 error, 0 warnings)\n", 1),
        ("racecheck", f"{_RACES} 0 hazards displayed (0 errors, 0 warnings)\n", 0),
        ("racecheck", "========= Device not supported\n", None),
    ],
)
def test_errors_of_compute_sanitizer(tool, output, errors):
    assert errors_of(tool, output) == errors


@pytest.mark.parametrize(
    ("faulty", "found", "problem"),
    [
        (False, {"errors": 0, "exit_status": 0, "kernels_ran": 4}, ""),
        (False, {"errors": 2, "exit_status": 0, "kernels_ran": 4}, "reports 2 errors"),
        (False, {"errors": 0, "exit_status": 1, "kernels_ran": 0}, "exit status 1"),
        (False, {"errors": 0, "exit_status": 0, "kernels_ran": 0}, "no kernel has run"),
        (False, {"errors": None, "exit_status": 0, "kernels_ran": 4}, "no summary"),
        (True, {"errors": 1, "exit_status": 1, "kernels_ran": 0}, ""),
        (True, {"errors": 0, "exit_status": 0, "kernels_ran": 1}, "misses the fault"),
        (True, {"errors": None, "exit_status": 1, "kernels_ran": 0}, "no summary"),
    ],
)
def test_judgement_on_compute_sanitizer(faulty, found, problem):
    judged = sanitizer._judge(sanitizer._Check("memcheck", "layers", faulty), found)
    assert problem in judged
    assert bool(judged) == bool(problem)


def test_missing_compute_sanitizer_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(sanitizer, "find_tool", lambda: None)
    recorder = Recorder(tmp_path / "findings.json", 60, Mode.MEASURE)
    sanitizer.run(recorder)
    assert [failure["what"] for failure in recorder.content["failures"]] == ["compute-sanitizer"]


def test_device_time_without_the_price_of_a_series(monkeypatch):
    """1.5 ms a run and 70 ms a wait are 500 us for each of three calls."""
    clock = SimpleNamespace(now=0.0)

    def advance(seconds):
        clock.now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(jax, "block_until_ready", lambda out: advance(0.07))
    found = time_chain(lambda *sets: advance(1.5e-3), [(), (), ()], tiny=False)
    assert found["median_us"] == pytest.approx(500)
    assert found["min_us"] == pytest.approx(500)
    assert found["samples"] >= 7


def test_work():
    """The least time in microseconds, at 790 TFLOP/s and 4.3 TB/s."""
    floors = {"R50-c3": 50, "R50-c4": 50, "R50-c5": 50, "BasicVSR++": 16.7}
    for name, floor in floors.items():
        needed = work(GPU_BENCHMARK_CASES[name], "forward", "bfloat16")
        seconds = max(needed.flops / 790e12, needed.bytes / 4.3e12)
        assert 1e6 * seconds == pytest.approx(floor, rel=0.1), name
    case = GPU_BENCHMARK_CASES["R50-c5"]
    both, one = (work(case, name, "float32") for name in ("forward_backward", "backward_input"))
    assert both.flops == 3 * one.flops == 3 * 2 * 8 * 25 * 42 * 9 * 512 * 512


def test_kernels_on_a_device_from_a_cpu_program():
    """What memcheck watches: copies, launch and parameters, with a driver made of host memory."""
    memory, freed = {}, []

    def call(function, *arguments):
        if function == "cuMemAlloc":
            buffer = ctypes.create_string_buffer(arguments[0])
            memory[ctypes.addressof(buffer)] = buffer
            return [ctypes.addressof(buffer)]
        if function == "cuMemsetD8":
            ctypes.memset(*arguments)
        elif function in ("cuMemcpyHtoD", "cuMemcpyDtoH"):
            ctypes.memmove(*arguments)
        elif function == "cuMemFree":
            freed.append(*arguments)
        else:
            assert function == "cuCtxSynchronize"
        return []

    @LAUNCH_FUNCTION
    def launch(kernel, *rest):
        """y[:n] = scale * x[:n]; the rest of y stays as it is."""
        grid_and_block, parameters = rest[:6], rest[8]
        assert (kernel, *grid_and_block, rest[6]) == (77, 5, 6, 7, 32, 1, 1, 4096)
        x, y = (ctypes.c_uint64.from_address(parameters[i]).value for i in range(2))
        n = ctypes.c_uint32.from_address(parameters[2]).value
        scale = ctypes.c_float.from_address(parameters[3]).value
        assert {x, y} == set(memory)  # allocations of their own
        source, target = ((ctypes.c_float * 4).from_address(place) for place in (x, y))
        for i in range(n):
            target[i] = scale * source[i]
        return 0

    fake = SimpleNamespace(
        _call=call,
        _handles=[0],
        _primary_context=lambda handle: contextlib.nullcontext(),
        target=lambda device: SimpleNamespace(name="sm_90"),
        load=lambda launch, device: 77,
        launch_pointer=ctypes.cast(launch, ctypes.c_void_p).value,
    )
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    addresses = [ctypes.c_void_p(v.ctypes.data) for v in (x, y)]
    loaded = _Loaded(
        ".entry scale()",
        (
            EmulatedArray(0, (4,), np.dtype(np.float32), writable=False, initialized=True),
            EmulatedArray(1, (4,), np.dtype(np.float32), writable=True, initialized=False),
            np.uint32(3),
            np.float32(2.5),
        ),
        None,
    )
    with mock.patch.object(device_launch, "driver", return_value=fake), device_launches() as ran:
        places = [ctypes.addressof(address) for address in addresses] + [0, 0]
        loaded.run((5, 6, 7), (32, 1, 1), 4096, places)
    assert ran == ["scale"]
    np.testing.assert_array_equal(y[:3], [0, 2.5, 5])
    assert np.isnan(y[3])  # poison
    assert sorted(freed) == sorted(memory)
