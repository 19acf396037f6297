"""Device functions, variables of the module and local memory as nvcc writes them.

The library's sines reduce large arguments with a table in the module, an array in local memory and
sums with carries; those of doubles in a function that is called.
"""

import struct

import numpy as np
import pytest
from support.compiled import FOLDER, output, run, schedules

from ptx.emulator import Allocation, LoadedModule, ParseError, launch

FUNCTIONS = (np.sin, np.cos, np.tan)


def angles(count: int, dtype: type, largest: float) -> np.ndarray:
    """Of all magnitudes, a third of them too large for a quick reduction; and what is no angle."""
    random = np.random.default_rng(3)
    magnitudes = np.exp(random.uniform(np.log(1e-6), np.log(largest), count))
    x = (magnitudes * random.choice([-1, 1], count)).astype(dtype)
    x[:5] = [0, -0.0, np.inf, -np.inf, np.nan]
    return x


@pytest.mark.parametrize(
    ("dtype", "largest", "tolerance"), [(np.float32, 1e18, 3e-7), (np.float64, 1e30, 7e-16)]
)
@schedules
def test_trigonometry(schedule, dtype, largest, tolerance):
    count = 300
    x = angles(count, dtype, largest)
    results = [output(count, dtype=dtype) for _ in FUNCTIONS]
    kernel = "trigonometry_f32" if dtype == np.float32 else "trigonometry_f64"
    run("functions", kernel, [x, *results, count], count, schedule)
    with np.errstate(invalid="ignore"):
        for function, result in zip(FUNCTIONS, results, strict=True):
            expected = function(x.astype(np.float64))
            np.testing.assert_allclose(result.array, expected, tolerance, atol=0)


@schedules
def test_constants_and_an_array_in_local_memory(schedule):
    count = 200
    random = np.random.default_rng(4)
    x = random.standard_normal(count).astype(np.float32)
    turn = random.integers(0, 100, count, np.int32)
    y = output(count)
    run("functions", "polynomial", [x, turn, y, count], count, schedule)
    coefficients = np.array([1, -0.5, 0.25, 3, -2], np.float32)
    order = (np.arange(5) - turn[:, None]) % 5  # the coefficient that comes to each place
    expected = np.zeros(count, np.float32)
    for column in coefficients[order].T:
        expected = expected * x + column
    np.testing.assert_array_equal(y.array, expected * np.float32(-3))


def grow(x: float, y: float, n: int, steps: int) -> tuple[float, int]:
    for k in range(steps):
        if x > 100:
            return x, n
        x, n = x * 2 + y, n + k
    return x, -n


def grown(x: float, steps: int) -> float:
    value, n = grow(x, 0.5, steps, steps)
    return value if n < 0 else grow(value, 0.5, n, 3)[0] - n


@schedules
def test_calls_of_some_threads_with_structures(schedule):
    count = 200
    x = np.random.default_rng(5).integers(1, 90, count).astype(np.float64)
    y = output(count, dtype=np.float64)
    run("functions", "calls", [x, y, count], count, schedule)
    expected = [
        grown(value, i % 7) if i % 3 == 0 else grow(value, 1.0, i, 5)[0]
        for i, value in enumerate(x.tolist())
    ]
    np.testing.assert_array_equal(y.array, expected)


@schedules
def test_wide_integers(schedule):
    count = 200
    random = np.random.default_rng(6)
    a, b = random.integers(0, 2**64, (2, count, 2), np.uint64, endpoint=False)
    a[:20, 0], b[:20, 0] = 0, 2**64 - 1
    total, product = output(count, 2, dtype=np.uint64), output(count, 2, dtype=np.uint64)
    run("functions", "wide", [a, b, total, product, count], count, schedule)

    def words(value: int) -> list[int]:
        return [value & (2**64 - 1), value >> 64 & (2**64 - 1)]

    pairs = [
        (x[0] | x[1] << 64, y[0] | y[1] << 64) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    expected = np.array([words(x - y + 1) for x, y in pairs], np.uint64)
    np.testing.assert_array_equal(total.array, expected)
    expected = np.array([words(x * y + 0x0123456789ABCDEF) for x, y in pairs], np.uint64)
    np.testing.assert_array_equal(product.array, expected)


def test_a_structure_as_parameter_and_a_pointer_to_a_variable():
    module = LoadedModule((FOLDER / "functions.ptx").read_text())
    before, steps = np.zeros(64, np.int32), np.array([1, 2, 3, 5, 8, 13], np.int32)
    parameters = [struct.pack("<Q", before.ctypes.data), struct.pack("<q6i", -4, *steps)]
    allocation = Allocation(before.ctypes.data, before.view(np.uint8), initialized=False)
    for launches in (1, 2):
        module.launch("count", 1, 64, parameters, [allocation])
        np.testing.assert_array_equal(before, steps[np.arange(64) % 6] - 4)
        total = 7 + launches * steps[np.arange(64) % 6].sum()
        assert module.variable("counter").data.view(np.int32) == total


def test_a_text_without_the_functions_body():
    text = (FOLDER / "functions.ptx").read_text()
    start = text.rindex(".func  (.param .align 8 .b8 func_retval0[16]) __internal")
    results = [output(1, dtype=np.float64) for _ in FUNCTIONS]
    with pytest.raises(ParseError, match="__internal_trig_reduction_slowpathd has no body"):
        launch(text[:start], 1, 32, [0, *results, 1], "trigonometry_f64")
