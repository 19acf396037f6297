"""The parameters of a layer."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flax import nnx

from oxijax._convert.parts import parts_of

__all__ = ["modules", "split", "tied"]


def split(layer: nnx.Module) -> tuple[Any, Callable[[Any], nnx.Module]]:
    """A model's parameters and statistics by name, and what makes a model of other ones."""
    graph, parameters, rest = nnx.split(layer, (nnx.Param, nnx.BatchStat), ...)
    return parameters, lambda parameters: nnx.merge(graph, parameters, rest)


def modules(layer: nnx.Module) -> dict[str, Any]:
    """A model's parts and itself, by their paths: by all where a part is at several."""
    return {path: part for path, part, _ in _parts(layer) if isinstance(part, nnx.Module)}


def tied(layer: nnx.Module) -> dict[str, str]:
    """The further paths of parts and parameters that are at several, each with the first one."""
    return {path: first for path, _, first in _parts(layer) if path != first}


def _parts(layer: nnx.Module) -> Iterator[tuple[str, Any, str]]:
    return parts_of(layer, nnx.Module | nnx.Variable, _children)


def _children(part: Any) -> Mapping[Any, Any]:
    return vars(part) if isinstance(part, nnx.Module) else {}
