"""Section tests: `pytest -m gpu`, with every outcome kept as it comes."""

import collections
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from gpu_suite import processes
from gpu_suite.pytest_progress import FILE_VARIABLE
from gpu_suite.recorder import Recorder

__all__ = ["FILES", "few_tests", "run", "run_tests"]

_ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted(
    str(path.relative_to(_ROOT)) for path in (_ROOT / "tests" / "oxijax").rglob("test*_gpu.py")
)
# Of each kind of test that needs no driver, one.
_DRY_RUN = tuple(
    f"tests/oxijax/{name}"
    for name in (
        "deform_conv/test_gpu.py::test_case[v2-float16]",
        "deform_conv/test_gpu.py::test_case[groups-tf32]",
        "deform_conv/test_gpu.py::test_strange_offset[nan]",
        "conv/test_gpu.py::test_case[plain-bfloat16]",
        "gemm/test_gpu.py::test_case[traced-bfloat16]",
        "sampling/test_gpu.py::test_recorded[msda-0-float64]",
    )
)


def run(recorder: Recorder) -> None:
    run_tests(recorder, few_tests() if recorder.mode.tiny else FILES)


def few_tests() -> list[str]:
    """Those of the operators that run on the virtual GPU too, one of each kernel's path."""
    names = (_ROOT / "tests" / "virtual_gpu" / "smoke.txt").read_text().split()
    return [name for name in names if name.startswith("tests/oxijax/")]


def run_tests(recorder: Recorder, tests: Sequence[str]) -> None:
    """Runs tests on the GPU; in the emulator a few, whatever they are."""
    with tempfile.TemporaryDirectory() as folder:
        progress = pathlib.Path(folder) / "progress.jsonl"
        progress.touch()
        log = pathlib.Path(folder) / "log.txt"
        status = _pytest(recorder, tests, progress, log)
        recorder.put("exit_status", value=status)
        recorder.put("log_tail", value=log.read_text(errors="replace")[-8000:])
        _record(recorder, progress, status)


def _pytest(
    recorder: Recorder, tests: Sequence[str], progress: pathlib.Path, log: pathlib.Path
) -> int | None:
    """Runs pytest until the section's time is over; its exit status, or None if that was so."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "gpu_suite.pytest_progress"]
    command += ["-p", "no:cacheprovider", "-W", "default", "--tb=short", "-q"]
    # A worker of pytest-xdist that runs this is none to the pytest started here.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    environment = {
        **inherited,
        FILE_VARIABLE: str(progress),
        "OXIJAX_REQUIRE_GPU": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if recorder.mode.emulated:
        command += ["-n", "0", *_DRY_RUN]
        environment |= {"JAX_PLATFORMS": "cpu", "OXIJAX_EMULATE_GPU": "sm_90"}
    else:
        # Tests come in order and in small chunks, so that what time cuts off are the last ones: the
        # plugin has put those of all families in turns.
        workers = max(1, min(10, (os.cpu_count() or 2) - 4))
        command += ["-n", str(workers), "--dist", "load", "--maxschedchunk", "2"]
        command += tests
        # Kernels of XLA's own are not what is tested: no time for choosing the fastest.
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
    with log.open("w") as out:
        process = processes.start(recorder, command, env=environment, cwd=_ROOT, out=out)
        try:
            while process.poll() is None and recorder.left() > 0:
                time.sleep(0.5)
                _count(recorder, progress)
            return process.poll()
        finally:
            processes.end_group(process.pid)
            process.wait()


def _read(progress: pathlib.Path) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The tests there are, and those that have run."""
    collected: list[str] = []
    ran: dict[str, dict[str, Any]] = {}
    for text in progress.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # the last one, half written
            continue
        if "collected" in line:
            collected = line["collected"]
        elif line["id"] not in ran or line["outcome"] != "passed":  # a teardown may fail later
            ran[line["id"]] = line
    return collected, ran


def _count(recorder: Recorder, progress: pathlib.Path) -> None:
    collected, ran = _read(progress)
    counts = collections.Counter(line["outcome"] for line in ran.values())
    found = {"collected": len(collected), "ran": len(ran), **counts}
    if found != recorder.content["results"].get("counts"):
        recorder.put("counts", value=found)


def _record(recorder: Recorder, progress: pathlib.Path, status: int | None) -> None:
    collected, ran = _read(progress)
    _count(recorder, progress)
    recorder.put("worst_errors", value=_worst_errors(ran))
    recorder.put("passed_in", value=_passed_in(ran))
    recorder.put("tests", value={id_: _brief(line) for id_, line in sorted(ran.items())})
    for id_, line in ran.items():
        if line["outcome"] == "failed":
            recorder.fail(id_, line["why"])
        elif line["outcome"] != "passed":
            recorder.fail(id_, f"{line['outcome']}, but no test of the GPU may be left out")
    if status is None:
        for id_ in collected:
            if id_ not in ran:
                recorder.cut(id_)
    elif status != 0 and not recorder.content["failures"]:
        recorder.fail("pytest", f"exit status {status}; see the log")
    if not ran:
        recorder.fail("pytest", "no test has run; see the log")


def _brief(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("id", "why")}


def _passed_in(ran: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many tests have passed in each folder of tests/oxijax."""
    passed = (id_.split("/")[2] for id_, line in ran.items() if line["outcome"] == "passed")
    return dict(collections.Counter(passed))


def _worst_errors(ran: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """The largest relative error of all layers: of each function, precision and result."""
    worst: dict[str, dict[str, dict[str, float]]] = {}
    for line in ran.values():
        for function, precisions in line.get("errors", {}).items():
            for precision, errors in precisions.items():
                place = worst.setdefault(function, {}).setdefault(precision, {})
                for name, error in errors.items():
                    place[name] = max(error, place.get(name, 0.0))
    return worst
