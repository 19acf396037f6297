"""Plugins of jax2onnx for the primitives of oxijax.

Each primitive becomes a JAX function of a few nodes. Its jaxpr takes the primitive's place, and all
of it but the nodes, such as shapes that are symbolic, is what jax2onnx has plugins for.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
import onnx
import onnx_ir
from jax2onnx.converter.lowering_dispatch import lower_jaxpr_with_plugins
from jax2onnx.converter.typing_support import LoweringContextProtocol
from jax2onnx.plugins.plugin_system import (
    PLUGIN_REGISTRY,
    PrimitiveLeafPlugin,
    register_primitive,
)

from oxijax._core.arguments.precision import usual_promotion
from oxijax.onnx import _convolution
from oxijax.onnx._gemm import gemm
from oxijax.onnx._node import node_p
from oxijax.onnx._sampling import sampling, windows

__all__ = ["register"]

# What a primitive becomes: a JAX function of nodes, called with the opset, the primitive's
# configuration and its operands, or None.
_FORWARD: dict[str, Callable[..., jax.Array]] = {
    "conv_forward": _convolution.conv,
    "deform_conv_forward": _convolution.deform_conv,
    "gemm": gemm,
    "sampling_forward": sampling,
    "sampling_windows": windows,
}
_BACKWARD = (
    "conv_backward_input",
    "conv_backward_weight",
    "deform_conv_backward_input",
    "deform_conv_backward_offset",
    "deform_conv_backward_samples",
    "deform_conv_backward_weight",
    "sampling_backward_points",
    "sampling_backward_samples",
    "sampling_backward_value",
    "sampling_windows_backward_centers",
    "sampling_windows_backward_value",
)


def register() -> None:
    """Registers them all."""
    for name, function in _FORWARD.items():
        _register(name, functools.partial(_lower_forward, function))
    for name in _BACKWARD:
        _register(name, functools.partial(_refuse, name))
    _register(node_p.name, _lower_node)


def _register(name: str, lower: Callable[[LoweringContextProtocol, Any], None]) -> None:
    class Plugin(PrimitiveLeafPlugin):
        def lower(self, ctx: LoweringContextProtocol, eqn: Any) -> None:
            lower(ctx, eqn)

    register_primitive(jaxpr_primitive=name, context="oxijax", component=name)(Plugin)


def _refuse(name: str, ctx: LoweringContextProtocol, eqn: Any) -> NoReturn:
    raise NotImplementedError(
        f"{name} has no operator in ONNX: export a function that takes no gradients"
    )


def _lower_forward(
    function: Callable[..., jax.Array], ctx: LoweringContextProtocol, eqn: Any
) -> None:
    """Traces what the primitive becomes, and has jax2onnx lower that in its place."""
    known = [_known(ctx, var) for var in eqn.invars]
    present = eqn.params["present"]

    def of_arrays(*arrays: jax.Array) -> jax.Array:
        values = (array if k is None else k for array, k in zip(arrays, known, strict=True))
        operands = (next(values) if is_present else None for is_present in present)
        return function(ctx.opset, eqn.params["config"], *operands)

    avals = (jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.invars)
    with (
        usual_promotion(),
        jax.disable_jit(),
    ):  # calls within a jaxpr are what jax2onnx 0.17 lacks for JAX 0.12
        closed = jax.make_jaxpr(of_arrays)(*avals)
    jaxpr = closed.jaxpr
    for inner, constant in zip(jaxpr.constvars, closed.consts, strict=True):
        ctx.bind_const_for_var(inner, np.asarray(constant))
    for inner, outer in zip(jaxpr.invars, eqn.invars, strict=True):
        ctx.bind_value_for_var(inner, ctx.get_value_for_var(outer))
    lower_jaxpr_with_plugins(
        ctx=ctx, jaxpr=jaxpr, registry=PLUGIN_REGISTRY, source=eqn.primitive.name
    )
    for inner, outer in zip(jaxpr.outvars, eqn.outvars, strict=True):
        ctx.bind_value_for_var(outer, ctx.get_value_for_var(inner))


def _known(ctx: LoweringContextProtocol, var: Any) -> np.ndarray | None:
    """A factor that the program knows: it may become an attribute."""
    return ctx.try_evaluate_const(var) if var.aval.shape == (1,) else None


def _lower_node(ctx: LoweringContextProtocol, eqn: Any) -> None:
    operator, attributes = eqn.params["operator"], dict(eqn.params["attributes"])
    (result,) = eqn.outvars
    arrays = [ctx.get_value_for_var(var) for var in eqn.invars]
    dtype = onnx_ir.DataType.from_numpy(result.aval.dtype)
    if ctx.enable_double_precision and arrays[0].dtype is not None:
        dtype = arrays[0].dtype  # jax2onnx makes every number a double then
    _check_opset(operator, dtype, ctx.opset)
    values = iter(arrays)
    operands = [next(values) if is_present else None for is_present in eqn.params["present"]]
    make = getattr(ctx.builder, operator)
    value = make(*operands, _outputs=[ctx.fresh_name(operator)], **attributes)
    value.type = onnx_ir.TensorType(dtype)
    value.shape = onnx_ir.Shape([d if isinstance(d, int) else str(d) for d in result.aval.shape])
    ctx.bind_value_for_var(result, value)


def _check_opset(operator: str, dtype: onnx_ir.DataType, opset: int) -> None:
    """Raises where an operator, or this dtype for it, is not in an opset."""
    if _has(operator, dtype, opset):
        return
    later = range(opset + 1, onnx.defs.onnx_opset_version() + 1)
    since = [version for version in later if _has(operator, dtype, version)]
    name = f"{operator} of {dtype.name}"
    if not since:
        raise TypeError(f"{name} is in no opset of ONNX {onnx.__version__}")
    raise ValueError(f"opset must be at least {since[0]} for {name}, got {opset}")


def _has(operator: str, dtype: onnx_ir.DataType, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(operator, opset)
    except onnx.defs.SchemaError:
        return False
    return f"tensor({dtype.name.lower()})" in schema.inputs[0].types
