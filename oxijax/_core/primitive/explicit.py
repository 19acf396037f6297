"""Arrays over Explicit mesh axes, which their types name."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = [
    "axes_of",
    "explicit_axes",
    "has_explicit_mesh",
    "mesh_of",
    "reshape",
    "reshard",
    "reshard_like",
    "spec_of",
]


def spec_of(array: Any) -> PartitionSpec:
    """How an array is sharded over Explicit axes."""
    return jax.typeof(array).sharding.spec


def axes_of(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes in an entry of a `PartitionSpec`."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def explicit_axes(arrays: Sequence[jax.Array]) -> frozenset[str]:
    """The Explicit mesh axes that some of the arrays are sharded over."""
    return frozenset(
        axis for array in arrays for entry in spec_of(array) for axis in axes_of(entry)
    )


def mesh_of(arrays: Iterable[jax.Array]) -> Any:
    """The mesh of the arrays that are sharded."""
    return next(jax.typeof(array).sharding.mesh for array in arrays if any(spec_of(array)))


def has_explicit_mesh(array: jax.Array) -> bool:
    """Whether an array is on a mesh with Explicit axes, whether or not it is sharded over one.

    One that is not may be sharded along the mapped axis of a `jax.vmap`, which its type does not
    show.
    """
    return AxisType.Explicit in jax.typeof(array).sharding.mesh.axis_types


def reshape(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`jnp.reshape`, also where arrays are sharded over Explicit mesh axes.

    Dimensions that are merged or split keep the sharding of the first of them, if what it becomes
    can be divided so; along the others the array is gathered. JAX itself raises there, or asks how
    the result is to be sharded.
    """
    if array.shape == tuple(shape):
        return array
    if not has_explicit_mesh(array):
        return array.reshape(tuple(shape))
    mesh = jax.typeof(array).sharding.mesh
    # By the elements before it, a dimension starts where one of the new ones does. Of size 1 it
    # starts and ends there, and is not split.
    starts = {
        math.prod(array.shape[:i]): axes_of(entry)
        for i, entry in enumerate(spec_of(array))
        if array.shape[i] > 1
    }
    spec = []
    for i, size in enumerate(shape):
        axes = starts.get(math.prod(shape[:i]), ()) if size > 1 else ()
        parts = math.prod(mesh.shape[axis] for axis in axes)
        spec.append(axes if size % parts == 0 else ())
    return jnp.reshape(array, shape, out_sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def reshard_like(array: jax.Array, like: jax.Array) -> jax.Array:
    """An array with another one's sharding over Explicit mesh axes."""
    if not explicit_axes([array, like]):
        return array
    return reshard(array, spec_of(like), mesh_of([array, like]))


def reshard(array: jax.Array, spec: PartitionSpec, mesh: Any) -> jax.Array:
    """An array with a sharding over Explicit axes of a mesh; as it is if it has that."""
    same = [*map(axes_of, spec)] == [*map(axes_of, spec_of(array))]
    return array if same else jax.sharding.reshard(array, NamedSharding(mesh, spec))
