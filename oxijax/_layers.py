"""What the layers of all libraries share: reading their arguments, and their predictions.

A layer predicts offsets and modulation by one convolution, its predictor, whose channels are
OG*K*2 offsets and then, where there is a mask, OG*K logits.
"""

import contextlib
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import arguments as arguments
from oxijax._deform_conv import deform_conv

__all__ = [
    "check_divides",
    "check_inputs",
    "deform_conv_nhwc",
    "predictor_channels",
    "read_float_dtype",
    "read_padding",
    "split_prediction",
]


def check_divides(name: str, value: Any, **sizes: Any) -> None:
    """Checks that `value` divides the sizes, which have the names of their arguments."""
    for key, number in {name: value, **sizes}.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{key} must be an int, got {number!r}")
        if number < 1:
            raise ValueError(f"{key} must be positive, got {number}")
    for key, size in sizes.items():
        if size % value:
            raise ValueError(f"{name} must divide {key}, {size}, got {value}")


def check_inputs(inputs: jax.Array, in_features: int | None = None) -> None:
    """Checks images with any number of leading batch dimensions."""
    if inputs.ndim < 3 or in_features not in (None, inputs.shape[-1]):
        features = "in_features" if in_features is None else f"in_features = {in_features}"
        raise ValueError(
            f"inputs must have shape (..., height, width, {features}), got {inputs.shape}"
        )


def read_padding(value: arguments.PaddingLike) -> str | arguments.Pads:
    """`padding` in its simplest form; the name of a rule stays one until images come."""
    one = (1, 1)
    pads = arguments.read_padding(value, one, one, one, one)
    return value.upper() if isinstance(value, str) else pads


def read_float_dtype(name: str, value: Any) -> jnp.dtype:
    dtype = None
    if value is not None:  # which NumPy takes for float64
        with contextlib.suppress(TypeError):
            dtype = jnp.dtype(value)
    if dtype is None or dtype not in arguments.FLOAT_DTYPES:
        expected = ", ".join(dtype.name for dtype in arguments.FLOAT_DTYPES)
        raise TypeError(f"{name} must be one of the dtypes {expected}, got {value!r}")
    return dtype


def predictor_channels(kernel_size: tuple[int, int], offset_groups: int, use_mask: bool) -> int:
    return offset_groups * math.prod(kernel_size) * (3 if use_mask else 2)


def split_prediction(
    prediction: jax.Array, use_mask: bool, axis: int
) -> tuple[jax.Array, jax.Array | None]:
    """The predictor's output as `offset` and `mask` of `deform_conv`.

    The paper has sigmoid(logit) for a mask. Twice that is exactly 1 at a logit of 0, so that
    a predictor of zeros leaves a plain convolution as it is.
    """
    if not use_mask:
        return prediction, None
    channels = prediction.shape[axis] // 3
    offset, logits = jnp.split(prediction, [2 * channels], axis)
    return offset, 2 * jax.nn.sigmoid(logits)


def deform_conv_nhwc(
    inputs: jax.Array,
    prediction: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    *,
    use_mask: bool,
    strides: tuple[int, int],
    padding: str | arguments.Pads,
    dilation: tuple[int, int],
    precision: lax.PrecisionLike,
) -> jax.Array:
    """`deform_conv` with the predictor's output, for any number of leading batch dimensions."""
    batch = inputs.shape[:-3]

    def flatten(images: jax.Array) -> jax.Array:
        return images.reshape(math.prod(batch), *images.shape[-3:])

    offset, mask = split_prediction(prediction, use_mask, axis=-1)
    y = deform_conv(
        flatten(inputs),
        flatten(offset),
        kernel,
        None if mask is None else flatten(mask),
        bias,
        strides=strides,
        padding=padding,
        dilation=dilation,
        precision=precision,
    )
    return y.reshape(*batch, *y.shape[1:])
