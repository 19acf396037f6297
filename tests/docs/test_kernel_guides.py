"""The guides to kernels: they use public names, and the example is what a page says."""

import re
import sys

import pytest
from support.documents import DOCUMENTS, blocks, name
from support.paths import DOCS, ROOT

from oxijax.__main__ import main
from ptx import registry


def test_pages_use_public_modules_alone():
    private = re.compile(r"(?:from|import) +((?:oxijax|ptx)[\w.]*\._\w+)")
    code = {
        name(page): [b.text for b in blocks(page) if b.language == "python"] for page in DOCUMENTS
    }
    assert code["docs/architecture.md"]
    found = {page: private.findall("".join(texts)) for page, texts in code.items()}
    assert {page: imports for page, imports in found.items() if imports} == {}


@pytest.fixture
def rms_norm(monkeypatch):
    """The kernels that examples/rms_norm.py registers, when a command imports it."""
    monkeypatch.setattr(registry, "KERNELS", {})
    monkeypatch.delitem(sys.modules, "rms_norm", raising=False)
    yield
    sys.modules.pop("rms_norm", None)


def test_the_example_is_the_pages_module():
    source = (ROOT / "examples" / "rms_norm.py").read_text()
    _, _, module = source.partition('"""\n\n')
    page = blocks(DOCS / "write_a_kernel.md")
    parts = [block.text.strip() for block in page if block.text in module]
    assert "\n\n\n".join(parts) == module.strip()


@pytest.mark.usefixtures("rms_norm")
def test_the_commands_find_the_example(capsys):
    named = ["--registry", "rms_norm"]
    targets = ["--target", "sm_75", "--target", "sm_90"]
    assert main(["check", *named, "--kernel", "rms_norm", *targets]) == 0
    assert "6 assembled, 0 failed" in capsys.readouterr().out
    assert main(["ptx", "rms_norm", *named, "--target", "sm_90"]) == 0
    assert ".entry rms_norm(" in capsys.readouterr().out
