"""Tiers of tests: what runs is what the command asks for, whatever the time and the machine."""

import itertools
import os
import re
import subprocess
import sys
import textwrap

import pytest
from support.paths import ROOT

FILES = {
    "test_some.py": """
    import pytest

    def test_default(): pass

    @pytest.mark.slow
    def test_slow(): raise AssertionError

    CASES = ["a", pytest.param("b", marks=pytest.mark.proof)]

    @pytest.mark.parametrize("case", CASES, ids=["A", "B"])
    def test_cases(case): assert case == "a"

    @pytest.mark.spread(3, rest="proof")
    @pytest.mark.parametrize("number", range(12))
    def test_spread(number): pass

    @pytest.mark.slow
    class TestSlow:
        def test_method(self): pass

    @pytest.mark.gpu
    def test_gpu(): pass

    @pytest.mark.clients
    def test_clients(): pass
    """,
    "test_proofs.py": """
    import pytest

    pytestmark = pytest.mark.proof

    def test_proof(): pass

    @pytest.mark.slow
    def test_both(): pass
    """,
}


@pytest.fixture
def run(tmp_path):
    """Runs pytest on `FILES` with the plugin of tiers: what it prints, and its status."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    markers = "".join(f"  {name}\n" for name in ("slow", "proof", "clients", "gpu", "spread"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}")

    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}

    def run(*arguments: str) -> tuple[str, int]:
        options = ("-p", "support.tiers", "-p", "no:cacheprovider", "--strict-markers", "-v")
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": path, "OXIJAX_REQUIRE_GPU": "0"},
        )
        return finished.stdout + finished.stderr, finished.returncode

    return run


def names_in(said: str) -> list[str]:
    return sorted(re.findall(r"::((?:test_|Test)\S+) (?:PASSED|FAILED)", said))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("", {"test_default", "test_cases[A]"}),
        ("slow", {"test_slow", "TestSlow::test_method"}),
        ("proof", {"test_cases[B]", "test_proof"}),
        ("slow and proof", {"test_both"}),
        ("gpu", {"test_gpu"}),
        ("clients", {"test_clients"}),
        (
            "(proof or not proof) and not slow",
            {"test_default", "test_cases[A]", "test_cases[B]", "test_proof"},
        ),
    ],
)
def test_what_an_expression_asks_for(run, expression, expected):
    said, _ = run(*(["-m", expression] if expression else []))
    spread = {name for name in names_in(said) if name.startswith("test_spread")}
    assert set(names_in(said)) - spread == expected
    whole = "not proof" in expression
    assert len(spread) == (12 if whole else {"": 3, "proof": 9}.get(expression, 0))


def test_cases_are_spread_and_always_the_same(run):
    (default, _), (again, _), (rest, _) = run(), run(), run("-m", "proof")
    first, others = ({n for n in names_in(said) if "spread" in n} for said in (default, rest))
    assert first == {n for n in names_in(again) if "spread" in n}
    assert not first & others
    numbers = sorted(int(re.findall(r"\d+", name)[0]) for name in first)
    assert min(b - a for a, b in itertools.pairwise(numbers)) > 1


def test_a_file_of_another_tier_is_named(run):
    said, status = run("test_proofs.py")
    assert "test_proofs.py is of the tier proof: add -m proof" in said
    assert status == pytest.ExitCode.USAGE_ERROR


def test_another_tier_of_a_file_is_not_passed_over(run):
    assert run("test_some.py::test_slow")[1] not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    )
