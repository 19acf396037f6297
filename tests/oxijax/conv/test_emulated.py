"""conv's GPU kernels, in the emulator: values and gradients of every named layer."""

import itertools

import jax
import numpy as np
import pytest
from support.conv_checks import check
from support.places import PRECISIONS, emulated

import oxijax
from oxijax.testing import CONV_CASES, emulate_gpu

TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(PRECISIONS, TARGETS))


def rotating(names):
    """Each layer with one combination of precision and target, so that all come up."""
    return [(name, *pair) for name, pair in zip(names, itertools.cycle(COMBINATIONS), strict=False)]


@pytest.mark.spread(6, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "precision", "target"), rotating(CONV_CASES))
def test_layer(name, precision, target):
    check(CONV_CASES[name], precision, emulated(target, schedule=len(name)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", CONV_CASES)
def test_layer_everywhere(name, precision, target):
    check(CONV_CASES[name], precision, emulated(target))


def test_pixels_that_are_not_finite_stay_where_they_are_read():
    x = np.random.default_rng(0).standard_normal((2, 6, 7, 32)).astype(np.float32)
    x[0, 0, 0, 3] = np.inf
    x[1, -1, -1, 0] = np.nan
    weight = np.random.default_rng(1).standard_normal((3, 3, 32, 8)).astype(np.float32)
    with emulate_gpu("sm_80"):
        y = np.asarray(jax.jit(oxijax.conv)(x, weight))
    expected = np.asarray(oxijax.reference.conv(x, weight))
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
    assert 0 < np.isfinite(y).sum() < y.size
