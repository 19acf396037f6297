"""The seal of the handler library: a file beside it that says what it is, and was compiled from.

Whoever compiles the library seals it, `setup.py` for one, and who loads it looks at the seal first.
The loader of the operating system checks nothing of the kind: a file that was cut short ends the
process. Runs without JAX, and by itself, because `setup.py` does not import the package.
"""

import hashlib
import pathlib

__all__ = ["SUFFIX", "fault", "seal"]

SUFFIX = ".sha256"
_SOURCE = "handler.c"


def seal(library: pathlib.Path, source: pathlib.Path) -> pathlib.Path:
    """Writes the seal of a library that has just been compiled, as `sha256sum` would, and where."""
    path = library.with_suffix(SUFFIX)
    path.write_text(_line(library, library.name) + _line(source, _SOURCE))
    return path


def fault(library: pathlib.Path, source: pathlib.Path | None = None) -> str | None:
    """Why a library is not what was compiled from a source, the one beside it; None if it is."""
    path = library.with_suffix(SUFFIX)
    source = source or library.with_name(_SOURCE)
    for file in (library, path, source):
        if not file.is_file():  # to open a pipe could wait for ever
            return f"it cannot be compared with what was compiled: {file} is no file"
    try:
        sealed = path.read_text().splitlines(keepends=True)
        expected = [_line(library, library.name), _line(source, _SOURCE)]
    except (OSError, UnicodeDecodeError) as error:
        return f"it cannot be compared with what was compiled: {error}"
    if sealed[:1] != expected[:1]:
        return f"it is damaged: it is not the library that {path.name} was written for"
    if sealed != expected:
        beside = source.parent == library.parent
        other = "the one beside it" if beside else str(source)
        return f"it was compiled from another {_SOURCE} than {other}"
    return None


def _line(path: pathlib.Path, name: str) -> str:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n"
