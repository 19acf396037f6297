"""The origin of each line of a kernel's text, recorded where it is asked for beforehand."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Origin", "is_recorded", "note", "origin", "recorded"]


class Origin(NamedTuple):
    """The code that emitted an instruction.

    Attributes:
      functions: the functions of `ptx` that were active: qualified names, the outermost first. Of
        the builder only loops and branches are among them.
      file: the file of the Python code that called the builder.
      line: the line in that file.
    """

    functions: tuple[str, ...]
    file: str
    line: int


_found: contextvars.ContextVar[dict[str, Mapping[int, Origin]] | None]
_found = contextvars.ContextVar("provenance", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[Mapping[str, Mapping[int, Origin]]]:
    """Notes, of every text that is finished inside, what emitted each instruction.

    Yields:
      text -> 1-based number of a line -> the origin of the line's instruction.
    """
    found: dict[str, Mapping[int, Origin]] = {}
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def is_recorded() -> bool:
    """Whether anybody asks what emits instructions: texts are then written anew."""
    return _found.get() is not None


def origin() -> Origin | None:
    """The origin of an instruction that is emitted now, if anybody asks for it."""
    if not is_recorded():
        return None
    names, caller, frame = [], None, sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        builds = module.startswith("ptx.builder.")
        if module.startswith("ptx.") and (not builds or module == "ptx.builder.control"):
            names.append(f"{module}.{frame.f_code.co_qualname}")
        if caller is None and not builds and module != "contextlib":
            caller = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    file, line = caller or ("", 0)
    return Origin(tuple(reversed(names)), file, line)


def note(text: str, lines: Mapping[int, Origin]) -> None:
    """Keeps what is known of a finished text, if anybody asks for it."""
    found = _found.get()
    if found is not None:
        found[text] = lines
