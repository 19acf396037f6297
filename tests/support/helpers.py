"""Comparisons, and programs of a function and its gradients."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

NAMES = ("x", "offset", "weight", "mask", "bias")

# Relative Frobenius norms against float64.
TOLERANCES = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def relative_error(actual, expected) -> float:
    """Frobenius norm of the difference over that of the expected; NaN where one is NaN."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    scale = np.linalg.norm(expected)
    return float(np.linalg.norm(actual - expected) / (scale if scale else 1))


def assert_close(actual, expected, tolerance: float, what: str = "") -> None:
    error = relative_error(actual, expected)
    assert error <= tolerance, f"{what}: relative error {error:.3g} > {tolerance:.3g}"


def program_of(function: Callable) -> Any:
    """The jitted function (operands, grad_y) -> output, gradient of each operand or None.

    It is the same one for the same function, or for one that is the same `functools.partial`, so
    that JAX compiles it once for all operands of the same shapes.
    """
    parts = function, (), ()
    if isinstance(function, functools.partial):
        parts = function.func, function.args, tuple(sorted(function.keywords.items()))
    try:
        return _program_of(*parts)
    except TypeError:  # an option is no key: a list or an array
        return _program_of.__wrapped__(*parts)


@functools.lru_cache(maxsize=32)
def _program_of(function: Callable, arguments: tuple, keywords: tuple) -> Any:
    function = functools.partial(function, *arguments, **dict(keywords))

    @jax.jit
    def run(operands, grad_y):
        y, vjp = jax.vjp(function, *operands)
        return y, vjp(grad_y)

    return run


def values_and_gradients(
    function: Callable, operands, grad_y, names: Sequence[str] = NAMES
) -> dict[str, jax.Array]:
    """The output "y" and the gradient of each operand that is not None, under jit."""
    y, gradients = program_of(function)(tuple(operands), grad_y)
    present = {
        f"d{name}": gradient
        for name, operand, gradient in zip(names, operands, gradients, strict=True)
        if operand is not None
    }
    return {"y": y, **present}


def dtypes_of_sums(function: Callable, *operands) -> set[str]:
    """The dtypes in which a function adds up elements, as its jaxpr has it."""
    sums = [e for e in jax.make_jaxpr(function)(*operands).eqns if e.primitive.name == "reduce_sum"]
    arrays = [(eqn.invars[0].aval, eqn.outvars[0].aval) for eqn in sums]
    return {before.dtype.name for before, after in arrays if before.size > after.size}


def astype(operands, dtype, offset_dtype=None) -> tuple[Any, ...]:
    """The operands in a dtype, in numpy; offset and mask in another if one is given.

    JAX would compile a program for each shape and dtype.

    Offsets over 65504 become infinite in float16, which is fine: they read zeros all the same.
    """
    dtypes = [dtype, offset_dtype or dtype, dtype, offset_dtype or dtype, dtype]
    with np.errstate(over="ignore"):
        return tuple(
            None if a is None else np.asarray(a).astype(d)
            for a, d in zip(operands, dtypes, strict=True)
        )
