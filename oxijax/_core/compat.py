"""Every private JAX API that oxijax uses, and nothing else.

Checked on jax 0.10.2, 0.11.2 and 0.12.0.1.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import core, custom_partitioning_sharding_rule, sharding_impls
from jax._src.export import shape_poly

__all__ = [
    "batch_sharding_rule",
    "check_varying",
    "match_varying",
    "partitioned_devices",
    "require_when_known",
]


def check_varying(name: str, *avals: Any) -> None:
    """Raises where operands of primitive `name` vary over different manual mesh axes.

    Inside `jax.shard_map(check_vma=True)` a type says over which mesh axes a value
    varies. An abstract evaluation that ignores this makes gradients of replicated
    operands silently wrong: nothing sums them over the mesh.

    `jax._src.core.standard_vma_rule`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    core.standard_vma_rule(name, *avals)


def match_varying(*operands: jax.Array) -> list[jax.Array]:
    """Casts the operands so that all vary over the same manual mesh axes.

    Outside `jax.shard_map` they come back as they are. The transpose of the cast is the
    sum over the mesh that a replicated operand's gradient needs.

    `jax._src.core.auto_insert_reshard`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    return list(core.auto_insert_reshard(*operands))


def partitioned_devices(ctx: Any) -> int:
    """Devices over which XLA may split the operations of a program, during its lowering.

    Args:
      ctx: of a lowering rule. Inside `jax.shard_map` operations have been split already, along
        the axes that are manual there.

    `jax._src.sharding_impls.{ShardingContext,SPMDAxisContext}`: no public twin.
    """
    context = ctx.module_context.axis_context
    if isinstance(context, sharding_impls.ShardingContext):
        return context.num_devices
    if isinstance(context, sharding_impls.SPMDAxisContext):
        sizes = dict(context.mesh.shape)
        return math.prod(n for axis, n in sizes.items() if axis not in context.manual_axes)
    return 1


def require_when_known(holds: Any, message: str) -> None:
    """Has a program raise where sizes do not fit, once they are known.

    It is for programs that `jax.export` makes with symbolic dimensions: they are checked when XLA
    compiles them for sizes.

    Args:
      holds: a boolean array that is made of nothing but sizes.
      message: of the error.

    `jax._src.export.shape_poly.shape_assertion`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    shape_poly.shape_assertion(holds, error_message=message)


def batch_sharding_rule(batch_dims: int, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """The MLIR attribute `sdy.sharding_rule` of a call that may be split along its batch.

    Args:
      batch_dims: leading dimensions that all operands and results share; a split along any other
        dimension is undone before the call.
      operands: MLIR types of the operands.
      results: of the results.

    `jax._src.custom_partitioning_sharding_rule`: its public part makes rules, but not attributes.
    """
    factors = [f"b{i}" for i in range(batch_dims)]
    whole = []

    def mapping(types: Sequence[Any]) -> str:
        dims = []
        for value in types:
            names = [f"f{len(whole) + i}" for i in range(len(value.shape) - batch_dims)]
            whole.extend(names)
            dims.append(" ".join(factors + names))
        return ", ".join(dims)

    rule = custom_partitioning_sharding_rule.str_to_sdy_sharding_rule(
        f"{mapping(operands)} -> {mapping(results)}", need_replication_factors=tuple(whole)
    )
    return custom_partitioning_sharding_rule.sdy_sharding_rule_to_mlir(
        rule, list(operands), list(results)
    )
