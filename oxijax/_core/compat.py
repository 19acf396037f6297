"""Every private JAX API that oxijax uses, and nothing else.

Checked on jax 0.10.2, 0.11.2 and 0.12.0.1.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import (
    core,
    custom_partitioning,
    custom_partitioning_sharding_rule,
    dispatch,
    effects,
    sharding_impls,
)
from jax._src.export import shape_poly
from jax._src.interpreters import partial_eval
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = [
    "Partition",
    "Rule",
    "apply_primitive",
    "auto_mesh",
    "batch_sharding_rule",
    "check_varying",
    "define_dce_rule",
    "match_varying",
    "partitioned_call",
    "partitioned_devices",
    "platforms",
    "require_when_known",
]


def apply_primitive(primitive: Primitive, *operands: jax.Array, **params: Any) -> list[jax.Array]:
    """Evaluates a primitive outside of `jax.jit`: compiles it alone, and runs it.

    A `jax.jit` of the primitive would call itself without end under `jax.disable_jit`, and under
    `jax.debug_nans` where a result is NaN.

    `jax._src.dispatch.apply_primitive`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    return dispatch.apply_primitive(primitive, *operands, **params)


def check_varying(name: str, *avals: Any) -> None:
    """Raises where operands of primitive `name` vary over different manual mesh axes.

    Inside `jax.shard_map(check_vma=True)` a type says over which mesh axes a value
    varies. An abstract evaluation that ignores this makes gradients of replicated
    operands silently wrong: nothing sums them over the mesh.

    `jax._src.core.standard_vma_rule`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    core.standard_vma_rule(name, *avals)


def define_dce_rule(
    primitive: Primitive, rule: Callable[[Sequence[bool], Any], tuple[list[bool], Any]]
) -> None:
    """Registers what JAX makes of a primitive's equation where not all of its results are used.

    Args:
      primitive: the primitive.
      rule: called with whether each result is used, and the equation; returns whether each operand
        still is, and an equation of those or None.

    `jax._src.interpreters.partial_eval.dce_rules`: in 0.12.0.1 rules are given also which operands
    are live, between the two that those of 0.10.2 and 0.11.2 are given.
    """
    partial_eval.dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def match_varying(*operands: jax.Array) -> list[jax.Array]:
    """Casts the operands so that all vary over the same manual mesh axes.

    Outside `jax.shard_map` they come back as they are. The transpose of the cast is the
    sum over the mesh that a replicated operand's gradient needs.

    Args:
      *operands: arrays of any shapes and dtypes.

    Returns:
      A list of them, in their order.

    `jax._src.core.auto_insert_reshard`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    return list(core.auto_insert_reshard(*operands))


def partitioned_devices(ctx: Any) -> int:
    """Devices over which XLA may split the operations of a program, during its lowering.

    Args:
      ctx: the context of a lowering rule. Inside `jax.shard_map` operations have been split
        already, along the axes that are manual there.

    `jax._src.sharding_impls.{ShardingContext,SPMDAxisContext}`: no public twin.
    """
    context = ctx.module_context.axis_context
    if isinstance(context, sharding_impls.ShardingContext):
        return context.num_devices
    if isinstance(context, sharding_impls.SPMDAxisContext):
        sizes = dict(context.mesh.shape)
        return math.prod(n for axis, n in sizes.items() if axis not in context.manual_axes)
    return 1


def platforms(ctx: Any) -> tuple[str, ...]:
    """The platforms that an operation is lowered for: several where a program is exported for them.

    `LoweringRuleContext.platforms`, `ModuleContext.platforms`: no public twin in 0.10.2, 0.11.2 or
    0.12.0.1.
    """
    return tuple(ctx.platforms or ctx.module_context.platforms)


def auto_mesh(ctx: Any) -> Any:
    """The mesh over which XLA is about to split a program, during its lowering, or None.

    It is None where nothing will be split, where no mesh is known, where operations have been split
    already, inside `jax.shard_map`, and for `jax.export`, since what a process registers for XLA is
    not in what it exports.

    Args:
      ctx: the context of a lowering rule.

    `jax._src.sharding_impls.ShardingContext` and `for_export` of the lowering's parameters: no
    public twin.
    """
    context = ctx.module_context.axis_context
    if ctx.module_context.lowering_parameters.for_export:
        return None
    if not isinstance(context, sharding_impls.ShardingContext) or context.num_devices == 1:
        return None
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        return None
    meshes = {aval.sharding.mesh for aval in ctx.avals_in if not aval.sharding.mesh.empty}
    if len(meshes) != 1:
        return None
    (mesh,) = meshes
    auto = any(kind == AxisType.Auto for kind in mesh.axis_types)
    return mesh if auto and mesh.size == context.num_devices else None


