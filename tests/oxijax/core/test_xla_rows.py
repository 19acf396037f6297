"""Rows of matrices beside NumPy's, for each number of channels that has a loop of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oxijax._core.xla import rows as xla_rows

ROWS = 7
CHANNELS = [1, 3, 8, 12, 16, 24, 30, 32, 40, 64, 136]


def drawn(channels, dtype):
    """Rows, values of items and their factors, and numbers of rows, some of which don't exist."""
    random = np.random.default_rng(channels)
    rows = random.standard_normal((ROWS, channels)).astype(dtype)
    values = random.standard_normal((4, 5, channels)).astype(dtype)
    factors = random.standard_normal((4, 5)).astype(dtype)
    index = random.integers(0, ROWS, (4, 5)).astype(np.uint32)
    outside = index.copy()
    outside[1, 2:] = ROWS, 2**31 - 1, 2**32 - 2
    return rows, values, factors, index, outside


def check(found, expected, dtype):
    """Compares with what float64 has, by Frobenius norms."""
    tolerance = 1e-13 if dtype is np.float64 else 2e-6
    assert found.dtype == dtype
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    with jax.enable_x64(request.param is np.float64):
        yield request.param


@pytest.mark.parametrize("channels", CHANNELS)
def test_rows_that_are_added_to(channels, dtype):
    rows, values, factors, index, outside = drawn(channels, dtype)
    add = jax.jit(xla_rows.add_to_rows, static_argnames="drop")
    zero = xla_rows.hidden_zero(jnp.asarray(factors))
    for numbers, drop in ((index.astype(np.int32), False), (outside, True)):
        expected = rows.astype(np.float64)
        exists = numbers < ROWS
        products = values.astype(np.float64) * factors[..., None]
        np.add.at(expected, numbers[exists], products[exists])
        found = add(rows.reshape(-1), numbers, values, factors, zero, drop=drop)
        assert found.shape == (ROWS * channels,)
        check(found.reshape(rows.shape), expected, dtype)


@pytest.mark.parametrize("channels", CHANNELS)
def test_dot_products_of_rows(channels, dtype):
    rows, values, factors, index, outside = drawn(channels, dtype)
    zero = xla_rows.hidden_zero(jnp.asarray(factors))
    exact = np.einsum("rc,...c->...r", rows.astype(np.float64), values.astype(np.float64))
    expected = np.take_along_axis(exact, index[..., None].astype(np.int64), -1)[..., 0]
    found = jax.jit(xla_rows.row_products)(rows, index.astype(np.int32), values, zero)
    check(found, expected, dtype)
    expected = np.where(outside < ROWS, expected, 0)
    for hidden in (zero, None):
        found = jax.jit(xla_rows.row_products_or_zeros)(rows, outside, values, hidden)
        check(found, expected, dtype)


@pytest.mark.parametrize("first", [0.0, np.inf, -np.inf, np.nan])
def test_hidden_zero_is_zero_and_not_known(first):
    number = jnp.full(3, first)
    program = jax.jit(xla_rows.hidden_zero).lower(number).compile()
    assert program(number) == 0
    assert " compare(" in (program.as_text() or "")  # or it would be a constant
    assert xla_rows.hidden_zero(number[:0]) == 0
