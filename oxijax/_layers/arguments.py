"""Arguments of layers: those whose names differ between libraries come with their names."""

from typing import Any

import jax
import jax.numpy as jnp

from oxijax._core.arguments import checks

__all__ = ["Named", "as_images", "as_real_array", "check_shape", "parse_divisor"]

Named = tuple[str, Any]  # what a library calls an argument, and the argument


def parse_divisor(name: str, value: Any, *sizes: Named) -> tuple[int, ...]:
    """`value`, which has to divide sizes, and the sizes."""
    value = checks.parse_int(name, value)
    parsed = [(each, checks.parse_int(each, size)) for each, size in sizes]
    for each, size in parsed:
        if size % value:
            raise ValueError(f"{name} must divide {each}, {size}, got {value}")
    return value, *(size for _, size in parsed)


def as_real_array(name: str, value: Any) -> jax.Array:
    """`value` as a JAX array of any real dtype."""
    array = checks.to_array(name, value)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, bool)):
        raise TypeError(f"{name} must be real, got dtype {array.dtype}")
    return array


def as_images(
    name: str, value: Any, features: int | None = None, features_name: str = "in_features"
) -> jax.Array:
    """`value` as real images [..., height, width, features] with any batch dimensions."""
    images = as_real_array(name, value)
    if images.ndim < 3 or features not in (None, images.shape[-1]):
        last = features_name if features is None else f"{features_name} = {features}"
        raise ValueError(f"{name} must have shape (..., height, width, {last}), got {images.shape}")
    return images


def check_shape(name: str, array: jax.Array, names: str, *shapes: tuple[int, ...]) -> None:
    """Checks that an array has one of some shapes, whose dimensions have names."""
    if array.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{name} must have shape ({names}) = {expected}, got {array.shape}")
