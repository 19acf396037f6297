"""What a proof depends on, as one hash that is the same in each process and each checkout."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import ptx.emulator
from ptx.isa.assembler import ToolNotFoundError, find_ptxas
from support.paths import ROOT

__all__ = [
    "assembler",
    "digest",
    "emulator_sources",
    "library",
    "sources_of",
    "tool_version",
    "versions",
]

Sources = tuple[tuple[str, str], ...]  # names of files, and hashes of what they hold
PACKAGES = Path(ptx.__file__).parents[1]  # of the `ptx` that is tested, in a checkout or not
# What a proof in the emulator runs through, but for what writes a text and chooses its launch.
EMULATION = (
    "ptx/checks.py",
    "ptx/kernel.py",
    "ptx/launch.py",
    "ptx/builder/provenance.py",
    "ptx/emulator/**/*.py",
    "ptx/isa/*.py",
    "ptx/kernels/convolution.py",
    "ptx/kernels/limits.py",
    "ptx/testing/*.py",
)
# Of a family of kernels: what a configuration means, and how arrays lie in memory.
FAMILY = ("config.py", "definition.py", "limits.py", "parameters.py")
OF_VERDICTS = ("contents.py", "verdicts.py")


def digest(*values: Any) -> str:
    """The hash of values, in 16 hexadecimal digits; see `_described` for what they may be."""
    return _hash(repr(_described(values)).encode())[:16]


def versions() -> tuple[str, ...]:
    """The machine's architecture, and the versions of what every proof is calculated with."""
    names = ("numpy", "ml_dtypes", "jax")
    packages = (f"{name} {importlib.metadata.version(name)}" for name in names)
    return (platform.system(), platform.machine(), platform.python_version(), *packages)


@functools.cache
def sources_of(test: Path, root: Path = ROOT, packages: Path = PACKAGES) -> Sources:
    """Names and hashes of a test's own sources.

    They are the test's file, the `conftest.py` of its folders, and what says what is kept, with all
    modules of tests that any of these import; and of families of kernels that they name, `FAMILY`.
    """
    tests = root / "tests"
    folders = [folder for folder in test.parents if folder.is_relative_to(tests)]
    waiting = [test, *(tests / "support" / name for name in OF_VERDICTS)]
    waiting += [path for folder in folders if (path := folder / "conftest.py").is_file()]
    found: set[Path] = set()
    families: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in _imported(path):
            module = tests / f"{name.replace('.', '/')}.py"
            if module.is_file():
                waiting.append(module)
            if name.startswith("ptx.kernels."):
                families.add(name.split(".")[2])
    of_kernels = (
        packages / "ptx/kernels" / family / name for family in families for name in FAMILY
    )
    return (
        *_hashed(found, root),
        *_hashed((path for path in of_kernels if path.is_file()), packages),
    )


@functools.cache
def emulator_sources(packages: Path = PACKAGES) -> Sources:
    """Names and hashes of the sources in `EMULATION`."""
    paths = (path for pattern in EMULATION for path in packages.glob(pattern))
    return _hashed(paths, packages)


@functools.cache
def library(*patterns: str) -> Sources:
    """Names and hashes of files of the library, and of its documents, that fit some patterns."""
    return _hashed((path for pattern in patterns for path in PACKAGES.glob(pattern)), PACKAGES)


@functools.cache
def assembler() -> tuple[object, ...]:
    """The version of ptxas, if there is one, and names and hashes of the sources that call it."""
    try:
        version = tool_version(find_ptxas())
    except ToolNotFoundError:
        version = None
    return version, library("ptx/isa/*.py")


@functools.cache
def tool_version(program: Path | str) -> str:
    """What a program prints when it is asked for its version."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def _imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, and what it imports of them, by their full names."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _hashed(paths: Iterable[Path], root: Path) -> Sources:
    named = {path.relative_to(root).as_posix(): path for path in paths}
    return tuple((name, _hash(named[name].read_bytes())) for name in sorted(named))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _described(value: Any) -> object:
    """A value as nested tuples of names and numbers; what has no such description raises.

    A path stands for the content of a file, or of all files of a folder, and a class for its name.
    A function stands for the launch that it asks the emulator for, with all that the emulator is
    made of.

    Raises:
      TypeError: a value of another kind.
    """
    match value:
        case enum.Enum():
            return (_name(type(value)), value.name)
        case None | bool() | int() | float() | str() | bytes():
            return (type(value).__name__, value)
        case np.generic() | np.ndarray():
            return ("array", value.dtype.str, value.dtype.name, value.shape, _hash(value.tobytes()))
        case Path():
            files = sorted(p for p in value.rglob("*") if p.is_file()) or [value]
            named = ((p.relative_to(value.parent).as_posix(), p.read_bytes()) for p in files)
            return ("path", *((name, _hash(content)) for name, content in named))
        case tuple() | list():
            return (type(value).__name__, *map(_described, value))
        case Mapping():
            return ("mapping", *((_described(k), _described(v)) for k, v in value.items()))
        case set() | frozenset():
            return ("set", *sorted((_described(v) for v in value), key=repr))
        case ptx.emulator.Buffer():
            held = value.array if value.initialized else (value.array.dtype.str, value.array.shape)
            return ("buffer", _described(held), value.writable, value.initialized, value.origin)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            return (_name(type(value)), *((name, _described(v)) for name, v in fields))
        case type():
            return ("class", _name(value))
        case functools.partial():
            return _launch_of(value)
        case _ if inspect.isfunction(value) or inspect.ismethod(value):
            return _launch_of(value)
    raise TypeError(f"a verdict cannot depend on {value!r}")


def _name(class_: type) -> str:
    return f"{class_.__module__}.{class_.__qualname__}"


class _LaunchedError(Exception):
    """Carries what `ptx.emulator.launch` was called with."""


def _launch_of(function: Callable[[], object]) -> object:
    """What a function asks the emulator for first; it gets no further.

    Raises:
      ValueError: it returns without a launch.
    """

    def launch(*arguments: Any, **options: Any) -> None:
        raise _LaunchedError(arguments, options)

    with mock.patch.object(ptx.emulator, "launch", launch):
        try:
            function()
        except _LaunchedError as launched:
            return ("launch", emulator_sources(), _described(launched.args))
    raise ValueError(f"{function} launches nothing")
