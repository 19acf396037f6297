"""Loops over blocks, and what XLA's CPU compiler computes before what uses it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oxijax
from oxijax._core.xla.blocks import apart


@pytest.mark.parametrize("first", [0.0, -np.inf, np.nan])
@pytest.mark.parametrize("count", [0, 3])
def test_apart_has_the_functions_results(first, count):
    operand = np.full(count, 2, np.float32)
    number = np.full(count, first, np.float32)

    @jax.jit
    def run(operand, number):
        return apart(lambda a: (a * a, a + 1), operand, number=number)

    square, sum_ = run(operand, number)
    np.testing.assert_array_equal(square, operand * operand)
    np.testing.assert_array_equal(sum_, operand + 1)


def test_derivatives_of_what_is_apart():
    number = jnp.ones(())

    def cube(x):
        return apart(lambda a: a**3, x, number=number)

    second = jax.jit(jax.vmap(jax.grad(jax.grad(cube))))
    np.testing.assert_allclose(second(jnp.arange(4.0)), 6 * np.arange(4.0))


def test_samples_and_their_places_are_computed_before_what_uses_them():
    x, weight = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 4))
    offset = jnp.ones((1, 8, 8, 18))
    program = jax.jit(oxijax.deform_conv).lower(x, offset, weight).compile()
    assert (program.as_text() or "").count(" conditional(") == 2
