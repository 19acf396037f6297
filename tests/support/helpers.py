"""What several test files use."""

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


def deform_conv_loops(x, offset, weight, mask, bias, *, strides, pads, dilation) -> np.ndarray:
    """Deformable convolution as its formula says, NHWC, in float64, one sample at a time."""
    n_, h_, w_, c_ = x.shape
    kh, kw, in_group, out_channels = weight.shape
    _, ho, wo, offset_channels = offset.shape
    offset_groups = offset_channels // (2 * kh * kw)
    groups = c_ // in_group
    y = np.zeros((n_, ho, wo, out_channels))
    group_of = np.arange(c_) // in_group
    for n, p, q in np.ndindex(n_, ho, wo):
        for g, i, j in np.ndindex(offset_groups, kh, kw):
            sample = (g * kh + i) * kw + j
            vertical = p * strides[0] - pads[0][0] + i * dilation[0] + offset[n, p, q, 2 * sample]
            horizontal = (
                q * strides[1] - pads[1][0] + j * dilation[1] + offset[n, p, q, 2 * sample + 1]
            )
            top, left = int(np.floor(vertical)), int(np.floor(horizontal))
            m = 1.0 if mask is None else mask[n, p, q, sample]
            for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
                if 0 <= row < h_ and 0 <= column < w_:
                    overlap = (1 - abs(vertical - row)) * (1 - abs(horizontal - column))
                    for c in np.arange(c_).reshape(offset_groups, -1)[g]:
                        first = group_of[c] * (out_channels // groups)
                        outs = slice(first, first + out_channels // groups)
                        kernel = weight[i, j, c % in_group, outs]
                        y[n, p, q, outs] += m * overlap * x[n, row, column, c] * kernel
    return y if bias is None else y + bias
