"""Every wrong argument of gemm raises, and says what is wrong."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oxijax

F32 = jnp.float32
FUNCTIONS = [oxijax.gemm, oxijax.reference.gemm]


def spec(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


RIGHT = {"a": spec(2, 5, 7), "b": spec(7, 4), "c": spec(2, 5, 4), "alpha": 2.0, "beta": 0.5}
TRANSPOSED = {
    "a": spec(7, 5),
    "b": spec(3, 1, 4, 7),
    "transpose_a": True,
    "transpose_b": True,
    "alpha": spec(),
}

WRONG = [
    # rank
    ({"a": spec(7)}, ValueError, r"a must have 2 dimensions or more, got shape \(7,\)"),
    ({"b": spec()}, ValueError, r"b must have 2 dimensions or more, got shape \(\)"),
    ({"c": spec(4)}, ValueError, r"c must have 2 dimensions or more, got shape \(4,\)"),
    # kind and dtype
    ({"a": 1.0}, TypeError, r"a must be an array, got float"),
    ({"b": [[1.0]]}, TypeError, r"b must be an array, got list"),
    ({"c": 0}, TypeError, r"c must be an array, got int"),
    ({"a": spec(5, 7, dtype=jnp.int32)}, TypeError, r"a must have one.*float16.*got int32"),
    ({"c": spec(5, 4, dtype=bool)}, TypeError, r"c must have one.*got bool"),
    (
        {"b": spec(7, 4, dtype=jnp.bfloat16)},
        TypeError,
        r"b must have the dtype of a, float32, got bfloat16",
    ),
    (
        {"c": spec(5, 4, dtype=jnp.float16)},
        TypeError,
        r"c must have the dtype of a, float32, got float16",
    ),
    # shapes
    ({"b": spec(6, 4)}, ValueError, r"b must be \[\.\.\., K, N\] with K = 7 .*got .*\(6, 4\)"),
    ({"transpose_a": True}, ValueError, r"b must be \[\.\.\., K, N\] with K = 5 .*\(7, 4\)"),
    ({"transpose_b": True}, ValueError, r"b must be \[\.\.\., N, K\] with K = 7 .*\(7, 4\)"),
    ({"c": spec(2, 4, 5)}, ValueError, r"c must be .*M, N = 5, 4, got shape \(2, 4, 5\)"),
    ({"c": spec(1, 4)}, ValueError, r"c must be .*M, N = 5, 4, got shape \(1, 4\)"),
    (
        {"b": spec(3, 7, 4)},
        ValueError,
        r"leading dimensions of a, b, c must broadcast .*got \(2,\), \(3,\), \(2,\)",
    ),
    ({"c": spec(3, 5, 4)}, ValueError, r"leading dim.*got \(2,\), \(\), \(3,\)"),
    # factors
    ({"alpha": "1"}, TypeError, r"alpha must be a number or an array, got '1'"),
    ({"alpha": None}, TypeError, r"alpha must be a number or an array, got None"),
    ({"beta": True}, TypeError, r"beta must be a number or an array, got True"),
    ({"beta": 1j}, TypeError, r"beta must be a number or an array, got 1j"),
    ({"alpha": spec(1)}, ValueError, r"alpha must have no dimensions, got shape \(1,\)"),
    ({"beta": spec(dtype=jnp.complex64)}, TypeError, r"beta must be real, got .*complex64"),
    ({"beta": spec(dtype=bool)}, TypeError, r"beta must be real, got .*bool"),
    ({"c": None}, ValueError, r"c must be an array unless beta is the number 0, got None"),
    ({"c": None, "beta": spec()}, ValueError, r"c must be an array unless beta .* got None"),
    # options
    ({"transpose_a": 1}, TypeError, r"transpose_a must be a bool, got 1"),
    ({"transpose_b": "T"}, TypeError, r"transpose_b must be a bool, got 'T'"),
    (
        {"strategy": "split_k"},
        ValueError,
        r"strategy must be one of 'auto', 'shallow_k', 'cache_persistent', 'warp_parallel', got",
    ),
    (
        {"a": spec(5, 33), "b": spec(33, 4), "strategy": "shallow_k"},
        ValueError,
        r"strategy 'shallow_k' .*at most 32, got 33",
    ),
    (
        {"a": spec(5, 4000), "b": spec(4000, 4), "strategy": "cache_persistent"},
        ValueError,
        r"strategy 'cache_persistent' .*at most \d+ for f32, got 4000",
    ),
    ({"precision": "exact"}, ValueError, r"precision must be None.*'highest', got 'exact'"),
]


def trace(function, arguments):
    arrays = {k: v for k, v in arguments.items() if isinstance(v, jax.ShapeDtypeStruct)}
    rest = {k: v for k, v in arguments.items() if k not in arrays}
    return jax.eval_shape(lambda arrays: function(**arrays, **rest), arrays)


@pytest.mark.quick
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("right", "shape"), [(RIGHT, (2, 5, 4)), (TRANSPOSED, (3, 1, 5, 4))])
def test_right_arguments(right, shape, function):
    assert trace(function, right) == spec(*shape)


@pytest.mark.quick
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_wrong_argument(wrong, error, message, function):
    with pytest.raises(error, match=message):
        trace(function, {**RIGHT, **wrong})


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("beta", [0.0, 0.5, jnp.float32(0)])
def test_shape_does_not_depend_on_beta(beta, function):
    """Leading dimensions that only c has are the result's, even where c is not used."""
    shapes = {"a": spec(5, 7), "b": spec(7, 4), "c": spec(3, 1, 5, 4), "beta": beta}
    assert trace(function, shapes) == spec(3, 1, 5, 4)


