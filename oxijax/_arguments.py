"""Reading and checking the arguments that convolution-like functions share.

Everything here raises at trace time a `ValueError` or `TypeError` that names the argument,
what was expected and what came.
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = [
    "FLOAT_DTYPES",
    "PaddingLike",
    "Pads",
    "as_array",
    "check_choice",
    "check_same_dtype",
    "check_shape",
    "output_size",
    "read_padding",
    "read_pair",
    "read_precision",
]

Pads = tuple[tuple[int, int], tuple[int, int]]
PaddingLike = str | int | Sequence[int | Sequence[int]]

FLOAT_DTYPES = tuple(jnp.dtype(t) for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64))


def as_array(name: str, value: Any, ndim: int) -> jax.Array:
    """`value` as a JAX array of a supported floating dtype and `ndim` dimensions."""
    if not (isinstance(value, jax.Array | np.ndarray) or hasattr(value, "__jax_array__")):
        raise TypeError(f"{name} must be an array, got {type(value).__name__}")
    array = jnp.asarray(value)
    if array.dtype not in FLOAT_DTYPES:
        expected = ", ".join(dtype.name for dtype in FLOAT_DTYPES)
        raise TypeError(f"{name} must have one of the dtypes {expected}, got {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {array.shape}")
    return array


def check_same_dtype(name: str, array: jax.Array, other_name: str, other: jax.Array) -> None:
    if array.dtype != other.dtype:
        raise TypeError(
            f"{name} must have the dtype of {other_name}, {other.dtype}, got {array.dtype}"
        )


def check_shape(
    name: str, array: jax.Array, names: Sequence[str], expected: Sequence[int | str]
) -> None:
    """Checks a shape against sizes; a string stands for a size that was checked elsewhere."""
    if any(isinstance(e, int) and s != e for s, e in zip(array.shape, expected, strict=True)):
        raise ValueError(
            f"{name} must have shape ({', '.join(names)}) = "
            f"({', '.join(map(str, expected))}), got {array.shape}"
        )


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def read_pair(name: str, value: Any) -> tuple[int, int]:
    """An int for both spatial dimensions, or one each for height and width; all >= 1."""
    values = [value, value] if _is_int(value) else value
    if not _is_sequence(values) or len(values) != 2 or not all(map(_is_int, values)):
        raise TypeError(f"{name} must be an int or a pair of ints, got {value!r}")
    height, width = map(operator.index, values)
    if min(height, width) < 1:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return height, width


def read_padding(
    value: Any,
    image_size: tuple[int, int],
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
) -> Pads:
    """Zeros before and after height and width, from any form that `padding` may have."""
    if isinstance(value, str):
        check_choice("padding", value.upper(), ("SAME", "SAME_LOWER", "VALID"))
        window = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
        height, width = lax.padtype_to_pads(image_size, window, strides, value.upper())
        return (int(height[0]), int(height[1])), (int(width[0]), int(width[1]))
    values = [value, value] if _is_int(value) else value
    if _is_sequence(values) and len(values) == 2:
        pairs = [[v, v] if _is_int(v) else v for v in values]
        if all(_is_sequence(p) and len(p) == 2 and all(map(_is_int, p)) for p in pairs):
            (top, bottom), (left, right) = (map(operator.index, p) for p in pairs)
            if min(top, bottom, left, right) < 0:
                raise ValueError(f"padding must not be negative, got {value!r}")
            return (top, bottom), (left, right)
    raise TypeError(
        "padding must be 'SAME', 'SAME_LOWER', 'VALID', an int, or for height and width "
        f"an int or a pair (before, after) each, got {value!r}"
    )


def output_size(
    image_size: tuple[int, int],
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    padding: Pads,
    dilation: tuple[int, int],
) -> tuple[int, int]:
    """Height and width of a convolution's output; raises where one would be empty."""
    height, width = (
        (size + sum(pads) - (d * (k - 1) + 1)) // stride + 1
        for size, pads, d, k, stride in zip(
            image_size, padding, dilation, kernel_size, strides, strict=True
        )
    )
    if min(height, width) < 1:
        raise ValueError(
            f"the output would have no extent: x with height and width {image_size}, padding "
            f"{padding}, weight with kernel size {kernel_size} and dilation {dilation}"
        )
    return height, width


def read_precision(value: Any) -> lax.Precision:
    """`precision` as one value; None is JAX's `default_matmul_precision`."""
    if value is None:
        value = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    try:
        return lax.Precision(value)
    except ValueError:
        names = ", ".join(repr(p.name.lower()) for p in lax.Precision)
        raise ValueError(
            f"precision must be None, a jax.lax.Precision or one of {names}, got {value!r}"
        ) from None


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
