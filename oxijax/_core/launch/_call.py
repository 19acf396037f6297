"""`call`: a kernel as a part of a JAX program, for use inside lowerings."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend.core import Primitive
from jax.interpreters import mlir

from oxijax._core import compat as _compat
from oxijax._core.arguments.checks import batch_groups, check_not_forked, is_known, shown
from oxijax._core.arguments.precision import numpy_dtype
from oxijax._core.calls.decisions import note_launch
from oxijax._core.launch import _handler
from oxijax._core.launch._handler import TARGET_NAME
from oxijax._core.launch._latency import latency_metadata
from oxijax._core.launch._spec import VERSION, Spec, key_of
from oxijax._core.process import allow_dry_runs, emulation
from ptx.definition import Array, KernelDefinition, Out
from ptx.operator import Description

__all__ = ["EXPORT_CHECKS", "TARGET_NAME", "call"]

#: What `jax.export.export` takes as `disabled_checks` for programs with kernels: it exports custom
#: calls of others only if it is told that they keep their meaning, as those of oxijax do.
EXPORT_CHECKS = (export.DisabledSafetyCheck.custom_call(TARGET_NAME),)


def call(
    kernel: KernelDefinition[Any],
    config: Any,
    *,
    batch: str = "",
    sizes: Mapping[str, Any] | None = None,
    products: int | None = None,
    **operands: jax.Array | None,
) -> tuple[jax.Array | None, ...]:
    """Launches a kernel, once, in the GPU lowering of a primitive.

    A lowering is a function of arrays: besides `call`, any number of times, it may use jax.numpy,
    for example to make the zeros that a kernel adds to.

    Args:
      kernel: the kernel.
      config: its configuration; which optional operands there are is read off the call.
      batch: the name of the leading dimension over which all arrays are independent, but for those
        without it: operands like weights, which every part gets, and results, of which every part
        makes its own and which are added up. XLA may split the call over devices along it. Empty
        where there is none: XLA gathers operands that are split.
      sizes: the sizes of dimensions that only results have, by name.
      products: how often the kernel multiplies and adds, in its configuration's `float_type`. XLA
        is told how long the call takes at least, to schedule other work beside it. None is what the
        configuration says, if it is a `ptx.operator.Description`; else 0.
      **operands: arrays by the names of the kernel's operands, with dimensions in the order of
        their `dims`; None for one that is absent. An initial value becomes the memory of its
        result; XLA copies an operand that is used again.

    Returns:
      The kernel's results in its order, with dimensions in the order of their `dims`, None for
      those that its configuration lacks.

    Raises:
      HandlerMissingError: oxijax was installed without its handler.
      TypeError: an operand that the kernel does not have, one that is missing, one of another dtype
        than the configuration says, or a configuration that cannot be written down.
      ValueError: shapes that do not fit each other.
    """
    if not isinstance(kernel, KernelDefinition):
        raise TypeError(f"kernel must be a KernelDefinition, got {shown(kernel)}")
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(
            f"config must be a configuration of kernel {kernel.name}, got {shown(config)}"
        )
    check_not_forked()
    _handler.library()
    arrays = {name: array for name, array in operands.items() if array is not None}
    config = kernel.with_operands(config, list(arrays))
    values = []
    for name, parameter in kernel.operands(config).items():
        array, axes = arrays[name], parameter.axes(config)
        expected = numpy_dtype(parameter.dtype_of(config))
        if array.dtype != expected:
            raise TypeError(f"{kernel.name}: {name} must be {expected}, got {array.dtype}")
        values.append(array if axes == tuple(range(len(axes))) else array.transpose(axes))
    given = dict(zip(kernel.operands(config), (value.shape for value in values), strict=True))
    every = {**kernel.sizes(config, given), **(sizes or {})}
    shapes = kernel.shapes(config, every)
    if products is None:
        known = isinstance(config, Description)
        products = config.products(config.complete(every)) if known else 0
    results = kernel.results(config)
    for name, result in results.items():
        if batch and result.shareable(config) not in (None, batch):
            shapes[name] = shapes[name][1:]  # as the operands, whose first dimension is the batch

    def without_batch(
        parameters: Mapping[str, Array], shapes: Mapping[str, Any]
    ) -> tuple[int, ...]:
        indices: list[int] = []
        for index, (name, parameter) in enumerate(parameters.items()):
            dims = parameter.layout_of(config)[-len(shapes[name]) :]
            one = parameter.shareable(config) == batch and shapes[name][0] == 1
            if batch and (dims[0] != batch or one):
                indices.append(index)
        return tuple(indices)

    outs = iter(
        _launch_p.bind(
            *_compat.match_varying(*values),
            kernel=kernel.name,
            config=config,
            products=products,
            results=tuple(
                (shapes[name], numpy_dtype(result.dtype_of(config)))
                for name, result in results.items()
            ),
            aliases=tuple(sorted(kernel.aliases(config).items())),
            batch_dims=1 if batch else 0,
            shared=without_batch(kernel.operands(config), given),
            sums=without_batch(results, shapes),
            grouped=False,
            # XLA may ask for a part of a program when it has left the context that it was made in.
            emulated=emulation.value,
        )
    )
    declared = [parameter for parameter in kernel.parameters if isinstance(parameter, Out)]
    return tuple(next(outs) if parameter.name in results else None for parameter in declared)


def _abstract_eval(*avals, kernel, results, **_):
    _compat.check_varying(kernel, *avals)
    return [avals[0].update(shape=s, dtype=dtype, weak_type=False) for s, dtype in results]


def _lower(ctx, *operands, **params):
    groups = _groups(ctx, params)
    if groups > 1:
        grouped = functools.partial(_launch_grouped, groups, **params)
        return mlir.lower_fun(grouped, multiple_results=True)(ctx, *operands)
    return _lower_one(ctx, *operands, **params)


def _groups(ctx, params) -> int:
    """Parts that a batch is cut into, so that XLA may give each device some of them."""
    if params["grouped"] or not (params["shared"] or params["sums"]):
        return 1
    (batch,) = {aval.shape[0] for i, aval in enumerate(ctx.avals_in) if i not in params["shared"]}
    return batch_groups(ctx, batch)


def _launch_grouped(groups: int, *operands, shared, sums, results, **params):
    """The call with all operands and results of the same leading dimension, one for each group.

    XLA splits a call along leading dimensions that all of it has, and no other way. There is a
    group for each device at least, so that none has more than one copy of what is shared.
    """
    operands = [
        jnp.broadcast_to(operand, (groups, *operand.shape))
        if i in shared
        else operand.reshape(groups, operand.shape[0] // groups, *operand.shape[1:])
        for i, operand in enumerate(operands)
    ]
    shapes = [
        (groups, *shape) if i in sums else (groups, shape[0] // groups, *shape[1:])
        for i, (shape, _) in enumerate(results)
    ]
    outs = _launch_p.bind(
        *operands,
        shared=shared,
        sums=sums,
        results=tuple((s, dtype) for s, (_, dtype) in zip(shapes, results, strict=True)),
        **{**params, "grouped": True},
    )
    return [
        out.sum(axis=0) if i in sums else out.reshape(shape)
        for i, (out, (shape, _)) in enumerate(zip(outs, results, strict=True))
    ]


def _lower_one(
    ctx,
    *operands,
    kernel,
    config,
    products,
    results,
    aliases,
    batch_dims,
    shared,
    sums,
    grouped,
    emulated,
):
    # A call with shared operands is on one device. One with unknown sizes has more operands, which
    # hold these sizes and have no batch dimension, so that no sharding rule fits.
    known = all(is_known(*aval.shape) for aval in ctx.avals_out)
    if not known or (not grouped and (shared or sums)):
        batch_dims = 0
    spec = Spec(
        kernel,
        config,
        grouped=shared if grouped else None,
        emulation=emulated,
    )
    if known:
        every = [aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)]
        note_launch(kernel, config, tuple(map(tuple, spec.shapes(every))))
    text = spec.to_json()
    attributes, frontend = {}, {}
    if emulated is None:
        frontend |= latency_metadata(ctx, config, products, split=bool(batch_dims))
    if batch_dims:
        types_in = [operand.type for operand in operands]
        types_out = [mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out]
        rule = _compat.batch_sharding_rule(batch_dims, types_in, types_out)
        attributes["sdy.sharding_rule"] = rule  # for propagation; the other, for the partition
        frontend["num_batch_dims"] = str(batch_dims)
    if frontend:
        attributes["mhlo.frontend_attributes"] = mlir.ir_attribute(frontend)
    lower = jax.ffi.ffi_lowering(
        TARGET_NAME, operand_output_aliases=dict(aliases), extra_attributes=attributes
    )
    return lower(ctx, *operands, key=np.int64(key_of(text)), spec=text, version=np.int64(VERSION))


def _lower_for_cuda(ctx, *operands, **params):
    return _lower(ctx, *operands, **{**params, "emulated": None})


def _lower_for_cpu(ctx, *operands, emulated, **params):
    assert emulated is not None  # else the CPU has another lowering
    if emulated.dry_run:
        allow_dry_runs()
    return _lower(ctx, *operands, emulated=emulated, **params)


_launch_p = Primitive("launch")
_launch_p.multiple_results = True
_launch_p.def_abstract_eval(_abstract_eval)
mlir.register_lowering(_launch_p, _lower_for_cuda, platform="cuda")
mlir.register_lowering(_launch_p, _lower_for_cpu, platform="cpu")
