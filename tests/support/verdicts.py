"""Proofs that are made once: what has passed is not proven again until its content changes.

A test asks its fixture `kept` whether it has passed already, on contents that it names; see
CONTRIBUTING.md. The keys of what has passed are in one file.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from support.contents import assembler, digest, emulator_sources, library, sources_of, versions
from support.paths import ROOT

__all__ = ["Verdicts", "add_options", "twentieth_of"]

STORE = Path("tests", "data", "verdicts.txt")
PTX = "ptx/**/*.py"  # what each test with the marker depends on
ALL = "all"
_ASKED = pytest.StashKey[set[str]]()  # of a test: what it has to prove


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("verdicts")
    group.addoption(
        "--afresh",
        choices=[*map(str, range(20)), ALL],
        help="the twentieth of the kept verdicts that is proven all the same; by default it is the "
        "time's, and the summary names it",
    )
    group.addoption(
        "--keep-verdicts",
        action="store_true",
        help=f"write what has passed to {STORE.as_posix()}; after the whole suite, only that",
    )


def twentieth_of(key: str) -> str:
    """The twentieth of all keys that one of them is in, "0" to "19"."""
    return str(int(key, 16) % 20)


def current_twentieth() -> str:
    """The twentieth whose turn it is: the next one every 3,200 seconds.

    A day has 27 times as many, so that runs at the same hour of each day, or week, have their turns
    as well.
    """
    return str(int(time.time()) // 3200 % 20)


class Verdicts:
    """A plugin of pytest: which verdicts are kept, and what becomes of them in this run.

    Attributes:
      known: keys of what has passed before.
      afresh: the twentieth of them that is proven all the same, or "all".
      reused, proven, failed: the keys that tests of this run have asked for: those that are kept,
        those of proofs that have passed, and those of proofs that have not.
    """

    def __init__(self, config: pytest.Config, root: Path = ROOT):
        self._root, self._store = root, root / STORE
        known = self._store.read_text().split() if self._store.exists() else []
        self.known = frozenset(known)
        given = getattr(config, "workerinput", {}).get("afresh", config.option.afresh)
        self.afresh: str = given or current_twentieth()
        self.reused: set[str] = set()
        self.proven: set[str] = set()
        self.failed: set[str] = set()

    # ---- in the process of a test

    @pytest.fixture
    def kept(self, request: pytest.FixtureRequest) -> Callable[..., bool]:
        """A function that says whether the test has passed already, on the contents it is given.

        Where it has, the test returns. Where it has not, or this verdict is to be proven afresh,
        the test goes on, and what it was asked about is kept if it passes.
        """
        item = request.node
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        return functools.partial(self._is_kept, item, parameters)

    def _is_kept(self, item: pytest.Item, *contents: Any) -> bool:
        key = digest(item.nodeid, sources_of(item.path, self._root), versions(), contents)
        if key in self.known and self.afresh not in (ALL, twentieth_of(key)):
            self.reused.add(key)
            return True
        item.stash.setdefault(_ASKED, set()).add(key)
        return False

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Does not run a test that has the marker `kept`, and has passed already."""
        marker = pyfuncitem.get_closest_marker("kept")
        if marker and self._is_kept(pyfuncitem, library(PTX, *marker.args), assembler()):
            return True
        return None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Reads the sources now: what is edited while tests run is not what they ran."""
        paths = {item.path for item in items if "kept" in getattr(item, "fixturenames", ())}
        for path in paths:
            sources_of(path, self._root)
        if paths:
            emulator_sources()
        for item in items:
            if marker := item.get_closest_marker("kept"):
                library(PTX, *marker.args)

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "call":
            keys = item.stash.get(_ASKED, set())
            (self.failed if call.excinfo else self.proven).update(keys)

    # ---- in the process that collects what others report

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["afresh"] = self.afresh

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        kept, proven, failed = getattr(node, "workeroutput", {}).get("verdicts", ((), (), ()))
        self._add(kept, proven, failed)

    def _add(self, kept: Iterable[str], proven: Iterable[str], failed: Iterable[str]) -> None:
        self.reused.update(kept)
        self.proven.update(proven)
        self.failed.update(failed)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["verdicts"] = [sorted(k) for k in (self.reused, self.proven, self.failed)]
        elif session.config.option.keep_verdicts and not session.config.option.collectonly:
            whole = exitstatus == pytest.ExitCode.OK and is_whole_suite(session.config)
            passed = self.reused | self.proven | (frozenset() if whole else self.known)
            keys = sorted(passed - self.failed)
            self._store.write_text("".join(f"{key}\n" for key in keys))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        which = "all" if self.afresh == ALL else f"twentieth {self.afresh} of the known ones"
        again = len(self.proven & self.known)
        terminalreporter.line(
            f"verdicts: {len(self.reused)} kept, {len(self.proven)} proven, {again} of them afresh "
            f"({which}: --afresh {self.afresh})"
        )


def is_whole_suite(config: pytest.Config) -> bool:
    """Whether a run has no paths, and no option that leaves out tests."""
    option = config.option
    names = ("keyword", "markexpr", "sample", "deselect", "ignore", "ignore_glob", "lf", "stepwise")
    chosen = [name for name in names if getattr(option, name, None)]
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
