"""Checks that a tag, such as v0.2.0, belongs to this checkout, and prints the text of its release.

That text is the section of the version in CHANGELOG.md, which has its date; CITATION.cff must have
the same version and date.
"""

import pathlib
import re
import runpy
import sys

ROOT = pathlib.Path(__file__).parents[1]


def notes(tag: str, root: pathlib.Path = ROOT) -> str:
    """The section of the changelog that belongs to a tag.

    Raises:
      SystemExit: the tag, the version, the changelog and the citation do not agree; says which.
    """
    version = runpy.run_path(str(root / "oxijax" / "_version.py"))["__version__"]
    if tag != f"v{version}":
        raise SystemExit(f"the tag must be v{version}, of oxijax/_version.py, got {tag}")
    heading = rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)"
    section = re.search(heading, (root / "CHANGELOG.md").read_text(), re.M | re.S)
    if section is None or not section[2].strip():
        raise SystemExit(f'CHANGELOG.md must have a section "## {version} (YYYY-MM-DD)" with text')
    citation = (root / "CITATION.cff").read_text()
    for field, value in (("version", version), ("date-released", section[1])):
        if not re.search(rf'^{field}: "?{re.escape(value)}"?$', citation, re.M):
            raise SystemExit(f"CITATION.cff must have {field}: {value}")
    return section[2].strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: release.py TAG")
    print(notes(sys.argv[1]))
