"""How calls are split over devices.

Over Explicit mesh axes, which types name, a call is split by what its dimensions mean. Over Auto
axes XLA splits programs after they are lowered, and all that can be done here is to write them so
that it finds what is independent.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from oxijax._core import compat as _compat
from oxijax._core.fold import Dims

__all__ = ["batch_groups", "explicit_axes", "on_shards", "parts_along", "reshard_like"]


def batch_groups(ctx: Any, batch: Any) -> int:
    """Groups of a batch that XLA may give to different devices, in a lowering.

    Args:
      ctx: of the lowering.
      batch: a size, which may be symbolic.
    """
    devices = _compat.partitioned_devices(ctx)
    if isinstance(batch, int):
        return math.gcd(batch, devices) if batch else 1
    return devices if batch % devices == 0 else 1


def explicit_axes(arrays: Sequence[jax.Array]) -> frozenset[str]:
    """The Explicit mesh axes that some of the arrays are sharded over."""
    return frozenset(axis for array in arrays for entry in _spec(array) for axis in _axes(entry))


def parts_along(
    names: Collection[str], dims: Mapping[str, Dims], operands: Mapping[str, jax.Array]
) -> int:
    """How many devices share what the first operand has along the first of some dimensions.

    Args:
      names: of the dimensions.
      dims: the dimensions of each operand, by its name.
      operands: those that are present, of which some are sharded over Explicit axes.
    """
    for key, array in operands.items():
        for dim, entry in zip(dims[key].names, _spec(array), strict=True):
            if dim in names and entry is not None:
                sizes = _mesh_of([array]).shape
                return math.prod(sizes[axis] for axis in _axes(entry))
    return 1


def on_shards(
    bind: Callable[..., Sequence[jax.Array]],
    name: str,
    dims: Mapping[str, Dims],
    operands: Mapping[str, jax.Array],
    results: Sequence[Dims],
    parallel: Collection[str],
) -> list[jax.Array]:
    """An operation on operands that are sharded over Explicit mesh axes.

    Along a dimension that may be split, each device has its part, and results without it are summed
    over the devices. Along any other, operands are gathered first, and of results each device keeps
    its part. Results are sharded along the dimensions that operands are.

    Args:
      bind: the operation, on some parts.
      name: of the operation.
      dims: the dimensions of each operand, by its name.
      operands: those that are present.
      results: dimensions of each result.
      parallel: the dimensions along which it may be split.

    Raises:
      ValueError: operands are sharded over different axes along one dimension, or over one axis
        along different ones.
    """
    sharded, mesh = _sharded_dims(name, dims, operands), _mesh_of(operands.values())
    local = {dim: axes for dim, axes in sharded.items() if dim in parallel}
    _check_once(name, local)

    def spec_of(names: Sequence[str], among: Mapping[str, tuple[str, ...]]) -> PartitionSpec:
        return PartitionSpec(*(among.get(dim) for dim in names))

    def not_shared(dims: Dims, array: jax.Array) -> list[str]:
        """The dimensions, with empty names for those that the array is shared along."""
        return [
            "" if size == 1 and dim in dims.shareable else dim
            for dim, size in zip(dims.names, array.shape, strict=True)
        ]

    in_specs = [spec_of(not_shared(dims[key], array), local) for key, array in operands.items()]
    out_specs, sums = [], []
    for result in results:
        _check_once(name, {dim: sharded[dim] for dim in result.names if dim in sharded})
        out_specs.append(spec_of(result.names, local))
        summed = (local[dim] for dim in local if dim not in result.names)
        sums.append(tuple(axis for axes in summed for axis in axes))

    def on_parts(*parts: jax.Array) -> list[jax.Array]:
        outs = bind(*_compat.match_varying(*parts))
        return [lax.psum(out, axes) if axes else out for out, axes in zip(outs, sums, strict=True)]

    axes = {axis for axes in local.values() for axis in axes}
    if axes:
        on_parts = jax.shard_map(
            on_parts,
            mesh=mesh,
            in_specs=tuple(in_specs),
            out_specs=out_specs,
            axis_names=axes,
        )
    outs = on_parts(
        *(reshard(v, spec, mesh) for v, spec in zip(operands.values(), in_specs, strict=True))
    )
    return [
        reshard(out, spec_of(result.names, sharded), mesh)
        for out, result in zip(outs, results, strict=True)
    ]


def reshard_like(array: jax.Array, like: jax.Array) -> jax.Array:
    """An array with another one's sharding over Explicit mesh axes."""
    if not explicit_axes([array, like]):
        return array
    return reshard(array, _spec(like), _mesh_of([array, like]))


def reshard(array: jax.Array, spec: PartitionSpec, mesh: Any) -> jax.Array:
    """An array with a sharding over Explicit axes of a mesh; as it is if it has that."""
    same = [*map(_axes, spec)] == [*map(_axes, _spec(array))]
    return array if same else jax.sharding.reshard(array, NamedSharding(mesh, spec))


def _sharded_dims(
    name: str, dims: Mapping[str, Dims], operands: Mapping[str, jax.Array]
) -> dict[str, tuple[str, ...]]:
    """The mesh axes that each dimension is sharded over."""
    sharded: dict[str, tuple[str, ...]] = {}
    first: dict[str, str] = {}  # the operand that a dimension's axes were found at
    for key, array in operands.items():
        for dim, entry in zip(dims[key].names, _spec(array), strict=True):
            axes = _axes(entry)
            if axes and sharded.setdefault(dim, axes) != axes:
                raise ValueError(
                    f"{name}: {key} is sharded over {', '.join(axes)} along its dimension {dim}, "
                    f"and {first[dim]} over {', '.join(sharded[dim])}: use jax.sharding.reshard on "
                    "one of them"
                )
            if axes:
                first.setdefault(dim, key)
    return sharded


def _check_once(name: str, sharded: Mapping[str, tuple[str, ...]]) -> None:
    """Raises where an array, or a call, would be split over one axis along several dimensions."""
    along: dict[str, str] = {}
    for dim, axes in sharded.items():
        for axis in axes:
            if along.setdefault(axis, dim) != dim:
                raise ValueError(
                    f"{name}: operands are sharded over {axis} along the dimensions {along[axis]} "
                    f"and {dim}: use jax.sharding.reshard on those that have one of them"
                )


def _mesh_of(arrays: Iterable[jax.Array]) -> Any:
    """The mesh of the arrays that are sharded."""
    return next(jax.typeof(array).sharding.mesh for array in arrays if any(_spec(array)))


def _spec(array: Any) -> PartitionSpec:
    return jax.typeof(array).sharding.spec


def _axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
