"""How calls are split over devices.

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
from oxijax._core.primitive.fold import Dims

__all__ = [
    "Call",
    "explicit_parts",
    "lower_split",
    "on_shards",
]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a primitive, as what can be split.

    Attributes:
      config: of the primitive, in a part.
      operands: dimensions of each.
      results: dimensions of each.
      parallel: the dimensions along which the call may be split; results that lack one of them are
        then summed.
    """

    config: Any
    operands: Sequence[Dims]
    results: Sequence[Dims]
    parallel: Sequence[str]


def explicit_parts(arrays: Sequence[jax.Array]) -> Callable[[Sequence[Dims], Sequence[str]], int]:
    """How many devices share what operands have along some dimensions, over Explicit axes.

    Args:
      arrays: of which some are sharded over Explicit axes.

    Returns:
      A function of the dimensions of each array and of some of their names.
    """
    specs, mesh = [spec_of(array) for array in arrays], mesh_of(arrays)
    return lambda dims, names: _parts_along(dims, names, specs, mesh)


def _parts_along(
    operands: Sequence[Dims], names: Sequence[str], specs: Sequence[PartitionSpec], mesh: Any
) -> int:
    """How many devices share what the first operand has along the first of some dimensions."""
    for dims, spec in zip(operands, specs, strict=True):
        for dim, entry in zip(dims.names, spec, strict=True):
            if dim in names and axes_of(entry):
                return math.prod(mesh.shape[axis] for axis in axes_of(entry))
    return 1


