"""The targets of documents exist: files, pages, sections, targets of make; the examples run."""

import importlib
import re
import runpy
import urllib.parse
import xml.etree.ElementTree

import pytest
from support.documents import DOCUMENTS, name
from support.paths import DOCS, ROOT

from oxijax._core import launch as _launch

PATHS = re.compile(r"(?<![\w/.])(?:oxijax|ptx|tests|docs|benchmarks|examples)(?:/[-\w.*]+)+")
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINKS = re.compile(r"\]\(([^)]+)\)")
HEADINGS = re.compile(r"^#+ (.*)", re.MULTILINE)
GENERATED = re.compile(r"^::: ([\w.]+)", re.MULTILINE)  # from docstrings
PLACEHOLDERS = re.compile(r"FAMILY|NAME|KERNEL")


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_commands_are_marked(command):
    """`.ci/run` takes README's commands from these markers."""
    marker = rf"<!-- command: {command} -->\n```sh\npython3 -m venv \.venv\n"
    assert re.search(marker, (ROOT / "README.md").read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_exist(document):
    text = document.read_text()
    paths = {path.rstrip(".") for path in PATHS.findall(text) if not PLACEHOLDERS.search(path)}
    assert [path for path in sorted(paths) if not any(ROOT.glob(path))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links(document):
    """Links within the checkout lead to files and sections; others are whole addresses."""
    broken = []
    for link in LINKS.findall(FENCED.sub("", document.read_text())):
        address = urllib.parse.urlsplit(link)
        if address.scheme:
            right = address.scheme == "https" and "." in address.netloc and " " not in link
        else:
            target = document.parent / address.path if address.path else document
            right = target.exists() and (
                not address.fragment or address.fragment in sections(target.read_text())
            )
        if not right:
            broken.append(link)
    assert broken == []


def sections(page: str) -> set[str]:
    """The names of a page's sections in links: those that are the same on GitHub and the site."""
    found = set(GENERATED.findall(page))
    for heading in HEADINGS.findall(FENCED.sub("", page)):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\]\([^)]*\)", "", heading)).strip().lower()
        if re.sub(r"[-\s]+", "-", words) == re.sub(r"\s", "-", words):
            found.add(re.sub(r"\s", "-", words))
    return found


def test_the_reference_has_every_public_name():
    text = "".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
    layers, others = (
        ("nnx", "linen", "equinox"),
        ("convert", "extend", "onnx", "reference", "testing"),
    )
    suffixes = ("", *(f".{module}" for module in (*layers, *others)))
    for module in (*(f"oxijax{suffix}" for suffix in suffixes), "ptx"):
        names = importlib.import_module(module).__all__
        missing = [n for n in names if not re.search(rf"\b{module}\.{n}\b", text)]
        assert [n for n in missing if not n.startswith("__")] == [], module


def test_the_list_of_examples_has_each_file():
    page = (DOCS / "examples.md").read_text()
    files = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert set(re.findall(r"`examples/(\w+\.py)`", page)) == files


def test_make_targets_exist():
    contributing, makefile = ((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "Makefile"))
    _, _, after = contributing.partition("`make` has the wider ones")
    named = re.findall(r"`([a-z-]+)(?: [^`]*)?`", after.partition("**")[0])
    assert len(named) >= 8
    assert set(named) == set(re.findall(r"^([a-z-]+):", makefile, re.M))


def test_the_drawing_of_a_call_has_the_steps_of_the_list():
    page = (DOCS / "architecture.md").read_text()
    (picture,) = re.findall(r"!\[.*\]\((.*\.svg)\)", page)
    root = xml.etree.ElementTree.parse(DOCS / picture).getroot()
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    steps = re.findall(r"^(\d)\. ", page, re.M)
    assert steps == [str(number) for number in range(1, 10)]
    assert sorted(text for text in texts if text in steps) == steps
    assert f"Custom call {_launch.TARGET_NAME}" in texts


@pytest.mark.spread(1)
def test_example_learns():
    losses = runpy.run_path(str(ROOT / "examples" / "flax_nnx.py"))["main"](steps=40)
    assert losses[-1] < 0.5 * losses[0]
