"""The virtual driver without Python: its faults and orders, plain and under sanitizers.

    python -m pytest tests/virtual_gpu/test_native.py

compiles driver/ and native/ into a program and runs each of its cases in a process of its own. It
needs gcc 10 or newer with its sanitizer libraries. `-k thread` runs one of the three builds.
"""

import pathlib

import pytest
from support.sanitizers import ADDRESS, THREAD, Build, check_cases, gcc, run, run_case
from virtual_gpu import build, environment

NATIVE = pathlib.Path(__file__).parent / "native"

PLAIN = Build(
    build.PLAIN,
    {
        "canary_check": "CHECK failed: number == 1",
        "canary_success": "cuMemFree(1) returned CUDA_ERROR_INVALID_VALUE",
        "canary_failure": '"another reason" were expected',
    },
)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(PLAIN, id="plain"),
        pytest.param(ADDRESS, id="address", marks=pytest.mark.slow),
        pytest.param(THREAD, id="thread", marks=pytest.mark.slow),
    ],
)
def test_cases(way, tmp_path):
    program = compile_program(way, tmp_path)
    check_cases(program, way)
    status, said = run_case(program, "a_case_that_is_none")
    assert status == 2
    assert "no case is called a_case_that_is_none" in said


def compile_program(way: Build, folder: pathlib.Path) -> pathlib.Path:
    """Compiles the cases, with the driver in the program."""
    sources = [*build.SOURCES.glob("*.c"), *NATIVE.glob("*.c")]
    header = environment.current().header
    objects = build.compile_objects(sources, folder, header, [], way.flags)
    program = folder / "cases"
    run([gcc(), *way.flags, *objects, "-ldl", "-pthread", "-o", str(program)])
    return program
