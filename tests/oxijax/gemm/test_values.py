"""Values and gradients of gemm, against jnp.matmul in float64 and the formula."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gemm_checks import DTYPES, compare, expected, function_of, matmul, operands_of
from support.helpers import TOLERANCES, assert_close, dtypes_of_sums, program_of

import oxijax
from oxijax.testing import GEMM_CASES, GemmCase


def check(case: GemmCase, dtype: str, function=oxijax.gemm) -> None:
    operands, grad_y = operands_of(case, dtype), case.grad_y().astype(dtype)
    ours = function_of(case, operands, function, precision="highest")
    y, gradients = program_of(ours)(tuple(operands.values()), grad_y)
    assert y.shape == grad_y.shape
    compare(operands, y, gradients, expected(case, operands, grad_y), TOLERANCES[dtype])


def test_products_are_small_and_many():
    assert len(GEMM_CASES) >= 50
    assert all(case.multiply_adds <= 1_000_000 for case in GEMM_CASES.values())


# Each product in one dtype, so that all come up with all kinds of products.
ROTATING = list(zip(GEMM_CASES, itertools.cycle(DTYPES), strict=False))
QUICK = [
    pytest.param(*row, marks=pytest.mark.quick) if i % 3 == 0 else row
    for i, row in enumerate(ROTATING)
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "dtype"), QUICK)
def test_case(name, dtype):
    check(GEMM_CASES[name], dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GEMM_CASES)
def test_case_everywhere(name, dtype):
    check(GEMM_CASES[name], dtype)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "dtype"), ROTATING[::7])
def test_reference(name, dtype):
    check(GEMM_CASES[name], dtype, oxijax.reference.gemm)


@st.composite
def products(draw):
    def batch():
        """Leading dimensions that broadcast against (2, 3)."""
        sizes = [draw(st.sampled_from([1, size])) for size in (2, 3)]
        return tuple(sizes[draw(st.integers(0, 2)) :])

    factors = st.sampled_from([0.0, 1.0, -0.5, 2.25])
    with_c = draw(st.booleans())
    return GemmCase(
        f"drawn-{draw(st.integers(0, 1000))}",
        m=draw(st.integers(0, 9)),
        n=draw(st.integers(0, 9)),
        k=draw(st.integers(0, 9)),
        batch_a=batch(),
        batch_b=batch(),
        batch_c=batch() if with_c else None,
        transpose_a=draw(st.booleans()),
        transpose_b=draw(st.booleans()),
        alpha=draw(factors),
        beta=draw(factors) if with_c else 0.0,
        traced=draw(st.booleans()),
    )


@settings(
    max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(products(), st.sampled_from(DTYPES))
def test_drawn_products(case, dtype):
    with jax.enable_x64(True):
        check(case, dtype)


@pytest.mark.quick
@pytest.mark.usefixtures("x64")
def test_formula():
    """Against sums written out, one product at a time."""
    case = GEMM_CASES["heads"]
    operands = operands_of(case, "float64")
    a, b, c = (np.asarray(value) for value in operands.values())
    y = np.array(np.broadcast_to(c, (2, 3, case.m, case.n)))
    for i, j, m, n, k in np.ndindex(2, 3, case.m, case.n, case.k):
        y[i, j, m, n] += a[i, j, m, k] * b[j, k, n]
    assert_close(function_of(case, operands)(*operands.values()), y, TOLERANCES["float64"])


# beta = 0: c is not used.


@pytest.mark.quick
@pytest.mark.parametrize("function", [oxijax.gemm, oxijax.reference.gemm])
@pytest.mark.parametrize("beta", [0, 0.0, np.float32(-0.0), jnp.float32(0)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_c_is_not_used_where_beta_is_0(value, beta, function):
    operands = operands_of("plus-c")
    a, b = operands["a"], operands["b"]
    c = operands["c"].at[3, 2].set(value)

    def run(a, b, c):
        return function(a, b, c, alpha=2.0, beta=beta)

    y, vjp = jax.vjp(run, a, b, c)
    np.testing.assert_array_equal(y, function(a, b, alpha=2.0))
    assert all(np.isfinite(gradient).all() for gradient in vjp(jnp.ones_like(y)))
    np.testing.assert_array_equal(vjp(jnp.ones_like(y))[2], np.zeros_like(c))


@pytest.mark.parametrize("function", [oxijax.gemm, oxijax.reference.gemm])
def test_beta_is_differentiable_at_0(function):
    operands = operands_of("traced-beta-0")
    a, b, c, alpha, beta = operands.values()

    def total(beta):
        return jnp.sum(jnp.sin(function(a, b, c, alpha=alpha, beta=beta)))

    y = function(a, b, alpha=alpha)
    assert_close(jax.grad(total)(beta), jnp.sum(jnp.cos(y) * c), 1e-6)
    second = -jnp.sum(jnp.sin(y) * c * c)
    assert_close(jax.grad(jax.grad(total))(beta), second, 1e-5)


def test_nan_where_beta_is_not_0():
    operands = operands_of("plus-c")
    c = operands["c"].at[3, 2].set(jnp.nan)
    y = oxijax.gemm(operands["a"], operands["b"], c, beta=jnp.float32(0.5))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(c))


# Precision.


@pytest.mark.quick
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype, traced):
    """Three terms of which each alone is lost: all is added in float32."""
    half = float(jnp.finfo(dtype).eps) / 2
    a, b = jnp.asarray([[1, half]], dtype), jnp.ones((2, 1), dtype)
    alpha, beta = (jnp.float32(0.5), jnp.float32(0.25)) if traced else (0.5, 0.25)
    y = oxijax.gemm(a, b, jnp.asarray([[6 * half]], dtype), alpha=alpha, beta=beta)
    assert y.item() == 0.5 + 2 * half


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mapped", [False, True])
def test_gradients_of_what_is_shared_are_summed_in_float32(dtype, mapped):
    """In half precision 4096 ones would add up to less."""
    a, b, c = (jnp.ones(shape, dtype) for shape in ((4096, 1, 1), (1, 1), (1, 1)))

    def loss(b, c):
        if mapped:
            y = jax.vmap(lambda a: oxijax.gemm(a, b, c, beta=1.0))(a)
        else:
            y = oxijax.gemm(a, b, c, beta=1.0)
        return jnp.sum(y.astype(jnp.float32))

    gradients = jax.grad(loss, (0, 1))
    for gradient in gradients(b, c):
        assert gradient.dtype == dtype
        assert gradient.item() == 4096
    assert dtypes_of_sums(gradients, b, c) == {"float32"}  # XLA may sum halves so too, or not


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_have_gradients_of_their_own_dtype(dtype):
    operands = operands_of("traced", dtype)
    grad = jax.grad(lambda f: oxijax.gemm(*list(operands.values())[:3], **f).max())
    float32 = grad({"alpha": operands["alpha"], "beta": operands["beta"]})
    assert {g.dtype.name for g in float32.values()} == {"float32"}
    half = grad({"alpha": jnp.asarray(0.75, dtype), "beta": jnp.asarray(-1.5, dtype)})
    assert {g.dtype.name for g in half.values()} == {dtype}


@pytest.mark.parametrize("enabled", [False, True])
def test_dtypes_do_not_depend_on_x64(enabled):
    with jax.enable_x64(enabled):
        case, operands = GEMM_CASES["beta"], operands_of("beta")
        y, gradients = program_of(function_of(case, operands))(
            tuple(operands.values()), case.grad_y()
        )
        assert {value.dtype.name for value in (y, *gradients)} == {"float32"}


# Empty products.


@pytest.mark.parametrize("traced", [False, True])
def test_no_depth(traced):
    c = jnp.arange(6.0).reshape(2, 3)
    beta = jnp.float32(0.5) if traced else 0.5
    y = oxijax.gemm(jnp.ones((2, 0)), jnp.ones((0, 3)), c, beta=beta)
    np.testing.assert_array_equal(y, 0.5 * c)


@pytest.mark.parametrize("shapes", [((0, 4), (4, 3)), ((0, 2, 4), (4, 3)), ((1, 2, 4), (0, 4, 3))])
def test_empty_results(shapes):
    a, b = (jnp.ones(shape) for shape in shapes)
    y, vjp = jax.vjp(lambda a, b: oxijax.gemm(a, b, alpha=2.0), a, b)
    assert y.shape == jnp.matmul(a, b).shape
    for operand, gradient in zip((a, b), vjp(y), strict=True):
        np.testing.assert_array_equal(gradient, np.zeros_like(operand))


# What the program is.


@pytest.mark.parametrize("name", ["plain", "traced", "b-transposed", "batch", "batch-2x3"])
def test_program_on_a_cpu(name):
    """One product, and one pass over it for all else: what jnp makes of the formula."""
    case, operands = GEMM_CASES[name], operands_of(name)

    def operations(function):
        jitted = jax.jit(function_of(case, operands, function))
        text = jitted.lower(*operands.values()).compile().as_text()
        assert text is not None
        assert len(re.findall(r"\bdot\(", text)) == 1
        entry = text[text.index("ENTRY") :]
        every = re.findall(r"^.* = \S+ ([\w-]+)\(", entry, re.M)
        return sorted(name for name in every if name != "bitcast")  # which does nothing

    assert operations(oxijax.gemm) == operations(matmul)
