"""The checks before a release; and what always holds: files that name the version agree."""

import re
import runpy

import pytest
import yaml
from support.paths import ROOT

notes = runpy.run_path(str(ROOT / ".ci" / "release.py"))["notes"]

FILES = {
    "oxijax/_version.py": '__version__ = "1.2.0"\n',
    "CHANGELOG.md": (
        "# Changelog\n\n## Unreleased\n\n"
        "## 1.2.0 (2030-01-02)\n\n- New.\n\n"
        "## 1.1.0 (2029-01-01)\n\n- Old.\n"
    ),
    "CITATION.cff": "version: 1.2.0\ndate-released: 2030-01-02\n",
}


def write(folder, **changes):
    for name, text in FILES.items():
        old, new = changes.get(name.rpartition("/")[2].partition(".")[0], ("", ""))
        assert old in text
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace(old, new) if old else text)


def test_notes_are_the_section_of_the_version(tmp_path):
    write(tmp_path)
    assert notes("v1.2.0", tmp_path) == "- New."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"_version": ("1.2.0", "1.3.0")}, "the tag must be v1.3.0", id="version"),
        pytest.param({"CHANGELOG": (" (2030-01-02)", "")}, "must have a section", id="date"),
        pytest.param({"CHANGELOG": ("- New.", "")}, "must have a section", id="empty"),
        pytest.param({"CHANGELOG": ("1.2.0", "1x2x0")}, "must have a section", id="section"),
        pytest.param({"CITATION": ("1.2.0", "1.2.0rc1")}, "have version: 1.2.0", id="citation"),
        pytest.param(
            {"CITATION": ("2030-01-02", "2030-01-03")}, "date-released: 2030-01-02", id="cited-date"
        ),
    ],
)
def test_what_does_not_agree_is_no_release(tmp_path, changes, said):
    write(tmp_path, **changes)
    with pytest.raises(SystemExit, match=said):
        notes("v1.2.0", tmp_path)


def test_citation_has_the_version_and_the_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = re.search('"(.+)"', (ROOT / "oxijax" / "_version.py").read_text())
    assert version
    assert citation["version"] == version[1]
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()
