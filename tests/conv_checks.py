"""What the tests of conv share."""

from typing import Any

import jax
import jax.numpy as jnp

from oxijax.testing import CONV_CASES, ConvCase

NAMES = ("x", "weight", "bias")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def operands_of(case: str | ConvCase, dtype="float32") -> tuple[Any, ...]:
    """X, weight and bias, or None, as JAX arrays."""
    case = CONV_CASES[case] if isinstance(case, str) else case
    return tuple(None if a is None else jnp.asarray(a, dtype) for a in case.operands())


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
    return y + (bias.reshape(-1, *[1] * len(spatial)) if case.channels_first else bias)
