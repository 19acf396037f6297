"""Folds: a vmapped axis becomes part of the dimensions that a kernel already has."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._core.arguments.precision import accumulator
from oxijax._core.primitive.explicit import reshape

__all__ = ["Dims", "Fold", "Merge", "Shapes", "broadcast", "split"]

Config = Any  # as in `oxijax._core.primitive.kernel_primitive`
Shapes = Mapping[str, Sequence[int]]  # of operands, by name


@dataclasses.dataclass(frozen=True)
class Dims:
    """The named dimensions of an operand or result.

    Attributes:
      names: the names of all dimensions, in order.
      shareable: those along which the operand may have size 1 where others have more.
    """

    names: tuple[str, ...]
    shareable: frozenset[str]

    @staticmethod
    def parse(text: str) -> "Dims":
        """The dimensions in a text such as "g? m k": a question mark follows a shareable one."""
        names = text.split()
        shareable = frozenset(name.rstrip("?") for name in names if name.endswith("?"))
        return Dims(tuple(name.rstrip("?") for name in names), shareable)

    def unshared(self, shape: Sequence[Any]) -> list[str]:
        """The names, empty for the dimensions along which an array of this shape is shared."""
        return [
            "" if size == 1 and dim in self.shareable else dim
            for dim, size in zip(self.names, shape, strict=True)
        ]

    def merged(self, names: str, into: str) -> "Dims":
        """With one name in place of several, of which an array has one at most."""
        return Dims(tuple(into if n in names.split() else n for n in self.names), self.shareable)


@dataclasses.dataclass(frozen=True)
class Fold:
    """A way to absorb a vmapped axis into dimensions that a kernel already has.

    It fits where every mapped operand and every result has one of `dims`. The mapped axis
    becomes the major part of that dimension; an operand that is not mapped is repeated
    where it has one of `dims`, and shared where it has none or is shared along it already.

    Attributes:
      dims: names of the dimensions, for example "c d m o".
      fits: whether the fold means the same as the vmap, for this configuration.
      update: the configuration of the folded call, from the present one and the size of
        the mapped axis.
      part: splits a call over devices along some of `dims` together: called with the
        configuration, the shapes of the operands that are present and a number of parts, returns
        the names of those dimensions, and the configuration of a part. None if the call cannot
        be split.
    """

    dims: str
    fits: Callable[[Config], bool] = lambda config: True
    update: Callable[[Config, int], Config] = lambda config, size: config
    part: Callable[[Config, Shapes, int], tuple[str, Config] | None] = (
        lambda config, shapes, parts: None
    )

    def has_place(self, dims: Dims) -> bool:
        """Whether an array has a dimension that absorbs the axis."""
        return not set(self.dims.split()).isdisjoint(dims.names)

    def position(self, dims: Dims) -> int:
        """Which of an array's dimensions absorbs the axis."""
        return next(i for i, dim in enumerate(dims.names) if dim in self.dims.split())

    def merge(
        self, dims: Dims, shape: Sequence[int], axis: int | None, sizes: Mapping[str, int]
    ) -> "Merge":
        """What the fold does to one operand.

        Args:
          dims: the dims of the operand.
          shape: the shape of the operand, without the mapped axis.
          axis: the mapped axis; None if the operand is not mapped.
          sizes: the sizes of all dimensions.
        """
        if not self.has_place(dims):
            return Merge(None, axis, 1, repeats=False)
        position = self.position(dims)
        extent = sizes[dims.names[position]]
        shared = dims.names[position] in dims.shareable and shape[position] == 1
        if axis is None:
            return Merge(None if shared else position, axis, extent, repeats=not shared)
        return Merge(position, axis, extent, repeats=shared and extent != 1)


@dataclasses.dataclass(frozen=True)
class Merge:
    """How one operand takes part in a fold.

    Attributes:
      position: the position of the dimension that absorbs the axis; None if the operand stays as it
        is.
      axis: the mapped axis, or None.
      extent: the size of the dimension for each example.
      repeats: whether the operand is repeated: for each example, or for each of `extent`.
    """

    position: int | None
    axis: int | None
    extent: int
    repeats: bool

    def __call__(self, array: jax.Array, size: int) -> jax.Array:
        """The operand of the folded call, for a mapped axis of this size."""
        at = self.position
        if at is None:
            return array
        if self.axis is None:
            array = jnp.expand_dims(array, at)
        else:
            array = jnp.moveaxis(array, self.axis, at)
        head, tail = array.shape[:at], array.shape[at + 2 :]
        if self.repeats:
            array = broadcast(array, (*head, size, self.extent, *tail))
        return reshape(array, (*head, size * self.extent, *tail))


def split(array: jax.Array, position: int, size: int) -> jax.Array:
    """A folded call's result, with the mapped axis before the dimension that absorbed it."""
    head, extent, tail = array.shape[:position], array.shape[position], array.shape[position + 1 :]
    return reshape(array, (*head, size, extent // size, *tail))


def broadcast(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`jnp.broadcast_to`, with gradients that are summed in float32 at least."""
    if array.shape == tuple(shape):
        return array
    wide = array
    if jnp.issubdtype(array.dtype, jnp.floating):
        wide = array.astype(accumulator(array))
    return jnp.broadcast_to(wide, shape).astype(array.dtype)
