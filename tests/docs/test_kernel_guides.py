"""The guides to kernels: their Python runs as written, and what they show is what it prints."""

import contextlib
import io
import re
import sys

import pytest
from support.paths import DOCS, ROOT

from oxijax.__main__ import main
from ptx import registry


def blocks(page):
    """(language, text) of a page's Python, and of what it shows beside it."""
    return re.findall(r"^```(python|text)\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


@pytest.mark.parametrize(
    ("page", "results"), [("builder.md", 0), ("debugging.md", 17), ("write_a_kernel.md", 2)]
)
def test_the_page_runs_and_prints_what_it_shows(page, results, monkeypatch):
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    namespace, printed, shown = {}, "", 0
    for language, text in blocks(page):
        if language == "text":
            assert text.rstrip() == printed.rstrip()
            shown += 1
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(text, namespace)
        printed = output.getvalue()
    assert shown == results


def test_pages_use_public_modules_alone():
    private = re.compile(r"(?:from|import) +((?:oxijax|ptx)[\w.]*\._\w+)")
    pages = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    code = {p.name: re.findall(r"^```python\n(.*?)^```", p.read_text(), re.M | re.S) for p in pages}
    assert len(code["architecture.md"]) >= 5
    found = {name: private.findall("".join(texts)) for name, texts in code.items()}
    assert {name: imports for name, imports in found.items() if imports} == {}


@pytest.fixture
def rms_norm(monkeypatch):
    """The kernels that examples/rms_norm.py registers, when a command imports it."""
    monkeypatch.setattr(registry, "_KERNELS", {})
    monkeypatch.delitem(sys.modules, "rms_norm", raising=False)
    yield
    sys.modules.pop("rms_norm", None)


def test_the_example_is_the_pages_module():
    source = (ROOT / "examples" / "rms_norm.py").read_text()
    _, _, module = source.partition('"""\n\n')
    parts = [text.strip() for _, text in blocks("write_a_kernel.md") if text in module]
    assert "\n\n\n".join(parts) == module.strip()


@pytest.mark.usefixtures("rms_norm")
def test_the_commands_find_the_example(capsys):
    named = ["--registry", "rms_norm"]
    targets = ["--target", "sm_75", "--target", "sm_90"]
    assert main(["check", *named, "--kernel", "rms_norm", *targets]) == 0
    assert "6 assembled, 0 failed" in capsys.readouterr().out
    assert main(["ptx", "rms_norm", *named, "--target", "sm_90"]) == 0
    assert ".entry rms_norm(" in capsys.readouterr().out
