"""The examples that train: however a run is divided, or interrupted, its losses are the same."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from support.paths import ROOT
from support.processes import python
from support.xla_flags import cpu_flags

DEVICES, PROCESSES = (
    str(ROOT / "examples" / f"train_multi_{name}.py") for name in ("device", "process")
)
TWO_PROCESSES = (PROCESSES, "--processes", "2", "--accumulate", "2")
STEPS = 60
SAVE_EVERY = 4
RTOL = 1e-5  # in float32, of each loss
TIMEOUT = 120  # seconds

Run = Callable[..., tuple[np.ndarray, str]]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the examples: each program is compiled once, and little optimised."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # of all test processes
    return {
        "XLA_FLAGS": " ".join(cpu_flags(1)),
        "PYTHONWARNINGS": "error",
        "JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.fixture(scope="module")
def run(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs an example with arguments: its losses, and all that it prints."""

    def run(*arguments: str) -> tuple[np.ndarray, str]:
        losses = tmp_path_factory.mktemp("losses") / "losses.json"
        steps = ("--steps", str(STEPS), "--losses", str(losses))
        status, printed = python(*arguments, *steps, **settings)
        assert status == 0, printed
        return np.array(json.loads(losses.read_text())), printed

    return run


@pytest.fixture(scope="module")
def expected(run: Run) -> np.ndarray:
    """Losses of a run on one device, in float32."""
    losses, _ = run(DEVICES, "--dtype", "float32", "--devices", "1")
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 50
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        (DEVICES, "--devices", "2"),
        (DEVICES, "--devices", "4", "--accumulate", "4"),
        TWO_PROCESSES,
    ],
    ids=["2-devices", "4-devices-accumulation", "2-processes-accumulation"],
)
def test_losses_do_not_depend_on_the_division(run: Run, expected: np.ndarray, arguments):
    losses, _ = run(*arguments, "--dtype", "float32")
    np.testing.assert_allclose(losses, expected, rtol=RTOL)


@pytest.mark.slow
def test_bfloat16(run: Run, expected: np.ndarray):
    losses, _ = run(DEVICES, "--dtype", "bfloat16", "--devices", "1")
    assert losses[-1] < losses[0] / 50
    assert np.any(np.abs(losses / expected - 1) > 100 * RTOL)
    np.testing.assert_allclose(losses, expected, rtol=0.1)


@pytest.mark.parametrize(
    ("killed", "resumed"),
    [
        pytest.param(
            (DEVICES, "--devices", "2"),
            (DEVICES, "--devices", "1"),
            marks=pytest.mark.quick,
            id="devices",
        ),
        pytest.param(TWO_PROCESSES, TWO_PROCESSES, id="processes", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on(
    run: Run,
    settings: dict[str, str],
    expected: np.ndarray,
    tmp_path: pathlib.Path,
    killed: tuple[str, ...],
    resumed: tuple[str, ...],
):
    options = ("--dtype", "float32", "--checkpoint", str(tmp_path), "--save-every", str(SAVE_EVERY))
    kill_after_checkpoint(tmp_path, *killed, *options, "--steps", "1000000", **settings)
    newest = max(checkpoints(tmp_path))
    assert newest % SAVE_EVERY == 0
    assert newest < STEPS

    losses, printed = run(*resumed, *options)
    assert re.findall(r"goes on after (\d+) steps", printed) == [str(newest)]
    np.testing.assert_allclose(losses, expected[newest:], rtol=RTOL)
    assert max(checkpoints(tmp_path)) == STEPS


def test_the_status_is_that_of_a_process_that_failed(settings: dict[str, str]):
    status, printed = python(PROCESSES, "--batch", "63", **settings)
    assert status == 1
    assert "--batch 63 is not a multiple of --accumulate 1, times 2 devices" in printed


def checkpoints(directory: pathlib.Path) -> list[int]:
    """Steps of the finished checkpoints in a directory."""
    return [int(path.name) for path in directory.glob("*") if path.name.isdecimal()]


def kill_after_checkpoint(directory: pathlib.Path, *arguments: str, **settings: str) -> None:
    """Starts Python with arguments, and kills it, and what it has started, after a checkpoint."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **settings},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + TIMEOUT
        while not checkpoints(directory):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline, "there is no checkpoint"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
