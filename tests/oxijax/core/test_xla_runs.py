"""Starts of runs of equal keys, beside what numpy searches for."""

import jax
import numpy as np
import pytest

from oxijax._core.xla.runs import run_starts


@pytest.mark.parametrize("samples", [0, 1, 200])
def test_as_numpy_searches(samples):
    keys = np.random.default_rng(samples).integers(0, 7, (3, samples))
    starts = run_starts(jax.numpy.asarray(keys, "uint32"), 7)
    assert starts.dtype == "int32"
    for row, found in zip(keys, starts, strict=True):
        np.testing.assert_array_equal(found, np.searchsorted(np.sort(row), np.arange(8)))


def test_symbolic_sizes():
    s, count = jax.export.symbolic_shape("s, c")

    def function(keys, cells):
        return run_starts(keys, cells.shape[0])

    shapes = [jax.ShapeDtypeStruct((2, s), "uint32"), jax.ShapeDtypeStruct((count,), "float32")]
    exported = jax.export.export(jax.jit(function))(*shapes)
    keys = np.array([[3, 0, 3], [1, 1, 1]], np.uint32)
    starts = exported.call(keys, np.zeros(4, np.float32))
    np.testing.assert_array_equal(starts, [[0, 1, 1, 1, 3], [0, 0, 3, 3, 3]])
