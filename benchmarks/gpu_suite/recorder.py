"""A section's findings so far, in a file that is always whole."""

import enum
import json
import os
import pathlib
import threading
import time
from typing import Any

__all__ = ["Mode", "Recorder"]


class Mode(enum.Enum):
    """How the suite runs."""

    MEASURE = "measure"
    REHEARSE = "rehearse"  # as on a GPU, with tiny layers
    DRY_RUN = "dry-run"  # without a GPU, in the emulator, with tiny layers

    @property
    def tiny(self) -> bool:
        """Whether layers are tiny, each runs once, and no time means anything."""
        return self is not Mode.MEASURE

    @property
    def emulated(self) -> bool:
        """Whether there is no GPU."""
        return self is Mode.DRY_RUN


class Recorder:
    """Writes a section's findings as JSON, again after each of them.

    Args:
      path: the file, which is replaced in one step: whoever reads it sees all or nothing of a
        change, also after the process was killed.
      seconds: after which the section should start nothing more.
      mode: how the suite runs.
    """

    def __init__(self, path: pathlib.Path, seconds: float, mode: Mode):
        self.path, self.mode = path, mode
        self.end = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.content: dict[str, Any] = {
            "results": {},
            "failures": [],
            "cut": [],
            "finished": False,
            "process_groups": [],
        }
        self._write()

    def left(self) -> float:
        """Seconds until the section should end."""
        return self.end - time.monotonic()

    def put(self, *keys: str, value: Any) -> None:
        """Sets results[keys[0]][keys[1]]... to a value."""
        place = self.content["results"]
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        self._write()

    def fail(self, what: str, why: str) -> None:
        """Notes that something went wrong; the suite will not succeed."""
        self.content["failures"].append({"what": what, "why": why})
        self._write()

    def cut(self, what: str, why: str = "out of time") -> None:
        """Notes that something was not done."""
        self.content["cut"].append({"what": what, "why": why})
        self._write()

    def started(self, process_group: int) -> None:
        """Notes processes that have to end with the section, however that ends."""
        self.content["process_groups"].append(process_group)
        self._write()

    def finish(self) -> None:
        """Notes that the section came to its end."""
        self.content["finished"] = True
        self._write()

    def _write(self) -> None:
        with self._lock:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.content))
            os.replace(part, self.path)
