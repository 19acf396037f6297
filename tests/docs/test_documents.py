"""The Python of README runs as written, the examples run, and what documents point to is there."""

import re
import runpy

import pytest
from support.paths import ROOT

DOCUMENTS = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
PATHS = re.compile(r"(?<![\w/.])(?:oxijax|ptx|tests|docs|benchmarks|examples)(?:/[-\w.*]+)+")
LINKS = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
PLACEHOLDERS = re.compile(r"FAMILY|NAME|KERNEL")


@pytest.mark.quick
def test_readme_python():
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) >= 2
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["y"].shape == (2, 32, 32, 8)


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_commands_are_marked(command):
    """`.ci/run` takes README's commands from these markers."""
    marker = rf"<!-- command: {command} -->\n```sh\npython3 -m venv \.venv\n"
    assert re.search(marker, (ROOT / "README.md").read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_paths_exist(document):
    text = document.read_text()
    paths = {path.rstrip(".") for path in PATHS.findall(text) if not PLACEHOLDERS.search(path)}
    assert [path for path in sorted(paths) if not any(ROOT.glob(path))] == []
    links = LINKS.findall(text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_make_targets_exist():
    contributing, makefile = ((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "Makefile"))
    _, _, after = contributing.partition("`make` has the wider ones")
    named = re.findall(r"`([a-z-]+)(?: [^`]*)?`", after.partition("**")[0])
    assert len(named) >= 8
    assert set(named) == set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", contributing, re.M)) <= set(named)


def test_example_learns():
    losses = runpy.run_path(str(ROOT / "examples" / "flax_nnx.py"))["main"](steps=40)
    assert losses[-1] < 0.5 * losses[0]
