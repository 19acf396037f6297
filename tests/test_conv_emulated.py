"""conv's GPU kernels, in the emulator: values and gradients of every named layer."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deform_conv_checks import PRECISIONS
from helpers import assert_close

import oxijax
from oxijax.testing import emulate_gpu
from oxijax.testing._conv_cases import CONV_CASES

TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(PRECISIONS, TARGETS))
NAMES = ("y", "dx", "dweight", "dbias")


def rotating(names):
    """Each layer with one combination of precision and target, so that all come up."""
    return [(name, *pair) for name, pair in zip(names, itertools.cycle(COMBINATIONS), strict=False)]


def check(name: str, precision: str, target: str, schedule: int | None = None) -> None:
    """Compares output and gradients with XLA's in float64, on the same operands."""
    case = CONV_CASES[name]
    dtype, precision_, tolerance = PRECISIONS[precision]
    operands = tuple(None if v is None else jnp.asarray(v, dtype) for v in case.operands())
    grad_y = jnp.asarray(case.grad_y(), dtype)

    def run(function, operands, grad_y):
        y, vjp = jax.vjp(function, *operands)
        return y, *vjp(grad_y)

    ours = functools.partial(oxijax.conv, precision=precision_, **case.options)
    theirs = functools.partial(oxijax.reference.conv, **case.options)
    with emulate_gpu(target, schedule=schedule):
        compiled = jax.jit(functools.partial(run, ours)).lower(operands, grad_y).compile()
        results = compiled(operands, grad_y)
    text = compiled.as_text()
    assert text is not None
    assert text.count('custom_call_target="oxijax_launch"') == 3
    wide = tuple(None if v is None else v.astype(jnp.float64) for v in operands)
    expected = run(theirs, wide, grad_y.astype(jnp.float64))
    for what, result, value in zip(NAMES, results, expected, strict=True):
        if value is not None:
            assert result.dtype == dtype
            assert_close(result, value, tolerance, what)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "precision", "target"), rotating(CONV_CASES))
def test_layer(name, precision, target):
    check(name, precision, target, schedule=len(name))


@pytest.mark.full
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", CONV_CASES)
def test_layer_everywhere(name, precision, target):
    check(name, precision, target)


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
