"""The parameters of a layer."""

from collections.abc import Callable
from typing import Any

from flax import nnx

__all__ = ["modules", "split"]


def split(layer: nnx.Module) -> tuple[Any, Callable[[Any], nnx.Module]]:
    """A model's parameters and statistics by name, and what makes a model of other ones."""
    graph, parameters, rest = nnx.split(layer, (nnx.Param, nnx.BatchStat), ...)
    return parameters, lambda parameters: nnx.merge(graph, parameters, rest)


def modules(layer: nnx.Module) -> dict[str, Any]:
    """A model's parts and itself, by their paths."""
    return {".".join(map(str, path)): module for path, module in nnx.iter_modules(layer)}
