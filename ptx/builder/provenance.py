"""Which functions wrote each line of a kernel's text, for those who ask before it is generated."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator, Mapping

__all__ = ["Provenance", "functions", "is_recorded", "note", "recorded"]

Provenance = Mapping[str, Mapping[int, tuple[str, ...]]]

_found: contextvars.ContextVar[dict[str, Mapping[int, tuple[str, ...]]] | None]
_found = contextvars.ContextVar("provenance", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[Provenance]:
    """Notes, of every text that is finished inside, which functions emitted each instruction.

    Yields:
      text -> 1-based number of a line -> the functions of `ptx` that were active when the line's
      instruction was emitted: qualified names, the outermost first. Of the builder only loops and
      branches are among them.
    """
    found: dict[str, Mapping[int, tuple[str, ...]]] = {}
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def is_recorded() -> bool:
    """Whether anybody asks which functions emit instructions: texts are then written anew."""
    return _found.get() is not None


def functions() -> tuple[str, ...]:
    """The functions that are active, if anybody asks for them; else none."""
    if not is_recorded():
        return ()
    names, frame = [], sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("ptx.") and (
            not module.startswith("ptx.builder.") or module == "ptx.builder.control"
        ):
            names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(names))


def note(text: str, lines: Mapping[int, tuple[str, ...]]) -> None:
    """Keeps what is known of a finished text, if anybody asks for it."""
    found = _found.get()
    if found is not None:
        found[text] = lines
