"""Kernels that Triton compiled, which know what a GPU does where the PTX ISA leaves it open."""

import re

import numpy as np
import pytest
from support.paths import DATA

from ptx.emulator import Buffer, launch

TEXTS = DATA / "compiled_by_triton"
NOTHING = Buffer(np.zeros(1, np.uint8))  # Triton's scratch memory, of which these kernels have none


def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def run(name: str, grid, *arguments, schedule: int | None) -> None:
    text = (TEXTS / f"{name}.ptx").read_text()
    found = re.match(r"// threads (\d+), dynamic shared (\d+);", text)
    assert found
    threads, dynamic_shared = map(int, found.groups())
    launch(
        text,
        grid,
        threads,
        [*arguments, NOTHING, NOTHING],
        dynamic_shared=dynamic_shared,
        schedule=schedule,
        lenient=True,
    )


@pytest.fixture(params=[None, 1], ids=["in_step", "random"])
def schedule(request):
    return request.param


def test_add(schedule):
    x, y, out = rand(600), rand(600), Buffer(np.zeros(600, np.float32), initialized=False)
    run("add", 3, Buffer(x), Buffer(y), out, 600, schedule=schedule)
    np.testing.assert_array_equal(out.array, x + y)


def test_softmax(schedule):
    x, out = rand(5, 100), Buffer(np.zeros((5, 100), np.float32), initialized=False)
    run("softmax", 5, Buffer(x), out, 100, schedule=schedule)
    exponentials = np.exp(x - x.max(1, keepdims=True))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(out.array, expected, rtol=1e-5)


def test_matmul(schedule):
    a, b = rand(50, 70).astype(np.float16), rand(70, 40).astype(np.float16)
    out = Buffer(np.zeros((50, 40), np.float32), initialized=False)
    run("matmul", (2, 2), Buffer(a), Buffer(b), out, 50, 40, 70, schedule=schedule)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(out.array, expected, rtol=1e-4, atol=1e-4)


def test_histogram(schedule):
    x, out = np.random.default_rng(0).integers(0, 9, 700, np.int32), Buffer(np.zeros(9, np.int32))
    run("histogram", 3, Buffer(x), out, 700, schedule=schedule)
    np.testing.assert_array_equal(out.array, np.bincount(x, minlength=9))


def test_running_sum(schedule):
    x, out = rand(512), Buffer(np.zeros(512, np.float32), initialized=False)
    run("running_sum", 1, Buffer(x), out, schedule=schedule)
    np.testing.assert_allclose(out.array, np.cumsum(x), rtol=1e-4, atol=1e-4)
