"""Processes that a section starts, and that end with it, with all that they start themselves."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from gpu_suite.recorder import Recorder

__all__ = ["end_group", "run", "start"]


def start(
    recorder: Recorder, command: Sequence[str], *, env: Mapping[str, str], cwd, out: IO | int
) -> subprocess.Popen:
    """Starts a process in a group of its own, which the suite ends if the section cannot."""
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
    )
    recorder.started(process.pid)
    return process


def run(
    recorder: Recorder, command: Sequence[str], *, env: Mapping[str, str], cwd
) -> tuple[int | None, str]:
    """Exit status and output; the status is None where the section's time ended it."""
    process = start(recorder, command, env=env, cwd=cwd, out=subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=max(1.0, recorder.left()))
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        end_group(process.pid)
        output, _ = process.communicate()
        return None, output.decode(errors="replace")


def end_group(leader: int) -> None:
    """Ends a process and all others of its group, if there still are any."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
