"""A node of ONNX as a JAX primitive: what becomes of a kernel is written as a JAX function."""

from typing import Any

import jax
from jax.extend.core import Primitive

__all__ = ["node", "node_p"]

# It is traced and exported, and never run.
node_p = Primitive("oxijax_onnx_node")


def node(
    operator: str,
    operands: tuple[jax.Array | None, ...],
    shape: tuple[Any, ...],
    **attributes: Any,
) -> jax.Array:
    """The result of a node of ONNX's own operators, in the dtype of its first operand.

    Args:
      operator: its name.
      operands: in ONNX's order; None for one that is left out.
      shape: the shape of the result.
      attributes: the attributes of the node.
    """
    present = tuple(operand is not None for operand in operands)
    arrays = [operand for operand in operands if operand is not None]
    return node_p.bind(
        *arrays,
        operator=operator,
        present=present,
        shape=tuple(shape),
        attributes=tuple(attributes.items()),
    )


@node_p.def_abstract_eval
def _abstract_eval(*avals: Any, operator: str, present: Any, shape: Any, attributes: Any) -> Any:
    return avals[0].update(shape=shape, weak_type=False)
