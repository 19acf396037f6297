"""gemm under jax.vmap, against jnp.matmul."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gemm_checks import (
    EVERY,
    LAYOUTS,
    TOLERANCE,
    assert_trees_close,
    equations_of,
    five,
    matmul,
    product,
    squares,
    variants,
)
from support.helpers import assert_close

import oxijax

SUBSETS = [s for s in itertools.product([0, None], repeat=5) if any(axis == 0 for axis in s)]
MAPPED = [(*LAYOUTS[i % 4], ((),) * 3, s) for i, s in enumerate(SUBSETS)] + [
    (*LAYOUTS[i % 4], ((2,),) * 3, s) for i, s in enumerate(SUBSETS[::3])
]


@functools.cache
def _loss_and_gradients(transpose_a, transpose_b):
    function = product(transpose_a, transpose_b, matmul)
    return jax.jit(jax.value_and_grad(squares(function), EVERY))


@pytest.mark.spread(16)
@pytest.mark.parametrize(("transpose_a", "transpose_b", "batches", "axes"), MAPPED)
def test_vmap_over_every_subset(transpose_a, transpose_b, batches, axes):
    """Values, and gradients of all operands, of vmap over each subset of the operands."""
    operands = five(transpose_a, transpose_b, batches)
    batched = [variants(v) if axis == 0 else v for v, axis in zip(operands, axes, strict=True)]
    run = jax.vmap(jax.value_and_grad(squares(product(transpose_a, transpose_b)), EVERY), axes)
    actual = jax.jit(run)(*batched)
    one = _loss_and_gradients(transpose_a, transpose_b)
    expected = [
        one(*(v[i] if axis == 0 else v for v, axis in zip(batched, axes, strict=True)))
        for i in range(3)
    ]
    assert_trees_close(actual, jax.tree.map(lambda *v: np.stack(v), *expected))


@pytest.mark.spread(11)
@pytest.mark.parametrize(
    "axes",
    [
        (0, None, None, None, None),
        (None, -1, 1, None, None),
        (1, 2, None, None, None),
        (None, None, 2, None, None),
        (0, None, 0, 0, None),
        (None, 0, None, 0, 0),
    ],
)
@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
def test_grad_of_vmap(axes, transpose_a, transpose_b):
    """Any axes, and gradients that are summed over what they share."""
    batched = [
        v if axis is None else np.moveaxis(variants(v), 0, axis)
        for v, axis in zip(five(transpose_a, transpose_b), axes, strict=True)
    ]

    def run(function):
        mapped = jax.vmap(product(transpose_a, transpose_b, function), axes, 1)
        return jax.jit(jax.grad(squares(mapped), EVERY))(*batched)

    assert_trees_close(run(oxijax.gemm), run(matmul))


def test_nested_vmap():
    """Rows and columns mapped over different axes, and alpha over both."""
    a, b, c, _, beta = five()
    rows, columns = variants(a, 2), np.moveaxis(variants(b, 3), 0, -1)
    alphas = jnp.arange(6.0).reshape(2, 3)

    def run(function):
        def one(a, b, alpha):
            return function(a, b, c, alpha=alpha, beta=beta, strategy="auto")

        return jax.jit(jax.vmap(jax.vmap(one, (None, -1, 0), 1), (0, None, 0), 2))

    actual = run(oxijax.gemm)(rows, columns, alphas)
    assert actual.shape == (5, 3, 2, 4)
    assert_close(actual, run(matmul)(rows, columns, alphas), TOLERANCE)


def shapes_of(function, axes, *operands, **layout):
    """Shapes of the operands of the one bind that a vmapped function is, and what is copied."""

    def run(a, b, *c):
        return function(a, b, *c, beta=1.0 if c else 0.0, **layout)

    mapped = jax.vmap(run, axes)
    (bind,) = equations_of(mapped, *operands)
    return [v.aval.shape for v in bind.invars]


@pytest.mark.quick
def test_vmap_shares_what_is_not_mapped():
    a, b, c, _, _ = five()
    many_a, many_b, many_c = (variants(v, 7) for v in (a, b, c))
    shapes = functools.partial(shapes_of, oxijax.gemm)
    # Rows: one product with more of them.
    assert shapes((0, None), many_a, b) == [(1, 35, 3), (1, 3, 4)]
    assert shapes((0, None, 0), many_a, b, many_c) == [(1, 35, 3), (1, 3, 4), (1, 35, 4)]
    assert shapes((0, None, None), many_a, b, c) == [(1, 35, 3), (1, 3, 4), (1, 35, 4)]
    # A transposed a has no rows to add to without a copy.
    assert shapes((0, None), many_a.mT, b, transpose_a=True) == [(7, 3, 5), (1, 3, 4)]
    # Columns, both, or c alone: products, that share the rest.
    assert shapes((None, 0), a, many_b) == [(1, 5, 3), (7, 3, 4)]
    assert shapes((0, 0), many_a, many_b) == [(7, 5, 3), (7, 3, 4)]
    assert shapes((None, None, 0), a, b, many_c) == [(1, 5, 3), (1, 3, 4), (7, 5, 4)]


@pytest.mark.quick
def test_vmap_of_batches_copies_no_operand():
    """What is one of many already is not repeated where more rows or columns will do."""
    a, b = jnp.ones((2, 5, 3)), jnp.ones((2, 3, 4))
    shapes = functools.partial(shapes_of, oxijax.gemm)
    assert shapes((0, None), variants(a, 7), b) == [(2, 35, 3), (2, 3, 4)]
    assert shapes((None, 0), a, variants(b, 7)) == [(2, 5, 3), (2, 3, 28)]
    assert shapes((0, 0), variants(a, 7), variants(b, 7)) == [(14, 5, 3), (14, 3, 4)]
    # As do leading dimensions that only one operand has.
    (bind,) = equations_of(oxijax.gemm, variants(a, 7), b)
    assert [v.aval.shape for v in bind.invars] == [(2, 35, 3), (2, 3, 4)]
