"""gemm's derivatives, against jnp.matmul."""

import jax
import jax.numpy as jnp
import pytest
from jax.test_util import check_grads
from support.gemm_checks import (
    EVERY,
    LAYOUTS,
    NAMES,
    assert_trees_close,
    equations_of,
    five,
    function_of,
    matmul,
    operands_of,
    product,
    squares,
)

import oxijax
from oxijax.testing import GEMM_CASES, GemmCase

# Derivatives: every one, of any order and in either mode, is made of products.


@pytest.mark.spread(4)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("modes", ["rev", "fwd"])
@pytest.mark.parametrize("name", ["traced", "batch", "b-shared-2x2", "only-c"])
def test_check_grads(name, modes):
    case, operands = GEMM_CASES[name], operands_of(name, "float64")
    function = jax.jit(function_of(case, operands))
    options = {"order": 2, "modes": [modes], "atol": 1e-6, "rtol": 1e-6}
    check_grads(function, tuple(operands.values()), **options)


@pytest.mark.spread(9)
@pytest.mark.parametrize("batches", [((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
def test_second_derivatives_of_batches(transpose_a, transpose_b, batches):
    """Hessian-vector products, whatever is shared by the batch."""
    operands = five(transpose_a, transpose_b, (*batches, (2,)))

    def run(function):
        gradient = jax.grad(squares(product(transpose_a, transpose_b, function)), EVERY)
        return jax.jit(lambda *p: jax.jvp(gradient, p, tuple(jnp.cos(v) for v in p)))

    assert_trees_close(run(oxijax.gemm)(*operands), run(matmul)(*operands))


@pytest.mark.quick
@pytest.mark.parametrize("argument", [0, 1, 3])
def test_linear_transpose(argument):
    """Without c the function is linear in a, in b and in alpha, to JAX too."""
    operands = list(five())

    def transpose(function):
        def linear(value):
            a, b, _, alpha, _ = (value if i == argument else v for i, v in enumerate(operands))
            return function(a, b, alpha=alpha, strategy="auto")

        return jax.linear_transpose(linear, operands[argument])

    grad_y = jnp.cos(operands[2])
    assert_trees_close(transpose(oxijax.gemm)(grad_y), transpose(matmul)(grad_y))


@pytest.mark.quick
@pytest.mark.parametrize("wanted", NAMES)
def test_unwanted_gradients_leave_no_trace(wanted):
    """Gradients to a, b and alpha take a product each, the others none."""
    gradient = jax.grad(squares(product()), NAMES.index(wanted))
    expected = 2 if wanted in ("a", "b", "alpha") else 1
    assert len(equations_of(gradient, *five())) == expected
    lowered = jax.jit(gradient).lower(*five()).as_text()
    assert lowered.count("stablehlo.dot_general") == expected


@pytest.mark.quick
@pytest.mark.parametrize("used", NAMES)
def test_unused_gradients_leave_no_trace(used):
    """Nor is one that was asked for and then dropped in the HLO."""
    every = jax.grad(squares(product()), EVERY)
    lowered = jax.jit(lambda *v: every(*v)[NAMES.index(used)]).lower(*five()).as_text()
    expected = 2 if used in ("a", "b", "alpha") else 1
    assert lowered.count("stablehlo.dot_general") == expected


@pytest.mark.quick
@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
def test_gradients_are_products_without_copies(transpose_a, transpose_b):
    """The results come out in the operands' layouts, by a choice of the products' layouts."""
    case = GemmCase("layouts", 5, 4, 3, transpose_a=transpose_a, transpose_b=transpose_b)
    operands = operands_of(case)
    gradient = jax.grad(squares(function_of(case, operands)), (0, 1))
    values = tuple(operands.values())
    assert "transpose[" not in str(jax.make_jaxpr(gradient)(*values))
    binds = equations_of(gradient, *values)
    assert len(binds) == 3
    configs = [eqn.params["config"] for eqn in binds]
    assert {config.op.strategy for config in configs} == {"auto"}
    expected = jax.grad(squares(function_of(case, operands, matmul)), (0, 1))(*values)
    assert_trees_close(gradient(*values), expected)


def test_strategy_is_for_the_product_alone():
    """Gradients have shapes of their own, and strategies for them."""
    a, b, _, _, _ = five()

    def loss(a, b):
        return jnp.sum(oxijax.gemm(a, b, strategy="shallow_k") ** 2)

    strategies = [
        e.params["config"].op.strategy for e in equations_of(jax.grad(loss, (0, 1)), a, b)
    ]
    assert strategies == ["shallow_k", "auto", "auto"]


@pytest.mark.quick
def test_gradient_of_what_is_shared_is_one_product():
    """The sum over a batch that shares b is a sum over the rows of all of it."""
    a, b = jnp.ones((2, 6, 5, 3)), jnp.ones((3, 4))
    (_, bind) = equations_of(jax.grad(lambda b: jnp.sum(oxijax.gemm(a, b) ** 2)), b)
    assert [v.aval.shape for v in bind.invars] == [(1, 60, 3), (1, 60, 4)]
    assert bind.params["config"].op.transpose_a
