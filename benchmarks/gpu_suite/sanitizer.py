"""Section sanitizer: compute-sanitizer's memcheck and racecheck on small layers.

Each tool also gets a kernel with a fault that it must report: what finds nothing there proves
nothing elsewhere. A dry run has the same programs run in the emulator, and the same faults found.
"""

import concurrent.futures
import dataclasses
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

from gpu_suite import processes
from gpu_suite.recorder import Recorder

__all__ = ["errors_of", "find_tool", "run"]

_ROOT = pathlib.Path(__file__).parents[2]
_PLACES = (
    "/usr/local/cuda*/bin/compute-sanitizer",
    "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
    "/opt/nvidia/*/compute-sanitizer*/compute-sanitizer",
)
_OUT_OF_TIME = "out of time"
_REFUSED = "Device not supported"  # what the tool says on hosts whose GPU it may not watch
_SUMMARIES = {
    "memcheck": re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?\b", re.M),
    "racecheck": re.compile(r"^=+ RACECHECK SUMMARY: (\d+) hazards? displayed", re.M),
}


@dataclasses.dataclass(frozen=True)
class _Check:
    """A tool and a program; whether the program has a fault; what the emulator calls it."""

    tool: str
    program: str
    faulty: bool = False
    emulator_says: str = ""

    def __str__(self) -> str:
        return f"{self.tool} {self.program}"


_CHECKS = (
    _Check("memcheck", "out-of-bounds", faulty=True, emulator_says="OutOfBoundsError"),
    _Check("memcheck", "strange"),
    _Check("memcheck", "layers"),
    _Check("memcheck", "conv"),
    _Check("memcheck", "gemm"),
    _Check("memcheck", "sampling"),
    _Check("racecheck", "race", faulty=True, emulator_says="RaceError"),
    _Check("racecheck", "layers"),
    _Check("racecheck", "conv"),
    _Check("racecheck", "gemm"),
    _Check("racecheck", "sampling"),
)


def run(recorder: Recorder) -> None:
    tool = None if recorder.mode.tiny else find_tool()
    recorder.put(
        "compute_sanitizer", value=f"not run: {recorder.mode.value}" if recorder.mode.tiny else tool
    )
    if tool is None and not recorder.mode.tiny:
        recorder.fail(
            "compute-sanitizer",
            f"it is neither on PATH nor in {', '.join(_PLACES)}: install the CUDA toolkit",
        )
        return
    if tool is not None:
        version = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60)
        recorder.put("version", value=(version.stdout + version.stderr).strip())
    checks = _CHECKS
    if recorder.mode.tiny:  # in the emulator the tools are one
        checks = tuple(c for c in checks if c.tool == "memcheck" or c.faulty)
    workers = 2 if recorder.mode.tiny else len(checks)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_check, recorder, tool, check): check for check in checks}
        for future in concurrent.futures.as_completed(futures):
            check = futures[future]
            found, problem = future.result()
            recorder.put("checks", str(check), value=found)
            if problem == _OUT_OF_TIME:
                recorder.cut(str(check))
            elif _REFUSED in found["output_tail"]:
                reason = f"not available: compute-sanitizer says {_REFUSED!r}"
                recorder.put("checks", str(check), value={"not_measured": reason})
            elif problem:
                recorder.fail(str(check), f"{problem}\n{found['output_tail']}")


def find_tool() -> str | None:
    """The path of compute-sanitizer, or None."""
    found = shutil.which("compute-sanitizer")
    return found or next(
        (place for pattern in _PLACES for place in sorted(glob.glob(pattern))), None
    )


def errors_of(tool: str, output: str) -> int | None:
    """The number of errors or hazards in a tool's summary; None if it has printed none."""
    summaries = _SUMMARIES[tool].findall(output)
    return sum(map(int, summaries)) if summaries else None


def _check(recorder: Recorder, tool: str | None, check: _Check) -> tuple[dict[str, Any], str]:
    """What was found, and what is wrong with it, if anything."""
    command = [sys.executable, "-m", "gpu_suite.sanitizer_program", check.program]
    if tool is None:
        command.append("--emulate")
    else:
        # Of the tool's errors only those of kernels count: failed calls are Python's to report.
        options = ["--tool", check.tool, "--report-api-errors", "no", "--print-limit", "20"]
        command = [tool, *options, *command]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    status, output = processes.run(recorder, command, env=environment, cwd=_ROOT)
    if status is None:
        return {"output_tail": output[-3000:]}, _OUT_OF_TIME
    found: dict[str, Any] = {
        "exit_status": status,
        "kernels_ran": _kernels_ran(output),
        "output_tail": output[-3000:],
    }
    if tool is None:
        return found, _judge_emulated(check, status, output)
    found["errors"] = errors_of(check.tool, output)
    return found, _judge(check, found)


def _judge(check: _Check, found: dict[str, Any]) -> str:
    """What is wrong; the program's own verdict counts beside the tool's."""
    if found["errors"] is None:
        return f"{check.tool} printed no summary"
    if check.faulty:
        return "" if found["errors"] else f"{check.tool} misses the fault that was planted"
    if found["errors"]:
        return f"{check.tool} reports {found['errors']} errors"
    if found["exit_status"]:
        return f"the program ended with exit status {found['exit_status']}"
    return "" if found["kernels_ran"] else "no kernel has run"


def _judge_emulated(check: _Check, status: int, output: str) -> str:
    if check.faulty:
        noticed = status != 0 and check.emulator_says in output
        return "" if noticed else "the emulator misses the fault that was planted"
    if status:
        return f"the program ended with exit status {status}"
    return "" if _kernels_ran(output) else "no kernel has run"


def _kernels_ran(output: str) -> int:
    found = re.search(r"^(\d+) kernels ran", output, re.M)
    return int(found[1]) if found else 0
