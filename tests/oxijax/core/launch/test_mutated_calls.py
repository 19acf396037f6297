"""Calls that someone else has made up: refused, or right, whatever is changed in them.

Nothing is read or written outside of buffers, no operand is written, no process ends or hangs. The
seed is another one from hour to hour, and a failure says which:

    PYTHONPATH=tests python -m support.mutated_calls SEED COUNT

makes the same calls again, and prints what becomes of each.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest
from support.paths import ROOT
from support.sanitizers import gcc

import ptx
from oxijax._core.launch import _seal

SECONDS, BYTES = 5, 2 * 2**30  # of processor time of a call, and of a process
PACKAGES = Path(ptx.__file__).parents[1]  # of the `ptx` that is tested, in a checkout or not


def check(seed: int, count: int, packages: Path = PACKAGES, **settings: str) -> Path:
    """Runs changed calls in a process of its own; returns the handler that they went through.

    Args:
      seed: the seed of the changes.
      count: the number of calls.
      packages: the folder with oxijax and ptx.
      **settings: environment variables.
    """
    command = [sys.executable, "-m", "support.mutated_calls", str(seed), str(count)]
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=packages,  # where Python looks first
            timeout=120 + count,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), **settings},
        )
    except subprocess.TimeoutExpired as expired:
        said = (expired.stdout or b"").decode()
        pytest.fail(f"seed {seed} hangs after {said[-2000:]}")
    lines = finished.stdout.splitlines()
    assert finished.returncode == 0, f"seed {seed}: {lines[-2:]} {finished.stderr[-3000:]}"
    first, *said = map(json.loads, lines)
    ended = [line for line in said if "ended" in line]
    assert len(ended) == count
    for line in ended:
        # What is accepted has its own key, leaves operands alone, and stays in its buffers.
        assert not line["ended"].startswith("WRONG"), (seed, line)
        assert "failed in the emulator" not in line["ended"], (seed, line)
        assert line["seconds"] < SECONDS, (seed, line)
    assert said[-1]["peak"] < BYTES
    # The changes are neither all refused nor all accepted.
    ran = sum(line["ended"] == "ran" for line in ended)
    assert count / 50 < ran < count / 2, (seed, ran)
    return Path(first["handler"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_mutants(seed):
    check(seed, 300)


@pytest.mark.slow
def test_handler_under_sanitizers(tmp_path):
    """A copy of the packages has a handler that reports what it reads or writes astray."""
    for package in ("oxijax", "ptx"):
        shutil.copytree(PACKAGES / package, tmp_path / package)
    handler = tmp_path / "oxijax" / "_core" / "launch" / "libhandler.so"
    flags = ["-shared", "-fPIC", "-std=c11", "-O1", "-g", "-fsanitize=address,undefined"]
    includes = [f"-I{Path(folder) / 'include'}" for folder in jaxlib.__path__]
    source = handler.with_name("handler.c")
    subprocess.run([gcc(), *flags, *includes, str(source), "-o", str(handler)], check=True)
    _seal.seal(handler, source)
    runtimes = (
        subprocess.check_output([gcc(), f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    )
    used = check(
        0,
        100,
        tmp_path,
        LD_PRELOAD=" ".join(runtimes),
        ASAN_OPTIONS="detect_leaks=0",  # Python's and XLA's
        UBSAN_OPTIONS="halt_on_error=1",
    )
    assert used == handler
