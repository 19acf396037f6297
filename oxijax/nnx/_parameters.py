"""The parameters of a layer."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flax import nnx

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
    """The parts and parameters of a model, with their path and the first path that they are at."""
    first: dict[int, str] = {}

    def search(path: str, part: Any, parents: tuple[int, ...]) -> Iterator[tuple[str, Any, str]]:
        if isinstance(part, nnx.Module | nnx.Variable):
            if id(part) in parents:
                return
            yield path, part, first.setdefault(id(part), path)
        parts: Mapping[Any, Any] = {}
        if isinstance(part, nnx.Module):
            parts = vars(part)
        elif isinstance(part, Mapping):
            parts = part
        elif isinstance(part, list | tuple):
            parts = dict(enumerate(part))
        for name in sorted(parts, key=lambda name: (isinstance(name, str), name)):
            inner = f"{path}.{name}" if path else f"{name}"
            yield from search(inner, parts[name], (*parents, id(part)))

    return search("", layer, ())
