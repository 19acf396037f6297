"""The commands in the documents are ones that there are, with arguments that they take.

A command for Python is run up to the point where its own parser has read its arguments. Of others
it is checked what they name: extras, targets of make, paths, tests. A command of a kind that is
not known here fails.
"""

import argparse
import re
import runpy
import shlex
import sys
import tomllib
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
from support.documents import DOCUMENTS, blocks, commands, name
from support.paths import ROOT

from oxijax.__main__ import main
from oxijax._cli.kernel_registry import registered_kernels
from ptx import registry

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, PYTEST = SETTINGS["project"], SETTINGS["tool"]["pytest"]["ini_options"]
EXTRAS = PROJECT["optional-dependencies"]
RELEASING = ["auditwheel", "build"]
REQUIREMENTS = [
    *RELEASING,
    *PROJECT["dependencies"],
    *(line for lines in EXTRAS.values() for line in lines),
]
PACKAGES = {re.match(r"[\w-]+", line)[0].replace("_", "-") for line in REQUIREMENTS}  # pyright: ignore
OPERATORS = {"and", "not", "or"}
TORCH = ("torch", "torch.nn", "torch.nn.functional", "torchvision", "torchvision.ops")
OWN_PROGRAMS = {"program.py", "train.py"}  # what a reader has written
PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$")  # of a sentence: NAME, KERNEL
SIZE = re.compile(r"(?<= )[A-Z](?= |$)")  # of a sentence: M, N, K


class ReadError(Exception):
    """Raised once a program has read its arguments, which are in it."""

    def __init__(self, arguments: argparse.Namespace):
        super().__init__()
        self.arguments = arguments


@pytest.fixture
def parsed(monkeypatch) -> Callable[..., argparse.Namespace]:
    """Runs a program until it has read its arguments, and returns them."""
    read = argparse.ArgumentParser.parse_args

    def stop(self, args=None, namespace=None):
        raise ReadError(read(self, args, namespace))

    def run(runner: Callable[..., Any], program: str, arguments: list[str]) -> argparse.Namespace:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        with monkeypatch.context() as context:
            if runner is runpy.run_path and "import torch\n" in (ROOT / program).read_text():
                for module in TORCH:
                    context.setitem(sys.modules, module, unittest.mock.MagicMock())
            try:
                runner(program, run_name="__main__")
            except ReadError as stopped:
                return stopped.arguments
        raise AssertionError(f"{program} reads no arguments")

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(registry, "KERNELS", dict(registry.KERNELS))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(ROOT)
    return run


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands(document, parsed):
    for where, line in commands(document):
        words = shlex.split(SIZE.sub("8", line), comments=True)
        try:
            check(words, parsed, document)
        except (AssertionError, SystemExit) as error:
            raise AssertionError(f"{where}: {line}: {error}") from error


def check(words: list[str], parsed, document) -> None:
    while words and (setting := re.match(r"^([A-Z_0-9]+)=", words[0])):
        check_setting(setting[1])
        words = words[1:]
    if not words:
        return
    program, arguments = re.sub(r"^\.venv[\w-]*/bin/", "", words[0]), words[1:]
    assert program in PROGRAMS, f"no test knows what {program} takes"
    PROGRAMS[program](arguments, parsed, document)


def check_setting(variable: str) -> None:
    if variable.startswith("OXIJAX_"):
        sources = ROOT.glob("oxijax/**/*.py")
        assert any(variable in path.read_text() for path in sources), f"nothing reads {variable}"


def check_python(arguments: list[str], parsed, document) -> None:
    match arguments:
        case ["-m", "oxijax", *rest]:
            read = parsed(lambda program, run_name: main(), "oxijax", rest)
            if rest[0] in ("check", "ptx") and read.kernel:
                check_kernels([read.kernel] if rest[0] == "ptx" else read.kernel, document)
        case ["-m", "pytest", *rest]:
            check_pytest(rest)
        case ["-m", "pip", *rest]:
            check_pip(rest)
        case ["-m", "venv", _] | ["-m", "build"]:
            pass
        case ["-c", code]:
            compile(code, "-c", "exec")
        case ["setup.py", "build_ext", "--inplace"]:
            assert (ROOT / "setup.py").is_file()
        case [script, *_] if script in OWN_PROGRAMS:
            pass
        case [script, *rest]:
            if (ROOT / script).is_dir():
                script += "/__main__.py"
            if re.search(r"\bargparse\b|\barguments\(", (ROOT / script).read_text()):
                sys.path.insert(0, str((ROOT / script).parent))
                parsed(runpy.run_path, script, rest)
            elif rest:
                assert "sys.argv" in (ROOT / script).read_text(), f"{script} takes no arguments"
        case _:
            raise AssertionError("no test knows this module or program")


