"""Shared parts of the tests of gemm."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import oxijax
import ptx
from oxijax.testing import GEMM_CASES, GemmCase
from ptx.kernels.gemm import choose
from support.helpers import assert_close, relative_error
from support.places import PRECISIONS, Place

NAMES = ("a", "b", "c", "alpha", "beta")
EVERY = (0, 1, 2, 3, 4)
LAYOUTS = list(itertools.product([False, True], repeat=2))
TOLERANCE = 1e-5  # float32, sums in another order
DTYPES = ("float64", "float32", "bfloat16", "float16")


def operands_of(case: str | GemmCase, dtype="float32") -> dict[str, jax.Array]:
    """The operands as JAX arrays, rounded by numpy; alpha and beta in float32 at least."""
    case = GEMM_CASES[case] if isinstance(case, str) else case
    wide = jnp.float64 if dtype == "float64" else jnp.float32
    return {
        name: jax.device_put(value.astype(dtype if value.ndim else wide))
        for name, value in case.operands().items()
    }


def function_of(case: GemmCase, names, function: Callable = oxijax.gemm, **options) -> Callable:
    """Gemm for this case, of the operands with these names, in order."""

    def positional(*operands):
        return function(**dict(zip(names, operands, strict=True)), **case.options, **options)

    return positional


def matmul(a, b, c=None, *, alpha=1.0, beta=0.0, transpose_a=False, transpose_b=False, strategy):
    """The product by `jnp.matmul`, without regard to what a GPU would do."""
    a = a.mT if transpose_a else a
    b = b.mT if transpose_b else b
    y = alpha * jnp.matmul(a, b, precision="highest")
    if c is None:
        return y
    shape = jnp.broadcast_shapes(y.shape, c.shape)
    return jnp.broadcast_to(y, shape) + jnp.broadcast_to(beta * c, shape)


def expected(case: GemmCase, operands: dict[str, Any], grad_y) -> dict[str, np.ndarray]:
    """Value and gradients by numpy, in float64, of the same, already rounded, operands.

    Gradients to alpha and beta are not summed: they are as of factors for each element.
    """
    wide = {name: np.asarray(value, np.float64) for name, value in operands.items()}
    grad_y = np.asarray(grad_y, np.float64)
    a = wide["a"].swapaxes(-1, -2) if case.transpose_a else wide["a"]
    b = wide["b"].swapaxes(-1, -2) if case.transpose_b else wide["b"]
    alpha, beta = wide.get("alpha", case.alpha), wide.get("beta", case.beta)
    product = a @ b
    grad_a, grad_b = alpha * grad_y @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ (alpha * grad_y)
    results = {
        "y": alpha * product,
        "da": grad_a.swapaxes(-1, -2) if case.transpose_a else grad_a,
        "db": grad_b.swapaxes(-1, -2) if case.transpose_b else grad_b,
    }
    if "c" in wide:
        results |= {"y": results["y"] + beta * wide["c"], "dc": beta * grad_y}
    factors = {"dalpha": grad_y * product}
    if "beta" in wide:
        factors["dbeta"] = grad_y * wide["c"]
    for name in ("da", "db", "dc"):
        if name in results:
            results[name] = _summed_to(results[name], wide[name[1:]].shape)
    return results | {name: v for name, v in factors.items() if name[1:] in wide}


def _summed_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient to an operand of this shape, from that to what it was broadcast to."""
    summed = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    ones = tuple(i for i, n in enumerate(shape) if n == 1 < summed.shape[i])
    return summed.sum(axis=ones, keepdims=True)


def compare(operands, y, gradients, wanted, tolerance: float) -> dict[str, float]:
    """Compares y and gradients with what is `expected`, and their dtypes.

    Returns:
      The error of each: relative Frobenius norms. A sum is as exact as its terms are.
    """
    results = {"y": y, **{f"d{n}": g for n, g in zip(operands, gradients, strict=True)}}
    errors = {}
    for name, value in wanted.items():
        result = results[name]
        assert result.dtype == operands[name[1:] or "a"].dtype, name
        if result.shape == value.shape:
            errors[name] = relative_error(result, value)
        else:
            scale = np.linalg.norm(value)
            error = abs(np.asarray(result, np.float64) - value.sum())
            errors[name] = float(error / (scale if scale else 1))
        assert errors[name] <= tolerance, f"{name}: error {errors[name]:.3g} > {tolerance:.3g}"
    return errors


def check(case: GemmCase, precision: str, place: Place) -> dict[str, float]:
    """Compares result and gradients, all by kernels, with `expected`.

    Args:
      case: the product.
      precision: of `PRECISIONS`.
      place: where the kernels run.

    Returns:
      The relative error of each.
    """
    dtype, precision_, tolerance = PRECISIONS[precision]
    factor = np.promote_types(dtype, np.float32)
    operands = {n: v.astype(dtype if v.ndim else factor) for n, v in case.operands().items()}
    grad_y = case.grad_y().astype(dtype)
    wanted = expected(case, operands, grad_y)
    function = function_of(case, operands, precision=precision_)
    # The product, its gradients to a and b, and for alpha's the product without alpha, which the
    # first one is already where parts are summed before alpha is multiplied with.
    kernel = choose(case.m, case.n, case.k, float_type=ptx.f32, strategy=case.strategy)
    again = "alpha" in operands and kernel.parts is None
    kernels = ["gemm"] * (4 if again else 3)
    y, gradients = place.values_and_gradients(function, operands.values(), grad_y, kernels)
    return compare(operands, y, gradients, wanted, tolerance)


def product(transpose_a=False, transpose_b=False, function=oxijax.gemm) -> Callable:
    """Gemm of five operands, in order."""

    def run(a, b, c, alpha, beta):
        return function(
            a, b, c, alpha=alpha, beta=beta, transpose_a=transpose_a, transpose_b=transpose_b,
            strategy="auto",
        )  # fmt: skip

    return run


def five(transpose_a=False, transpose_b=False, batches=((), (), ())) -> tuple[jax.Array, ...]:
    """A, b, c, alpha and beta, for `product`; batches: leading dimensions of a, b and c."""
    layout = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    factors = {"alpha": 0.75, "beta": -1.5, "traced": True}
    case = GemmCase("five", 5, 4, 3, *batches, **layout, **factors)
    return tuple(operands_of(case).values())


def squares(function: Callable) -> Callable:
    """A loss whose derivatives of any order differ."""
    return lambda *operands: jnp.sum(jnp.sin(function(*operands)) ** 2)


def assert_trees_close(actual, expected):
    jax.tree.map(lambda a, e: assert_close(a, e, TOLERANCE), actual, expected)


def variants(operand, count=3) -> np.ndarray:
    """Operands that differ, along a new leading axis."""
    operand = np.asarray(operand)
    return np.stack([operand * (1 - 0.03 * i) for i in range(count)])


def equations_of(function, *operands):
    """All binds of the primitive in a function's jaxpr."""

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "gemm":
                yield eqn
            for value in eqn.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from walk(inner)

    return list(walk(jax.make_jaxpr(function)(*operands).jaxpr))
