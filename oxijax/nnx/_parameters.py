"""The parameters of a layer."""

from collections.abc import Callable
from typing import Any

from flax import nnx

__all__ = ["split"]


def split(layer: nnx.Module) -> tuple[Any, Callable[[Any], nnx.Module]]:
    """A layer's parameters by name, and what makes a layer of other ones."""
    graph, parameters, rest = nnx.split(layer, nnx.Param, ...)
    return parameters, lambda parameters: nnx.merge(graph, parameters, rest)