def check_kernels(kernels: list[str], document) -> None:
    there = registered_kernels("ptx.kernels")
    page = "".join(block.text for block in blocks(document) if block.language == "python")
    for kernel in kernels:
        known = PLACEHOLDER.match(kernel) or f'"{kernel}"' in page or kernel in there
        assert known, f"no kernel {kernel}"


def check_pytest(arguments: list[str]) -> None:
    expression, words = "", iter(arguments)
    for word in words:
        if word == "-k":
            expression = next(words)
        elif word == "-m":
            markers = {line.partition(":")[0] for line in PYTEST["markers"]}
            assert set(re.findall(r"\w+", next(words))) - OPERATORS <= markers, markers
        elif word == "-n":
            assert next(words, None) is not None, f"{word} needs a value"
        elif word.startswith("-"):
            known = word in ("-x", "-q") or word.startswith("--ignore-glob=")
            assert known, f"no test knows the option {word}"
        elif not re.search(r"FAMILY|NAME", word):
            path, _, test = word.partition("::")
            found = [file for file in ROOT.glob(path) if file.is_file() or any(file.iterdir())]
            assert found, f"no {path}"
            function = f"def {test.partition('[')[0]}("
            assert not test or any(function in file.read_text() for file in found), function
    # Names of parameters come from what tests share.
    sources = [ROOT / "tests", ROOT / "oxijax" / "testing", ROOT / "ptx" / "isa"]
    texts = [path.read_text() for folder in sources for path in folder.rglob("*.py")]
    for word in set(re.findall(r"\w+", expression)) - OPERATORS:
        assert any(word in text for text in texts), f"no test has {word} in its name"


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install", arguments
    words = iter(arguments[1:])
    for word in words:
        if word == "-r":
            assert (ROOT / next(words)).is_file(), word
        elif word in ("-e", "-q", "--upgrade", "--no-cache-dir", "--force-reinstall"):
            continue
        elif extras := re.match(r"^(?:\.|oxijax)\[([\w,]+)\]$", word):
            unknown = set(extras[1].split(",")) - set(EXTRAS)
            assert not unknown, f"no extra {unknown}"
        else:
            package = re.match(r"^[\w-]+", word)
            known = word in (".", "dist/*.whl") or (package and package[0] in PACKAGES)
            assert known, f"what is {word}?"


def check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", makefile, re.M)
    for word in arguments:
        variable, equals, _ = word.partition("=")
        known = re.search(rf"\$\(or \$\({variable}\)|^{variable} \?=", makefile, re.M)
        assert known if equals else word in targets, f"make has no {word}"


def check_virtual_gpu(arguments: list[str], parsed, document) -> None:
    own, _, command = (" ".join(map(shlex.quote, arguments))).partition(" -- ")
    parsed(runpy.run_path, "tests/virtual_gpu/run", [*shlex.split(own), "--", "true"])
    check(shlex.split(command or own.removeprefix("-- ")), parsed, document)


def check_first(*words: str) -> Callable[..., None]:
    def check_words(arguments: list[str], parsed, document) -> None:
        assert not words or arguments[0] in words, f"expected one of {words}"

    return check_words


def check_nothing(arguments: list[str]) -> None:
    assert arguments == [], "it takes no arguments"


# What is checked of the arguments of each program.
PROGRAMS: dict[str, Callable[..., None]] = {
    ".ci/run": lambda arguments, parsed, document: check_nothing(arguments),
    "auditwheel": check_first("show"),
    "cd": check_first("oxijax"),
    "compute-sanitizer": check_first("--tool"),
    "diff": check_first("-r"),
    "export": lambda arguments, parsed, document: check_setting(arguments[0].partition("=")[0]),
    "git": check_first("clone", "push", "tag"),
    "make": lambda arguments, parsed, document: check_make(arguments),
    "mkdocs": check_first(),
    "pip": lambda arguments, parsed, document: check_pip(arguments),
    "pre-commit": check_first("install"),
    "pytest": lambda arguments, parsed, document: check_pytest(arguments),
    "python": check_python,
    "python3": check_python,
    "tests/virtual_gpu/run": check_virtual_gpu,
}
