"""Shared parts of the tests of conv."""

import functools
from typing import Any

import jax

import oxijax
from oxijax.testing import CONV_CASES, ConvCase
from support.conv_reference import float64_results
from support.helpers import assert_close, relative_error
from support.places import PRECISIONS, Place

NAMES = ("x", "weight", "bias")
KERNELS = ("conv_forward", "conv_backward_input", "conv_backward_weight")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def operands_of(case: str | ConvCase, dtype="float32") -> tuple[Any, ...]:
    """X, weight and bias, or None, as JAX arrays, rounded by numpy: JAX compiles casts."""
    case = CONV_CASES[case] if isinstance(case, str) else case
    return tuple(None if a is None else jax.device_put(a.astype(dtype)) for a in case.operands())


def lax_conv(case: ConvCase, x, weight, bias=None) -> jax.Array:
    """The layer by `jax.lax`, in its own data format."""
    spatial = "HW"[-len(case.kernel_size) :]
    weight_format = f"OI{spatial}" if case.channels_first else f"{spatial}IO"
    y = jax.lax.conv_general_dilated(
        x,
        weight,
        case.strides,
        case.pads,
        rhs_dilation=case.dilation,
        dimension_numbers=(case.data_format, weight_format, case.data_format),
        feature_group_count=case.groups,
        precision="highest",
    )
    if bias is None:
        return y
    ones = [1] * len(spatial)
    return y + bias.reshape(*([1, -1, *ones] if case.channels_first else [1, *ones, -1]))


def check(case: ConvCase, precision: str, place: Place) -> dict[str, float]:
    """Compares output and gradients with numpy's in float64, on the same operands.

    Args:
      case: the layer.
      precision: of `PRECISIONS`.
      place: where the kernels run.

    Returns:
      The relative error of each.
    """
    dtype, precision_, tolerance = PRECISIONS[precision]
    operands = [None if v is None else v.astype(dtype) for v in case.operands()]
    grad_y = case.grad_y().astype(dtype)
    expected = float64_results(case, operands, grad_y)
    ours = functools.partial(oxijax.conv, precision=precision_, **case.options)
    y, gradients = place.values_and_gradients(ours, operands, grad_y, KERNELS)
    results = {"y": y, **{f"d{n}": v for n, v in zip(NAMES, gradients, strict=True)}}
    for name, value in expected.items():
        assert results[name].dtype == dtype
        assert_close(results[name], value, tolerance, name)
    return {name: relative_error(results[name], value) for name, value in expected.items()}