def on_shards(
    bind: Callable[..., Sequence[jax.Array]],
    name: str,
    names: Sequence[str],
    arrays: Sequence[jax.Array],
    call: Call,
) -> list[jax.Array]:
    """An operation on operands that are sharded over Explicit mesh axes.

    Along a dimension that may be split, each device has its part, and results without it are summed
    over the devices. Along any other, operands are gathered first, and of results each device keeps
    its part. Results are sharded along the dimensions that operands are.

    Args:
      bind: the operation, on some parts.
      name: of the operation.
      names: of the operands.
      arrays: the operands.
      call: their dimensions.

    Raises:
      ValueError: operands are sharded over different axes along one dimension, or over one axis
        along different ones.
    """
    sharded, mesh = _sharded_dims(name, names, arrays, call), mesh_of(arrays)
    local = {dim: axes for dim, axes in sharded.items() if dim in call.parallel}
    _check_once(name, local)
    for result in call.results:
        _check_once(name, {dim: sharded[dim] for dim in result.names if dim in sharded})
    shapes = [array.shape for array in arrays]
    split = _Split.along(local, call, shapes)
    on_parts = split.on_parts(bind)
    axes = {axis for axes in local.values() for axis in axes}
    if axes:
        on_parts = jax.shard_map(
            on_parts,
            mesh=mesh,
            in_specs=tuple(split.operands),
            out_specs=split.results,
            axis_names=axes,
        )
    outs = on_parts(
        *(reshard(v, spec, mesh) for v, spec in zip(arrays, split.operands, strict=True))
    )
    return [
        reshard(out, _spec_along(result.names, sharded), mesh)
        for out, result in zip(outs, call.results, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Split:
    """How a call is split along some of its dimensions.

    Attributes:
      operands: the parts of each operand.
      results: the parts of each result.
      sums: the mesh axes over which each result is summed.
    """

    operands: list[PartitionSpec]
    results: list[PartitionSpec]
    sums: list[tuple[str, ...]]

    @staticmethod
    def along(
        local: Mapping[str, tuple[str, ...]], call: Call, shapes: Sequence[Sequence[int]]
    ) -> "_Split":
        """The split of a call along the dimensions of `local`, over their mesh axes.

        Args:
          local: mesh axes, by dimension.
          call: the call.
          shapes: of its operands.
        """
        unshared = [dims.unshared(s) for dims, s in zip(call.operands, shapes, strict=True)]
        return _Split(
            [_spec_along(names, local) for names in unshared],
            [_spec_along(result.names, local) for result in call.results],
            [
                tuple(axis for dim in local if dim not in result.names for axis in local[dim])
                for result in call.results
            ],
        )

    def on_parts(self, bind: Callable[..., Sequence[jax.Array]]) -> Callable[..., list[jax.Array]]:
        def on_parts(*parts: jax.Array) -> list[jax.Array]:
            outs = bind(*_compat.match_varying(*parts))
            return [
                lax.psum(out, axes) if axes else out
                for out, axes in zip(outs, self.sums, strict=True)
            ]

        return on_parts


def lower_split(
    ctx: Any,
    values: Sequence[Any],
    mesh: Any,
    bind: Callable[..., Sequence[jax.Array]],
    key: str,
    call: Call,
    part_of: Callable[..., Call | None],
) -> Sequence[Any]:
    """Lowers an operation that XLA splits over Auto mesh axes, as `on_shards` over Explicit ones.

    Where operands, or results, are sharded over different axes along one dimension, or over one
    axis along different ones, the first one counts and the others are sent.

    Args:
      ctx: of the lowering.
      values: of the operands, in MLIR.
      mesh: of `compat.auto_mesh`.
      bind: the operation: called with the configuration of a part and some parts.
      key: names the operation, with `call`.
      call: the dimensions of operands and results.
      part_of: called with the operands' shapes and a function as `explicit_parts` returns one,
        returns the call in which several dimensions are split together, or None.
    """
    shapes = [aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)]
    count = len(values)

    def partition(
        operand_specs: Sequence[PartitionSpec], result_specs: Sequence[PartitionSpec]
    ) -> _compat.Partition:
        specs = [*operand_specs, *result_specs]
        part, local = call, _first_axes(_named(call, shapes), shapes, specs, mesh, call.parallel)
        taken = {axis for axes in local.values() for axis in axes}
        rest = [
            PartitionSpec(*(None if taken & {*axes_of(entry)} else entry for entry in spec))
            for spec in specs
        ]
        together = part_of(
            shapes[:count], lambda dims, names: _parts_along(dims, names, rest[:count], mesh)
        )
        if together is not None:
            new = {*together.parallel} - {*call.parallel}
            more = _first_axes(_named(together, shapes), shapes, rest, mesh, new)
            parts = math.prod(mesh.shape[axis] for axes in more.values() for axis in axes)
            if part_of(shapes[:count], lambda dims, names: parts) == together:
                part, local = together, local | more
        split = _Split.along(local, part, shapes[:count])
        on_parts = split.on_parts(functools.partial(bind, part.config))
        return _compat.Partition(split.operands, split.results, on_parts)

    largest = [size for size in mesh.shape.values() if part_of(shapes[:count], _always(size))]
    together = part_of(shapes[:count], _always(max(largest))) if largest else None
    rule = _rule(call, together, shapes, max(largest, default=1))
    return _compat.partitioned_call(
        ctx, values, mesh, key=f"{key} {call}", rule=rule, partition=partition
    )


def _always(parts: int) -> Callable[[Sequence[Dims], Sequence[str]], int]:
    return lambda dims, names: parts


def _rule(
    call: Call, together: Call | None, shapes: Sequence[Sequence[int]], parts: int
) -> _compat.Rule:
    """How a split of one array goes together with that of others.

    Args:
      call: the whole call.
      together: the call in which several dimensions are split together, if there is one.
      shapes: of operands and results.
      parts: into how many those dimensions can be split.
    """
    mappings, sizes, whole = [], {}, []
    merged = _named(together or call, shapes)
    for i, (names, others, shape) in enumerate(
        zip(_named(call, shapes), merged, shapes, strict=True)
    ):
        factors = []
        for j, (dim, other, size) in enumerate(zip(names, others, shape, strict=True)):
            rest = f"rest{i}of{j}"
            if dim == other:
                factors.append(dim or rest)
                if dim not in call.parallel:
                    whole.append(dim or rest)
            elif size == parts:
                factors.append(other)
            else:
                factors.append(f"({other} {rest})")
                sizes |= {other: parts, rest: size // parts}
                whole.append(rest)
        mappings.append(" ".join(factors))
    count = len(call.operands)
    text = f"{', '.join(mappings[:count])} -> {', '.join(mappings[count:])}"
    # Shardy wants them in the order of their first appearance.
    return _compat.Rule(text, sizes, tuple(dict.fromkeys(whole)))


def _named(call: Call, shapes: Sequence[Sequence[int]]) -> list[list[str]]:
    """The dimensions of all operands and results, empty where an operand is shared."""
    every = [*call.operands, *call.results]
    return [dims.unshared(shape) for dims, shape in zip(every, shapes, strict=True)]


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
    name: str, names: Sequence[str], arrays: Sequence[jax.Array], call: Call
) -> dict[str, tuple[str, ...]]:
    """The mesh axes that each dimension is sharded over."""
    sharded: dict[str, tuple[str, ...]] = {}
    first: dict[str, str] = {}  # the operand that a dimension's axes were found at
    for key, array, dims in zip(names, arrays, call.operands, strict=True):
        for dim, entry in zip(dims.names, spec_of(array), strict=True):
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
