"""The table of supported versions: of the record of what was tried, which has all of them."""

import json
import pathlib
import re
import runpy

import pytest
from support.paths import ROOT
from test_workflows import PYTHONS

VERSIONS = runpy.run_path(str(ROOT / ".ci" / "versions.py"))
ROWS = json.loads((ROOT / "docs" / "evidence" / "versions.json").read_text())


def test_the_page_has_the_table_of_the_record():
    page = (ROOT / "docs" / "versions.md").read_text()
    assert VERSIONS["with_table"](page, ROWS) == page
    assert sorted(ROWS, key=VERSIONS["in_order"]) == ROWS


def test_a_page_without_marks_is_refused():
    with pytest.raises(SystemExit, match="one pair of marks"):
        VERSIONS["with_table"]("# Versions\n", ROWS)


def test_every_supported_version_was_tried_with_one_wheel():
    assert set(VERSIONS["SUPPORTED"]) == PYTHONS
    assert len({row["wheel"] for row in ROWS}) == 1
    for python, versions in VERSIONS["SUPPORTED"].items():
        tried = [row for row in ROWS if VERSIONS["python_of"](row) == python]
        assert len(tried) == len(versions)
        for row, version in zip(tried, versions, strict=True):
            assert version in (row["jax"], VERSIONS["NEWEST"])
            assert row["jaxlib"].startswith(row["jax"])
        assert tried[-1]["passed"] > 800
    oldest = re.search(r'"jax>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    assert oldest[1] == ROWS[0]["jax"]
    assert len({row["jaxlib"] for row in ROWS}) >= 5


def test_ci_has_the_same_versions():
    script = (ROOT / ".ci" / "run").read_text()
    tried = re.findall(r"(3\.\d+):jax(?:==([\d.]+))?", script)
    assert tried
    for python, version in tried:
        assert VERSIONS["SUPPORTED"][python][-1] == (version or VERSIONS["NEWEST"])


def test_the_record_is_of_this_version():
    version = runpy.run_path(str(ROOT / "oxijax" / "_version.py"))["__version__"]
    assert {row["oxijax"] for row in ROWS} == {version}
    assert all(pathlib.Path(row["wheel"]).match(f"oxijax-{version}-*.whl") for row in ROWS)
