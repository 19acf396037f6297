"""Nodes of ONNX models, run by the operators of oxijax."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.install import install_command
from oxijax.onnx._deform_conv import deform_conv
from oxijax.onnx._sampling_nodes import grid_sample, roi_align

if TYPE_CHECKING:
    import onnx

__all__ = ["run_node"]

# Inputs are the positional parameters, attributes the keywords.
_OPERATORS = {"DeformConv": deform_conv, "GridSample": grid_sample, "RoiAlign": roi_align}


def run_node(node: "onnx.NodeProto", inputs: Mapping[str, ArrayLike]) -> jax.Array:
    """Runs a DeformConv, GridSample or RoiAlign node of an ONNX model.

    Args:
      node: an `onnx.NodeProto`.
      inputs: arrays by the names that the node's inputs have in the model.

    Returns:
      The node's output, as `oxijax.onnx.deform_conv`, `grid_sample` or `roi_align` says. A node
      does not say of which opset it is: an attribute that is left out has the newest's default.

    Raises:
      ValueError: another node, an attribute that the operator does not have, or what the function
        raises it for.
      KeyError: `inputs` lacks an input of the node.
      TypeError: what the function raises it for.
    """
    try:
        from onnx import NodeProto, helper
    except ImportError as error:
        message = f"oxijax.onnx.run_node needs onnx: {install_command('onnx', 'onnx')}"
        raise ImportError(message) from error
    if not isinstance(node, NodeProto):
        raise TypeError(f"node must be an onnx.NodeProto, got {checks.shown(node)}")
    if node.op_type not in _OPERATORS or node.domain not in ("", "ai.onnx"):
        raise ValueError(
            f"node must be one of {', '.join(_OPERATORS)} of ONNX's own operators, got "
            f"{node.op_type!r} of domain {node.domain!r}"
        )
    function = _OPERATORS[node.op_type]
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = [p.name for p in parameters if p.default is p.empty]
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    attributes = {
        a.name: value.decode() if isinstance(value, bytes) else value
        for a in node.attribute
        for value in [helper.get_attribute_value(a)]
    }
    unknown = sorted(attributes.keys() - {*names})
    if unknown:
        raise ValueError(f"node must have attributes out of {', '.join(names)}, got {unknown}")
    if len(node.input) > len(known):
        raise ValueError(f"node must have inputs {', '.join(known)}, got {[*node.input]}")
    missing = [name for name in node.input if name and name not in inputs]
    if missing:
        raise KeyError(f"inputs must have all inputs of the node, {[*node.input]}, lacks {missing}")
    pairs = zip(known, node.input, strict=False)
    arrays: dict[str, Any] = {of_node: inputs[name] for of_node, name in pairs if name}
    absent = [name for name in required if name not in arrays]
    if absent:
        raise ValueError(f"node must have inputs {', '.join(required)}, lacks {', '.join(absent)}")
    return function(**arrays, **attributes)
