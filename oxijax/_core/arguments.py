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

from oxijax._core.sizes import is_known, require_at_least

__all__ = [
    "FLOAT_DTYPES",
    "PaddingLike",
    "Pads",
    "as_array",
    "check_choice",
    "check_same_dtype",
    "check_shape",
    "output_size",
    "read_groups",
    "read_padding",
    "read_pair",
    "read_precision",
    "to_array",
    "unchecked_output_size",
]

Pads = tuple[tuple[int, int], tuple[int, int]]
PaddingLike = str | int | Sequence[int | Sequence[int]]

FLOAT_DTYPES = tuple(jnp.dtype(t) for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64))


def to_array(name: str, value: Any) -> jax.Array:
    """`value`, which must be an array of some kind, as a JAX array."""
    if not (isinstance(value, jax.Array | np.ndarray) or hasattr(value, "__jax_array__")):
        raise TypeError(f"{name} must be an array, got {type(value).__name__}")
    return jnp.asarray(value)


def as_array(name: str, value: Any, ndim: int, why: str = "") -> jax.Array:
    """`value` as a JAX array of a supported floating dtype and `ndim` dimensions."""
    array = to_array(name, value)
    if array.dtype not in FLOAT_DTYPES:
        expected = ", ".join(dtype.name for dtype in FLOAT_DTYPES)
        raise TypeError(f"{name} must have one of the dtypes {expected}, got {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions{why}, got shape {array.shape}")
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


def read_groups(channels: int, in_group: int, out_channels: int, shape: tuple[int, ...]) -> int:
    """Groups, from x's channels and those of a weight of this shape: inputs of a group, outputs."""
    if channels % in_group:
        raise ValueError(
            f"weight must have a number of input channels that divides those of x, "
            f"{channels}, got {in_group} in shape {shape}"
        )
    groups = channels // in_group
    if out_channels % groups:
        raise ValueError(
            f"weight must have a number of output channels that is a multiple of the groups, "
            f"{groups} (C = {channels} over C/G = {in_group}), got {out_channels} in shape {shape}"
        )
    return groups


# Images with one spatial dimension are two-dimensional ones of height 1, here and everywhere
# else: `rank` is the number of dimensions that the caller sees.


def read_pair(name: str, value: Any, rank: int = 2) -> tuple[int, int]:
    """An int for all spatial dimensions, or one each; all >= 1, as (height, width)."""
    values = [value] * rank if _is_int(value) else value
    if not _is_sequence(values) or len(values) != rank or not all(map(_is_int, values)):
        form = "a pair of ints" if rank == 2 else "a sequence of one int"
        raise TypeError(f"{name} must be an int or {form}, got {value!r}")
    values = [operator.index(v) for v in values]
    if min(values) < 1:
        raise ValueError(f"{name} must be positive, got {value!r}")
    height, width = [1, *values][-2:]
    return height, width


def read_padding(
    value: Any,
    image_size: tuple[int, int],
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    rank: int = 2,
    negative: bool = False,
) -> Pads:
    """Zeros before and after height and width, from any form that `padding` may have.

    With `negative` they may be negative: so many pixels fewer.
    """
    if isinstance(value, str):
        check_choice("padding", value.upper(), ("SAME", "SAME_LOWER", "VALID"))
        window = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
        pads = lax.padtype_to_pads(image_size, window, strides, value.upper())
        if not is_known(*(size for pair in pads for size in pair)):
            raise ValueError(
                f"padding {value!r} depends on x's height and width, of which only {image_size} is "
                f"known: with strides {strides} give padding as numbers, or sizes that are "
                "multiples of the strides, such as 2*h"
            )
        height, width = pads
        return (int(height[0]), int(height[1])), (int(width[0]), int(width[1]))
    values = [value] * rank if _is_int(value) else value
    if _is_sequence(values) and len(values) == rank:
        pairs = [[v, v] if _is_int(v) else v for v in values]
        if all(_is_sequence(p) and len(p) == 2 and all(map(_is_int, p)) for p in pairs):
            pads = [(operator.index(before), operator.index(after)) for before, after in pairs]
            if not negative and min(map(min, pads)) < 0:
                raise ValueError(f"padding must not be negative, got {value!r}")
            height, width = [(0, 0), *pads][-2:]
            return height, width
    form = "for height and width an int or a pair (before, after) each"
    if rank == 1:
        form = "a sequence of one int or one pair (before, after)"
    raise TypeError(
        f"padding must be 'SAME', 'SAME_LOWER', 'VALID', an int, or {form}, got {value!r}"
    )


def unchecked_output_size(
    image_size: tuple[int, int],
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    padding: Pads,
    dilation: tuple[int, int],
) -> tuple[int, int]:
    """Height and width of a convolution's output, which were checked before."""
    height, width = (
        (size + sum(pads) - (d * (k - 1) + 1)) // stride + 1
        for size, pads, d, k, stride in zip(
            image_size, padding, dilation, kernel_size, strides, strict=True
        )
    )
    return height, width


def output_size(
    image_size: tuple[int, int],
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    padding: Pads,
    dilation: tuple[int, int],
    rank: int = 2,
) -> tuple[int, int]:
    """Height and width of a convolution's output; raises where one would be empty."""
    facts = (image_size, padding, kernel_size, dilation)
    image, pads, kernel, gaps = facts if rank == 2 else [fact[1] for fact in facts]
    message = (
        f"the output would have no extent: x with {'height and ' if rank == 2 else ''}width "
        f"{image}, padding {pads}, weight with kernel size {kernel} and dilation {gaps}"
    )
    size = unchecked_output_size(image_size, kernel_size, strides, padding, dilation)
    for extent in size:
        require_at_least(extent, 1, message)
    return size


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
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str)