def operands_of(factors: dict[str, Any]) -> list[bool]:
    """Which of the primitive's operands there are for these factors: alpha, beta and c."""
    arrays = [jnp.zeros(shape) for shape in ((5, 7), (7, 4), (5, 4))]
    jaxpr = jax.make_jaxpr(lambda a, b, c: oxijax.gemm(a, b, c, **factors))(*arrays)
    (eqn,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "gemm")
    present = dict(zip(("a", "b", "c", "alpha", "beta"), eqn.params["present"], strict=True))
    return [present[name] for name in ("alpha", "beta", "c")]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("factors", "present"),
    [
        ({}, [False, False, False]),
        ({"alpha": 1}, [False, False, False]),
        ({"alpha": np.float32(1), "beta": 1.0}, [False, False, True]),
        ({"alpha": 2, "beta": np.int64(0)}, [True, False, False]),
        ({"beta": -0.5}, [False, True, True]),
        ({"alpha": jnp.float32(1), "beta": jnp.float32(0)}, [True, True, True]),
    ],
)
def test_numbers_that_cost_nothing(factors, present):
    """A factor that is the number 1, and c for the number 0, are no operands."""
    assert operands_of(factors) == present


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32"])
def test_dtypes_of_factors(dtype):
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(3, 4)
    y = oxijax.gemm(a, b, alpha=jnp.asarray(3, dtype))
    np.testing.assert_array_equal(y, 3 * (a @ b))
    assert y.dtype == jnp.float32


def test_factors_are_read_on_the_device():
    """Arrays stay arrays: nothing waits for their values."""
    arrays = [jnp.ones((2, 2))] * 3
    with jax.transfer_guard_device_to_host("disallow"):
        oxijax.gemm(*arrays, alpha=jnp.float32(2), beta=jnp.float32(0)).block_until_ready()


@pytest.mark.parametrize(
    ("precision", "expected"),
    [(None, "DEFAULT"), ("highest", "HIGHEST"), (("high", "high"), "HIGH")],
)
def test_precision(precision, expected):
    a, b = jnp.zeros((2, 3)), jnp.zeros((3, 4))
    jaxpr = jax.make_jaxpr(lambda a, b: oxijax.gemm(a, b, precision=precision))(a, b)
    assert f"precision=Precision.{expected}" in str(jaxpr)
    with jax.default_matmul_precision("float32"):
        default = jax.make_jaxpr(lambda a, b: oxijax.gemm(a, b))(a, b)
    assert "precision=Precision.HIGHEST" in str(default)


def test_both_functions_have_the_same_arguments():
    assert inspect.signature(oxijax.gemm) == inspect.signature(oxijax.reference.gemm)
    assert oxijax.reference.gemm.__name__ == "gemm"


def test_arrays_of_other_kinds():
    """NumPy arrays are taken, and what knows how to become a JAX array, like nnx.Param."""

    class Parameter:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return self.value

    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    y = oxijax.gemm(a, Parameter(jnp.asarray(b)), alpha=np.asarray(2.0))  # pyright: ignore
    np.testing.assert_array_equal(y, 2 * a @ b)
    y = oxijax.gemm(a, b, alpha=Parameter(jnp.float32(2)))  # pyright: ignore
    np.testing.assert_array_equal(y, 2 * a @ b)
