"""What the layers of deformable convolution share: reading their arguments, and their predictions.

A layer predicts offsets and modulation by one convolution, its predictor, whose channels are
OG*K*2 offsets and then, where there is a mask, OG*K logits.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import arguments as arguments
from oxijax._deform_conv import deform_conv

__all__ = [
    "deform_conv_nhwc",
    "predictor_channels",
    "read_divisor",
    "read_inputs",
    "read_padding",
    "read_real",
    "split_prediction",
]


def read_divisor(name: str, value: Any, **sizes: Any) -> tuple[int, ...]:
    """`value`, which has to divide the sizes, and these; they have the names of their arguments."""
    value = arguments.read_int(name, value)
    read = [arguments.read_int(key, size) for key, size in sizes.items()]
    for key, size in zip(sizes, read, strict=True):
        if size % value:
            raise ValueError(f"{name} must divide {key}, {size}, got {value}")
    return value, *read


def read_real(name: str, value: Any) -> jax.Array:
    """An array of any real dtype."""
    array = arguments.to_array(name, value)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, bool)):
        raise TypeError(f"{name} must be real, got dtype {array.dtype}")
    return array


def read_inputs(
    value: Any, in_features: int | None = None, feature_name: str = "in_features"
) -> jax.Array:
    """Images with any number of leading batch dimensions, of any real dtype."""
    inputs = read_real("inputs", value)
    if inputs.ndim < 3 or in_features not in (None, inputs.shape[-1]):
        features = feature_name if in_features is None else f"{feature_name} = {in_features}"
        raise ValueError(
            f"inputs must have shape (..., height, width, {features}), got {inputs.shape}"
        )
    return inputs


def read_padding(value: arguments.PaddingLike) -> str | arguments.Pads:
    """`padding` in its simplest form; the name of a rule stays one until images come."""
    one = (1, 1)
    pads = arguments.read_padding(value, one, one, one, one)
    return value.upper() if isinstance(value, str) else pads


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
