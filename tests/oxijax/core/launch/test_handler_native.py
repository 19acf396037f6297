"""The launch handler without Python: its C tests, plain and under sanitizers, and its library.

    python -m pytest tests/oxijax/core/launch/test_handler_native.py

compiles `oxijax/_core/launch/handler.c` into the programs in `native/`, against the XLA headers of
the installed jaxlib, and runs each of their cases in a process of its own: plain, with
AddressSanitizer and UndefinedBehaviorSanitizer, and with ThreadSanitizer. It needs gcc 10 or newer
with its sanitizer libraries, and binutils. `-k thread` runs one of the three. To run one case by
hand, under a debugger for example, compile its program with the options in `compile_program`
and give it the name of the case; without a name it lists them.

`native/host.h` stands in for XLA. `handler_test.c` calls the handler from one thread,
`handler_threads_test.c` from many. A case fails when a check fails, when a sanitizer reports
anything, a leak included, and after 30 seconds. The cases called `canary_*` must fail: they show
that a sanitizer which reports nothing is awake.
"""

import ast
import os
import pathlib
import re

import jaxlib
import pytest
from support.paths import ROOT
from support.sanitizers import ADDRESS, THREAD, Build, check_cases, gcc, run, run_case

from oxijax._core.launch._handler import find_handler

HANDLER = ROOT / "oxijax" / "_core" / "launch" / "handler.c"
NATIVE = pathlib.Path(__file__).parent / "native"
PROGRAMS = ("handler_test", "handler_threads_test")
INCLUDES = [f"-I{pathlib.Path(folder) / 'include'}" for folder in jaxlib.__path__]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror"]

PLAIN = Build(("-O2",), {"canary_check": "host.h:"})


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(PLAIN, id="plain", marks=pytest.mark.quick),
        pytest.param(ADDRESS, id="address", marks=pytest.mark.slow),
        pytest.param(THREAD, id="thread", marks=pytest.mark.slow),
    ],
)
def test_cases(build, program, tmp_path):
    path = compile_program(program, build, tmp_path)
    check_cases(path, build)


def test_an_unknown_case_fails(tmp_path):
    status, said = run_case(compile_program("handler_test", PLAIN, tmp_path), "metadatum")
    assert status == 2
    assert "no case is called metadatum" in said


@pytest.mark.quick
def test_compiles_without_a_diagnostic():
    command = [gcc(), *WARNINGS, "-O2", "-fanalyzer", *INCLUDES, "-c", str(HANDLER), "-o"]
    assert run([*command, os.devnull]) == ""


@pytest.fixture(params=["compiled", "installed"])
def handler_library(request, tmp_path):
    """The shared library: the source's, with the options of setup.py, and the installed one."""
    if request.param == "installed":
        return find_handler()
    path = tmp_path / "libhandler.so"
    compile_flags, link_flags = setup_flags("extra_compile_args"), setup_flags("extra_link_args")
    command = [gcc(), "-shared", "-fPIC", *compile_flags, *INCLUDES, str(HANDLER), *link_flags]
    run([*command, "-o", str(path)])
    return path


@pytest.mark.quick
def test_library_needs_libc_alone(handler_library):
    dynamic = run(["readelf", "--dynamic", "--wide", str(handler_library)])
    assert re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic) == ["libc.so.6"]
    undefined = symbols("--undefined-only", handler_library)
    assert "calloc" in undefined
    assert not [name for name in undefined if name.lstrip("_").startswith("Py")]


@pytest.mark.quick
def test_library_exports_what_the_source_says(handler_library):
    declared = re.findall(r"^EXPORT .*?(\w+)\(", HANDLER.read_text(), re.MULTILINE)
    assert sorted(symbols("--defined-only", handler_library)) == sorted(declared)
    assert len(declared) >= 8
    assert all(name.startswith("oxijax_") for name in declared)


def compile_program(program: str, build: Build, folder: pathlib.Path) -> pathlib.Path:
    """Compiles one of the test programs, with the handler in it."""
    path = folder / program
    wrapped = ",".join(f"--wrap={name}" for name in ("malloc", "calloc", "realloc", "free"))
    sources = [*INCLUDES, f"-I{HANDLER.parent}", str(NATIVE / f"{program}.c")]
    run([gcc(), *WARNINGS, *build.flags, *sources, "-o", str(path), "-pthread", f"-Wl,{wrapped}"])
    return path


def setup_flags(name: str) -> list[str]:
    """A list of options in setup.py."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    [flags] = [n.value for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == name]
    return ast.literal_eval(flags)


def symbols(which: str, library: pathlib.Path) -> list[str]:
    """The names of a library's dynamic symbols, without their versions."""
    lines = run(["nm", "--dynamic", which, str(library)]).splitlines()
    return [line.split()[-1].partition("@")[0] for line in lines]
