"""Every block of code in the documents runs, or is what it says that it is.

The Python of a page runs from its first block to its last one, in one namespace.
"""

import collections
import contextlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from support.documents import DOCUMENTS, Block, blocks, name
from support.paths import DOCS, ROOT

import oxijax
from oxijax.__main__ import main
from oxijax._core import launch as _launch
from oxijax._core.calls import tuned_plans
from oxijax._core.tuning import tune
from oxijax.testing import emulate_gpu
from ptx import registry
from ptx.emulator import LoadedModule
from ptx.testing.mutate import MutationReport

BLOCKS = {name(document): blocks(document) for document in DOCUMENTS}
LANGUAGES = {"c", "json", "ptx", "python", "sh", "text"}
MARKS = {"", "command", "emulated", "excerpt", "not run", "printed"}

# The blocks that no test runs, with the reason that each gives. A new one has to be added here.
NOT_RUN = {
    ("docs/porting.md", "needs PyTorch"): 1,
}

# The pages that the shorter pass has too, on every supported Python and JAX.
QUICK = {"README.md", "docs/architecture.md", "docs/scaling.md", "docs/start.md"}


class Page:
    """The blocks of a page, run in order: what they define, and what each of them prints."""

    def __init__(self, blocks: list[Block]):
        self.blocks = blocks
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed: list[str] = []  # of each block that runs
        for block in blocks:
            if block.mark == "not run":
                continue
            if block.language == "python" and block.mark != "excerpt":
                self._run(block)
            elif block.mark == "printed":
                assert block.text.strip() == self.printed[-1].strip(), block.where
            elif block.language == "sh" and self._followed_by_output(block):
                self._call(block)

    def _followed_by_output(self, block: Block) -> bool:
        position = self.blocks.index(block) + 1
        return position < len(self.blocks) and self.blocks[position].mark == "printed"

    def _run(self, block: Block) -> None:
        # Errors name the line of the document.
        code = compile("\n" * (block.line - 1) + block.text, str(block.document), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.ExitStack() as stack:
            if block.mark == "emulated":
                stack.enter_context(emulate_gpu(block.value))
            exec(code, self.namespace)
        self.printed.append(printed.getvalue())

    def _call(self, block: Block) -> None:
        arguments = shlex.split(block.text)
        assert arguments[:3] == ["python", "-m", "oxijax"], f"{block.where}: whose output is shown?"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(arguments[3:]) == 0
        self.printed.append(printed.getvalue())


# What surrounds the Python of some pages.


@contextlib.contextmanager
def its_own_registry(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(registry, "KERNELS", {})
    yield


@contextlib.contextmanager
def a_copied_registry(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(registry, "KERNELS", dict(registry.KERNELS))
    patch.delitem(sys.modules, "rms_norm", raising=False)  # which registers where it is imported
    yield


@contextlib.contextmanager
def made_up_times(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """An emulated GPU on which every plan takes as long."""
    patch.setenv("OXIJAX_TUNING_DIR", os.getcwd())
    patch.setattr(tune, "_check_gpu", lambda: None)
    patch.setattr(tune, "time_launches", lambda _, launches: [7.5] * len(launches))
    try:
        with emulate_gpu("sm_80"):
            yield
    finally:
        oxijax.config.tuning.clear()
        tuned_plans.tuned_plans._read.clear()


AROUND = {
    "docs/architecture.md": a_copied_registry,
    "docs/builder.md": a_copied_registry,
    "docs/debugging.md": a_copied_registry,
    "docs/ptx.md": its_own_registry,
    "docs/tuning.md": made_up_times,
    "docs/write_a_kernel.md": a_copied_registry,
}

# What some pages say beside their Python.


def check_architecture(page: Page) -> None:
    """The call is as shown."""
    lowered = next(text for text in page.printed if "custom_call" in text)
    (spec,) = (block.text for block in page.blocks if block.language == "json")
    assert json.loads(spec)["kernel"] == "rms_norm"
    quoted = spec.strip().replace('"', r"\22")
    assert f'spec = "{quoted}"' in lowered
    numbers = re.findall(r"`((?:key|version) = \d+ : i64)`", (DOCS / "architecture.md").read_text())
    assert len(numbers) == 2
    assert all(number in lowered for number in numbers)
    assert lowered.count(f"@{_launch.TARGET_NAME}(") == 1


def check_ptx(page: Page) -> None:
    """The page registers its kernel last; the commands find it."""
    report = page.namespace["report"]
    assert isinstance(report, MutationReport)
    assert str(report) in "".join(page.printed)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["check", "--registry", "ptx.registry", "--kernel", "reverse"]) == 0
        assert main(["ptx", "reverse", "--registry", "ptx.registry", "--target", "sm_90"]) == 0
    assert "reverse" in printed.getvalue()
    assert ".target sm_90" in printed.getvalue()


def check_tuning(page: Page) -> None:
    assert page.printed[0].count("kept") == 2
    assert len(oxijax.config.tuning) == 2
    assert oxijax.config.tuning.dumps() == page.namespace["text"]


CHECKS: dict[str, Callable[[Page], None]] = {
    "docs/architecture.md": check_architecture,
    "docs/ptx.md": check_ptx,
    "docs/tuning.md": check_tuning,
}

# What jax2onnx has in the place of Flax's own layers reads variables as older versions of Flax do.
WARNINGS = {"docs/onnx.md": "ignore:'.value' access is now deprecated:DeprecationWarning"}


def with_python() -> list[Any]:
    pages = []
    for document, found in BLOCKS.items():
        if any(block.language == "python" for block in found):
            marks = [pytest.mark.quick] if document in QUICK else []
            if document in WARNINGS:
                marks.append(pytest.mark.filterwarnings(WARNINGS[document]))
            pages.append(pytest.param(document, marks=marks))
    return pages


@pytest.fixture
def settings_restored():
    """What a page sets for the whole process is as it was, after it."""
    deterministic, x64 = oxijax.config.deterministic, jax.config.read("jax_enable_x64")
    yield
    oxijax.config.deterministic = deterministic
    jax.config.update("jax_enable_x64", x64)


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("document", with_python())
def test_python(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    around = AROUND.get(document, lambda patch: contextlib.nullcontext())
    with around(monkeypatch):
        page = Page(BLOCKS[document])
        CHECKS.get(document, lambda page: None)(page)


@pytest.mark.quick
def test_what_is_not_run():
    found = collections.Counter(
        (name(block.document), block.value)
        for page in BLOCKS.values()
        for block in page
        if block.mark == "not run"
    )
    assert found == NOT_RUN


@pytest.mark.parametrize("document", BLOCKS)
def test_what_is_fenced(document):
    """Each block has a language and a mark that the tests know, and is written in it."""
    for block in BLOCKS[document]:
        check_block(block)


def check_block(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.where}: {block.language!r}, not in {LANGUAGES}"
    assert block.mark in MARKS, f"{block.where}: {block.mark!r}, not in {MARKS}"
    if block.mark == "excerpt":
        assert block.text in (ROOT / block.value).read_text(), block.where
    elif block.language == "python":
        compile(block.text, block.where, "exec")
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "ptx" and ".entry" in block.text:
        module = LoadedModule(block.text)
        assert all(module.facts(kernel) for kernel in module.kernels), block.where
    elif block.language == "c":
        driver = sorted((ROOT / "tests" / "virtual_gpu" / "driver").rglob("*.[ch]"))
        sources = "".join(path.read_text() for path in driver)
        called = set(re.findall(r"\b(\w+)\(", block.text)) - {"for", "if", "switch", "while"}
        missing = [word for word in sorted(called) if not re.search(rf"\b{word}\b", sources)]
        assert missing == [], block.where