@dataclasses.dataclass(frozen=True)
class Partition:
    """How XLA is to split a call.

    Attributes:
      operands: how each operand is to be split.
      results: how each result is then split.
      function: what each device runs, on its parts. It may use collectives over the mesh's axes.
    """

    operands: Sequence[PartitionSpec]
    results: Sequence[PartitionSpec]
    function: Callable[..., Sequence[jax.Array]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a split of one array of a call goes together with that of others.

    Attributes:
      text: a name for each dimension of operands and results, as in "i j, j k -> i k"; several in
        parentheses where one dimension is made of several.
      sizes: integers, of those in parentheses.
      whole: those along which nothing may be split, in order.
    """

    text: str
    sizes: dict[str, Any]
    whole: tuple[str, ...]

    def to_mlir(self, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        """The attribute `sdy.sharding_rule`, for operands and results of these MLIR types.

        `jax._src.custom_partitioning_sharding_rule`: its public part makes rules, not attributes.
        """
        rule = custom_partitioning_sharding_rule.str_to_sdy_sharding_rule(
            self.text, need_replication_factors=self.whole, **self.sizes
        )
        return custom_partitioning_sharding_rule.sdy_sharding_rule_to_mlir(
            rule, list(operands), list(results)
        )


def partitioned_call(
    ctx: Any,
    operands: Sequence[Any],
    mesh: Any,
    *,
    key: str,
    rule: Rule,
    partition: Callable[[Sequence[PartitionSpec], Sequence[PartitionSpec]], Partition],
) -> Sequence[Any]:
    """Lowers a call that XLA asks this process how to split, while it compiles the program.

    `jax.experimental.custom_partitioning` does so too. But it names what it registers by an
    address, so that no two processes make the same program and a persistent cache never hits, and
    it has to be traced before devices are known.

    Args:
      ctx: the context of the lowering rule.
      operands: MLIR values.
      mesh: the result of `auto_mesh`.
      key: names what `partition` does; calls with equal keys, types and meshes are split alike.
      rule: for what XLA decides before it asks.
      partition: called with how the operands and the results would be split if it were for their
        neighbours in the program.

    Returns:
      MLIR values of the results.

    `jax._src.custom_partitioning._ShardingCallbackInfo`, `_sharding_callbacks` and the target that
    JAX registers for them: no public twin.
    """
    module_context = ctx.module_context
    flat = jax.tree.structure(tuple(ctx.avals_in)), jax.tree.structure(tuple(ctx.avals_out))

    def spec_of(sharding: Any, rank: int) -> PartitionSpec:
        try:
            spec = sharding_impls.parse_flatten_op_sharding(sharding, mesh)[0]
        except (NotImplementedError, ValueError):  # split, but not along axes of this mesh
            spec = ()
        return PartitionSpec(*spec, *(None,) * (rank - len(spec)))

    def on_shapes(mesh, arguments, results):
        specs = ([value.sharding.spec for value in values] for values in (arguments, results))
        split = partition(*specs)
        shardings = (
            tuple(NamedSharding(mesh, spec) for spec in specs)
            for specs in (split.results, split.operands)
        )
        return mesh, lambda *parts: tuple(split.function(*parts)), *shardings

    text = f"{key} {ctx.avals_in} {ctx.avals_out} {mesh} {module_context.platforms}"
    name = hashlib.sha256(text.encode()).hexdigest()
    callbacks = custom_partitioning._sharding_callbacks
    info = callbacks.get(name.encode())
    if info is None:
        info = custom_partitioning._ShardingCallbackInfo(
            None,
            on_shapes,
            lambda sharding, rank: NamedSharding(mesh, spec_of(sharding, rank)),
            *flat,
            None,
            module_context,
            mesh,
            (),
        )
        callbacks[name.encode()] = info
    module_context.add_keepalive(info)  # which the table does not do
    types_in = [operand.type for operand in operands]
    types_out = [mlir.aval_to_ir_type(module_context, aval) for aval in ctx.avals_out]
    call = stablehlo.CustomCallOp(
        types_out,
        list(operands),
        call_target_name=ir.StringAttr.get(custom_partitioning._CUSTOM_PARTITIONING_CALL_NAME),
        has_side_effect=ir.BoolAttr.get(False),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
        called_computations=ir.ArrayAttr.get([]),
        backend_config=ir.StringAttr.get(name),
    )
    call.attributes["sdy.sharding_rule"] = rule.to_mlir(types_in, types_out)
    return call.results


def require_when_known(holds: Any, message: str) -> None:
    """Has a program raise where sizes do not fit, once they are known.

    It is for programs that `jax.export` makes with symbolic dimensions: they are checked when XLA
    compiles them for sizes.

    Args:
      holds: a boolean array that is made of nothing but sizes.
      message: the error's message.

    `jax._src.export.shape_poly.shape_assertion`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    _require_p.bind(holds, message=message)


class _Requires(effects.Effect):
    """That a program may raise, which keeps a check in it.

    JAX's own effect of a shape assertion cannot be written down, so that no exported program has it
    at its top; this one can, since all of the class are equal.

    `jax._src.effects`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Requires)

    def __hash__(self) -> int:
        return hash(_Requires)


for _allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
):
    _allowed.add_type(_Requires)


def _lower_requirement(ctx: Any, holds: Any, *, message: str) -> Sequence[Any]:
    def assertion(holds: jax.Array) -> tuple[()]:
        shape_poly.shape_assertion(holds, error_message=message)
        return ()

    return mlir.lower_fun(assertion, multiple_results=True)(ctx, holds)


_require_p = Primitive("require")
_require_p.multiple_results = True
_require_p.def_effectful_abstract_eval(lambda *_, **__: ((), {_Requires()}))
mlir.register_lowering(_require_p, _lower_requirement)


def batch_sharding_rule(batch_dims: int, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """The MLIR attribute `sdy.sharding_rule` of a call that may be split along its batch.

    Args:
      batch_dims: leading dimensions that all operands and results share; a split along any other
        dimension is undone before the call.
      operands: MLIR types of the operands.
      results: of the results.
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

    text = f"{mapping(operands)} -> {mapping(results)}"
    return Rule(text, {}, tuple(whole)).to_mlir(operands, results)
