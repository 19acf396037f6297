"""The plain convolutions in layers, which also run over Explicit mesh axes."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from oxijax._conv.general_dilated import conv_general_dilated as general_dilated
from oxijax._core.primitive.explicit import has_explicit_mesh
from oxijax._layers.batch import Batch

__all__ = ["conv_general_dilated", "over_batches"]


def conv_general_dilated(lhs: jax.Array, rhs: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    """`jax.lax.conv_general_dilated`, or `oxijax.conv_general_dilated` on an Explicit mesh.

    JAX's own has no rule there for most ways of sharding, nor for its vmap.
    """
    if has_explicit_mesh(lhs):
        return general_dilated(lhs, rhs, *args, **kwargs, implementation="xla")
    return lax.conv_general_dilated(lhs, rhs, *args, **kwargs)


def over_batches(conv: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A convolution of images [N, H, W, C] as one of images with any leading dimensions."""

    def convolve(images: jax.Array) -> jax.Array:
        batch = Batch.of(images, 3)
        return batch.split(conv(batch.merge(images)))

    return convolve
