"""Python programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["python"]

_TIMEOUT = 500  # seconds


def python(*arguments: str, **settings: str) -> tuple[int, str]:
    """Runs this Python with arguments: its exit status, and all that it says.

    Args:
      *arguments: the interpreter's arguments.
      **settings: environment variables, beside those that there are.
    """
    finished = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT,
        env={**os.environ, **settings},
    )
    return finished.returncode, finished.stdout
