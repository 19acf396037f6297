"""Tiers of tests: the default one, and `slow`, `proof`, `clients` and `gpu`, which `-m` asks for.

A test, or a case of one, that belongs to a tier has its marker. Where `-m` does not name the tier,
neither is collected. A file whose mark is a tier's (`pytestmark = pytest.mark.proof`) is not even
imported.

The marker `spread(count, rest="slow")` is for tests with many cases: so many of them, spread over
all, are of the default tier, and the rest belongs to another one.
"""

import collections
import os
import re
from pathlib import Path
from typing import Any

import pytest

__all__ = ["unasked"]

TIERS: tuple[str, ...] = ("slow", "proof", "clients", "gpu")


def unasked(config: pytest.Config) -> set[str]:
    """The tiers that a run has not asked for."""
    expression = config.option.markexpr
    asked = {tier for tier in TIERS if re.search(rf"(?<!not )\b{tier}\b", expression)}
    if os.environ.get("OXIJAX_REQUIRE_GPU") == "1":
        asked.add("gpu")
    return set(TIERS) - asked


# ---- hooks of pytest


def pytest_configure(config: pytest.Config) -> None:
    """Says so where a file is asked for by name and its tier is not."""
    for argument in config.args:
        path = Path(argument.partition("::")[0])
        if (tier := _tier_of(path)) in unasked(config):
            raise pytest.UsageError(f"{path} is of the tier {tier}: add -m {tier}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if _tier_of(collection_path) in unasked(config) else None


def _tier_of(path: Path) -> str | None:
    """The tier of a file of tests as a whole."""
    if path.suffix != ".py" or not path.name.startswith("test_") or not path.is_file():
        return None
    found = re.search(r"^pytestmark = pytest\.mark\.(\w+)$", path.read_text(), re.M)
    return found[1] if found else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> list[Any] | None:
    """Leaves out what belongs to a tier that was not asked for, before cases are generated."""
    if not name.lower().startswith("test") or not hasattr(obj, "pytestmark"):
        return None
    left_out = unasked(collector.config)
    marks = list(obj.pytestmark)
    if left_out.intersection(mark.name for mark in marks):
        return []
    for index, mark in enumerate(marks):
        if mark.name == "parametrize":
            names, cases, *rest = mark.args
            options, cases = dict(mark.kwargs), list(cases)
            kept = [i for i, case in enumerate(cases) if not left_out & _names_of_marks(case)]
            if not kept and cases:
                return []
            if isinstance(options.get("ids"), list | tuple):
                options["ids"] = [options["ids"][i] for i in kept]
            chosen = [cases[i] for i in kept]
            marks[index] = pytest.mark.parametrize(names, chosen, *rest, **options).mark
    obj.pytestmark = marks
    return None


def _names_of_marks(case: Any) -> set[str]:
    return {getattr(mark, "name", "") for mark in getattr(case, "marks", ())}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives the cases that `spread` leaves out the marker of their tier."""
    spread: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("spread"):
            spread[item.nodeid.partition("[")[0]].append(item)
    for cases in spread.values():
        marker = cases[0].get_closest_marker("spread")
        assert marker is not None
        for case in _without_spread(cases, *marker.args):
            case.add_marker(marker.kwargs.get("rest", "slow"))
    left_out = unasked(config)
    of_others = [i for i in items if left_out.intersection(mark.name for mark in i.iter_markers())]
    config.hook.pytest_deselected(items=of_others)
    left = set(of_others)
    items[:] = [item for item in items if item not in left]


def _without_spread(cases: list[pytest.Item], count: int) -> list[pytest.Item]:
    """All but `count` cases, which lie far apart, and not in step with any parametrisation."""
    golden_ratio = (5**0.5 - 1) / 2
    order = sorted(range(len(cases)), key=lambda index: index * golden_ratio % 1)
    return [cases[index] for index in sorted(order[count:])]
