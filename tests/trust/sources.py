"""The sources that proofs depend on, found by imports, and hashes of what they say."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

__all__ = ["Sources", "digest"]


def digest(*values: str) -> str:
    """The hash of some text, in 16 hexadecimal digits."""
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:16]


class Sources:
    """The Python files of a checkout: which of them a file needs, and hashes of sets of them.

    A name that a module only passes on, as `oxijax` does with `conv`, is followed to where it is
    defined, and the module's other imports are not: a change of one operator is none of another.
    But where a package imports its own modules, they may add to what another of them has.
    """

    def __init__(self, edited: Mapping[Path, str] | None = None):
        """The checkout's files, but for the text of some that are `edited`."""
        edited = edited or {}
        self._file = lambda path: _parsed(path, edited.get(path))
        self._resolved = functools.cache(self._resolve)

    def closure(self, paths: Iterable[Path]) -> frozenset[Path]:
        """Some files, and all others of the checkout that they import, directly or not."""
        found: set[Path] = set()
        waiting = list(paths)
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                waiting += (p for name in self._file(path).names for p in self._resolved(name))
        if any("support.paths.DATA" in self._file(path).names for path in found):
            found.update(ROOT.glob("tests/data/*.npz"), ROOT.glob("tests/data/*.json"))
        return frozenset(found)

    def digest(self, paths: Iterable[Path]) -> str:
        """The hash of what files say: without comments and docstrings."""
        return digest(
            *(
                part
                for path in sorted(paths)
                for part in (path.relative_to(ROOT).as_posix(), self._file(path).code)
            )
        )

    def _resolve(self, name: str) -> frozenset[Path]:
        """The files that define a dotted name; none outside of the checkout."""
        package, _, last = name.rpartition(".")
        if module := module_file(name):
            return frozenset() if self._file(module).passes_on else frozenset([module])
        module = module_file(package)
        if module is None:
            return frozenset()
        file = self._file(module)
        if file.passes_on and last.startswith("__") and last not in file.bound:
            return frozenset()  # `__file__` or `__all__`
        if not file.passes_on or file.bound.get(last, name) == name:
            return frozenset([module])
        own = (n for n in file.bound.values() if n.rpartition(".")[0] == package and n in file.run)
        return self._resolved(file.bound[last]).union(*map(self._resolved, own))


@functools.cache
def module_file(name: str) -> Path | None:
    """The file of a module or package of the checkout; None for any other name."""
    for base in (ROOT, ROOT / "tests"):
        path = base.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


class _File(NamedTuple):
    """A file, as far as others depend on it.

    Attributes:
      names: the dotted names that it imports, or looks up in what it imports.
      bound: what its own names stand for, of those that imports bind.
      run: the names that are imported whenever it is, not in a function or for types only.
      passes_on: whether it defines no class, and no function with a name of its own.
      code: its text without docstrings, comments on lines of their own, and empty lines; of what is
        not Python the hash of its bytes.
    """

    names: frozenset[str]
    bound: Mapping[str, str]
    run: frozenset[str]
    passes_on: bool
    code: str


@functools.cache
def _parsed(path: Path, text: str | None = None) -> _File:
    """A file of the checkout, or what it would be with another text."""
    if path.suffix != ".py":
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        return _File(frozenset(), {}, frozenset(), False, content)
    text = path.read_text() if text is None else text
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    bound, run = dict(_imports(nodes)), frozenset(dict(_imports(tree.body)).values())
    dotted = (_dotted(node).partition(".") for node in nodes if isinstance(node, ast.Attribute))
    looked_up = {f"{bound[first]}.{rest}" for first, _, rest in dotted if first in bound}
    plain = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    choices = [node for node in tree.body if isinstance(node, ast.If)]
    top = [*tree.body, *(node for one in choices for node in (*one.body, *one.orelse))]
    own = any(isinstance(node, kinds) and not node.name.startswith("__") for node in top)
    names = frozenset({*bound.values(), *looked_up, *plain})
    return _File(names, bound, run, not own, "\n".join(_code(text, nodes)))


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """The names that imports bind, and what they stand for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def _dotted(node: ast.expr) -> str:
    """The name `a.b.c` of an expression that is one; "" of any other."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return inner and f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _code(text: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The lines that say something: a comment inside of a string is one of them."""
    strings: set[int] = set()
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr):
            strings.update(range(node.lineno, 1 + (node.end_lineno or 0)))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            docstrings.update(range(node.body[0].lineno, 1 + (node.body[0].end_lineno or 0)))
    for number, line in enumerate(text.splitlines(), 1):
        says = number in strings or (line.strip() and not line.lstrip().startswith("#"))
        if says and number not in docstrings:
            yield line
