"""The leading dimensions of a layer's arrays, as the one batch dimension that operators have."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from oxijax._core.primitive.explicit import explicit_axes, reshape

__all__ = ["Batch"]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Leading dimensions that are merged into one, and split again.

    Attributes:
      shape: the dimensions.
      order: in which they are merged: those that are sharded over Explicit mesh axes come first, so
        that the batch stays sharded like the first of them.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, array: jax.Array, ndim: int) -> "Batch":
        """The dimensions before the last `ndim` of an array."""
        shape = array.shape[: array.ndim - ndim]
        order = [*range(len(shape))]
        if explicit_axes([array]):
            spec = jax.typeof(array).sharding.spec
            order.sort(key=lambda i: spec[i] is None)
        return cls(shape, tuple(order))

    def merge(self, array: jax.Array) -> jax.Array:
        """An array [*shape, ...] as [batch, ...]."""
        count = len(self.shape)
        array = jnp.moveaxis(array, self.order, range(count))
        return reshape(array, (math.prod(self.shape), *array.shape[count:]))

    def split(self, array: jax.Array) -> jax.Array:
        """An array [batch, ...] as [*shape, ...]."""
        ordered = (self.shape[i] for i in self.order)
        array = reshape(array, (*ordered, *array.shape[1:]))
        return jnp.moveaxis(array, range(len(self.shape)), self.order)
