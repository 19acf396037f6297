"""Calls split over devices.

A call is split by what its dimensions mean: over Explicit mesh axes, which types name, when it is
traced, and over Auto axes when XLA compiles the program and asks. Where it does not ask, XLA is
left to find what is independent, and all that can be done here is to write programs so that it can.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from oxijax._core import compat as _compat
from oxijax._core.primitive.explicit import axes_of, mesh_of, reshard, spec_of
from oxijax._core.primitive.fold import Dims, Fold

__all__ = [
    "SplitCall",
    "lower_split",
    "on_shards",
]


@dataclasses.dataclass(frozen=True)
class SplitCall:
    """A call of a primitive, as what can be split.

    Attributes:
      config: the primitive's configuration, on one device.
      names: the operands' names.
      operands: the dimensions of each operand.
      results: the dimensions of each result.
      parallel: the dimensions along which the call may be split; results that lack one of them are
        then summed.
      folds: the primitive's folds, of which one may split several dimensions together.
    """

    config: Any
    names: Sequence[str]
    operands: Sequence[Dims]
    results: Sequence[Dims]
    parallel: Sequence[str]
    folds: Sequence[Fold] = dataclasses.field(repr=False)  # as `lower_split` identifies calls by it

    def joint(
        self,
        shapes: Sequence[Sequence[int]],
        count_shards: Callable[[Sequence[str]], int],
    ) -> "SplitCall | None":
        """The call in which several dimensions are split together, as channels and their groups.

        Args:
          shapes: the operands' shapes.
          count_shards: called with names of dimensions, returns into how many shards these are to
            be split.
        """
        for fold in self.folds:
            shards = count_shards(fold.dims.split())
            sizes = dict(zip(self.names, shapes, strict=True))
            shard = fold.part(self.config, sizes, shards) if shards > 1 else None
            if shard is not None:
                together, config = shard
                operands, results = (
                    [dims.merged(together, _CHANNELS) for dims in each]
                    for each in (self.operands, self.results)
                )
                divides = all(
                    size % shards == 0
                    for dims, shape in zip(operands, shapes, strict=True)
                    for dim, size in zip(dims.names, shape, strict=True)
                    if dim == _CHANNELS
                )
                if not divides:
                    return None
                return dataclasses.replace(
                    self,
                    config=config,
                    operands=operands,
                    results=results,
                    parallel=[*self.parallel, _CHANNELS],
                    folds=(),  # a shard may have one group, whose channels are not split again
                )
        return None

    def dims_of(self, shapes: Sequence[Sequence[int]]) -> list[list[str]]:
        """The dimensions of all operands and results, empty where an operand is shared."""
        every = [*self.operands, *self.results]
        return [dims.unshared(shape) for dims, shape in zip(every, shapes, strict=True)]


_CHANNELS = "channels"  # the name of all dimensions that a fold splits together


def on_shards(
    bind: Callable[..., Sequence[jax.Array]],
    name: str,
    arrays: Sequence[jax.Array],
    call: SplitCall,
) -> list[jax.Array]:
    """An operation on operands that are sharded over Explicit mesh axes.

    Along a dimension that may be split, each device has its part, and results without it are summed
    over the devices. Along any other, operands are gathered first, and of results each device keeps
    its part. Results are sharded along the dimensions that operands are.

    Args:
      bind: the operation: called with parts of the arrays and the configuration for them, `config`.
      name: the operation's name.
      arrays: the operands.
      call: the whole call.

    Raises:
      ValueError: operands are sharded over different axes along one dimension, or over one axis
        along different ones.
    """
    mesh, specs = mesh_of(arrays), [spec_of(array) for array in arrays]
    shapes = [array.shape for array in arrays]
    call = _joint_along(call, shapes, specs, mesh) or call
    sharded = _sharded_dims(name, specs, call)
    local = {dim: axes for dim, axes in sharded.items() if dim in call.parallel}
    _check_once(name, local)
    for result in call.results:
        _check_once(name, {dim: sharded[dim] for dim in result.names if dim in sharded})
    split = _partition(functools.partial(bind, config=call.config), local, call, shapes)
    function, axes = split.function, {axis for axes in local.values() for axis in axes}
    if axes:
        function = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=tuple(split.operands),
            out_specs=split.results,
            axis_names=axes,
        )
    outs = function(
        *(reshard(v, spec, mesh) for v, spec in zip(arrays, split.operands, strict=True))
    )
    return [
        reshard(out, _spec_along(result.names, sharded), mesh)
        for out, result in zip(outs, call.results, strict=True)
    ]


def _joint_along(
    call: SplitCall, shapes: Sequence[Sequence[int]], specs: Sequence[PartitionSpec], mesh: Any
) -> SplitCall | None:
    """`call.joint`, with as many shards as the first operand has along one of the dimensions."""

    def count_shards(names: Sequence[str]) -> int:
        for dims, spec in zip(call.operands, specs, strict=True):
            for dim, entry in zip(dims.names, spec, strict=True):
                if dim in names and axes_of(entry):
                    return math.prod(mesh.shape[axis] for axis in axes_of(entry))
        return 1

    return call.joint(shapes, count_shards)


def _partition(
    bind: Callable[..., Sequence[jax.Array]],
    local: Mapping[str, tuple[str, ...]],
    call: SplitCall,
    shapes: Sequence[Sequence[int]],
) -> _compat.Partition:
    """A call that is split along the dimensions of `local`, each over its mesh axes.

    Args:
      bind: the operation on one device's parts.
      local: mesh axes, by dimension.
      call: the call.
      shapes: the shapes of its operands.
    """
    sums = [
        tuple(axis for dim in local if dim not in result.names for axis in local[dim])
        for result in call.results
    ]

    def on_parts(*parts: jax.Array) -> list[jax.Array]:
        outs = bind(*_compat.match_varying(*parts))
        return [lax.psum(out, axes) if axes else out for out, axes in zip(outs, sums, strict=True)]

    unshared = [dims.unshared(s) for dims, s in zip(call.operands, shapes, strict=True)]
    return _compat.Partition(
        [_spec_along(names, local) for names in unshared],
        [_spec_along(result.names, local) for result in call.results],
        on_parts,
    )


def lower_split(
    ctx: Any,
    values: Sequence[Any],
    mesh: Any,
    bind: Callable[..., Sequence[jax.Array]],
    key: str,
    call: SplitCall,
) -> Sequence[Any]:
    """Lowers an operation that XLA splits over Auto mesh axes, as `on_shards` over Explicit ones.

    Where operands, or results, are sharded over different axes along one dimension, or over one
    axis along different ones, the first one counts and the others are sent.

    Args:
      ctx: the lowering's context.
      values: the operands, in MLIR.
      mesh: the mesh, by `compat.auto_mesh`.
      bind: the operation: called with the configuration of a part and some parts.
      key: the operation's name, which identifies it together with `call`.
      call: the whole call.
    """
    shapes = [aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)]
    operand_shapes = shapes[: len(values)]

    def partition(
        operand_specs: Sequence[PartitionSpec], result_specs: Sequence[PartitionSpec]
    ) -> _compat.Partition:
        specs = [*operand_specs, *result_specs]
        part, local = call, _first_axes(call.dims_of(shapes), shapes, specs, mesh, call.parallel)
        taken = {axis for axes in local.values() for axis in axes}
        rest = [
            PartitionSpec(*(None if taken & {*axes_of(entry)} else entry for entry in spec))
            for spec in specs
        ]
        together = _joint_along(call, operand_shapes, rest[: len(values)], mesh)
        if together is not None:
            new = {*together.parallel} - {*call.parallel}
            more = _first_axes(together.dims_of(shapes), shapes, rest, mesh, new)
            shards = math.prod(mesh.shape[axis] for axes in more.values() for axis in axes)
            if call.joint(operand_shapes, lambda names: shards) == together:
                part, local = together, local | more
        return _partition(functools.partial(bind, part.config), local, part, operand_shapes)

    together, shards = None, 1
    for size in sorted(mesh.shape.values()):
        if joint := call.joint(operand_shapes, lambda names, size=size: size):
            together, shards = joint, size
    rule = _rule(call, together, shapes, shards)
    return _compat.partitioned_call(
        ctx, values, mesh, key=f"{key} {call}", rule=rule, partition=partition
    )


def _rule(
    call: SplitCall, together: SplitCall | None, shapes: Sequence[Sequence[int]], shards: int
) -> _compat.Rule:
    """How a split of one array goes together with that of others.

    Args:
      call: the whole call.
      together: the call in which several dimensions are split together, if there is one.
      shapes: the shapes of operands and results.
      shards: into how many shards those dimensions can be split.
    """
    mappings, sizes, whole = [], {}, []
    merged = (together or call).dims_of(shapes)
    for i, (names, others, shape) in enumerate(
        zip(call.dims_of(shapes), merged, shapes, strict=True)
    ):
        factors = []
        for j, (dim, other, size) in enumerate(zip(names, others, shape, strict=True)):
            rest = f"rest{i}of{j}"
            if dim == other:
                factors.append(dim or rest)
                if dim not in call.parallel:
                    whole.append(dim or rest)
            elif size == shards:
                factors.append(other)
            else:
                factors.append(f"({other} {rest})")
                sizes |= {other: shards, rest: size // shards}
                whole.append(rest)
        mappings.append(" ".join(factors))
    count = len(call.operands)
    text = f"{', '.join(mappings[:count])} -> {', '.join(mappings[count:])}"
    # Shardy wants them in the order of their first appearance.
    return _compat.Rule(text, sizes, tuple(dict.fromkeys(whole)))


def _first_axes(
    named: Sequence[Sequence[str]],
    shapes: Sequence[Sequence[int]],
    specs: Sequence[PartitionSpec],
    mesh: Any,
    parallel: Collection[str],
) -> dict[str, tuple[str, ...]]:
    """The mesh axes of each dimension that may be split, by the first array that has some."""
    local: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for names, shape, spec in zip(named, shapes, specs, strict=True):
        for dim, size, entry in zip(names, shape, spec, strict=True):
            axes = axes_of(entry)
            parts = math.prod(mesh.shape[axis] for axis in axes)
            free = dim in parallel and dim not in local and used.isdisjoint(axes)
            if parts > 1 and free and size % parts == 0:
                local[dim] = axes
                used.update(axes)
    return local


def _spec_along(names: Sequence[str], sharded: Mapping[str, tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(sharded.get(dim) for dim in names))


def _sharded_dims(
    name: str, specs: Sequence[PartitionSpec], call: SplitCall
) -> dict[str, tuple[str, ...]]:
    """The mesh axes that each dimension is sharded over."""
    sharded: dict[str, tuple[str, ...]] = {}
    first: dict[str, str] = {}  # the operand that a dimension's axes were found at
    for key, spec, dims in zip(call.names, specs, call.operands, strict=True):
        for dim, entry in zip(dims.names, spec, strict=True):
            axes = axes_of(entry)
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
