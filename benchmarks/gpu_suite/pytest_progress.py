"""A pytest plugin: files in turns, and each test's outcome as a line of JSON, as it is known.

With pytest-xdist it writes in the controlling process alone.
"""

import itertools
import json
import os
import pathlib

__all__ = ["FILE_VARIABLE"]

FILE_VARIABLE = "OXIJAX_PYTEST_PROGRESS"


def _write(line: dict) -> None:
    with pathlib.Path(os.environ[FILE_VARIABLE]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: list) -> None:
    """Takes the tests of all files in turns: so each has some, whatever time there is."""
    by_file: dict[str, list] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    turns = itertools.zip_longest(*by_file.values())
    items[:] = [item for turn in turns for item in turn if item is not None]


def pytest_collection_finish(session) -> None:
    if session.items and not hasattr(session.config, "workerinput"):
        _write({"collected": [item.nodeid for item in session.items]})


def pytest_collectreport(report) -> None:
    if report.failed:
        _write({"id": report.nodeid, "outcome": "failed", "why": report.longreprtext})


def pytest_runtest_logreport(report) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when != "call" and report.outcome == "passed":
        return
    line = {"id": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
    if report.outcome != "passed":
        line["why"] = f"in {report.when}: {report.longreprtext[-4000:]}"
    line.update(dict(report.user_properties))
    _write(line)


class _Xdist:
    """Hooks of pytest-xdist, which are unknown to pytest without it."""

    def __init__(self) -> None:
        self.written = False

    def pytest_xdist_node_collection_finished(self, node, ids) -> None:
        if not self.written:
            self.written = True
            _write({"collected": list(ids)})


def pytest_configure(config) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Xdist(), "oxijax_progress_xdist")
