"""The parameters of a layer."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from oxijax._convert.parts import parts_of
from oxijax.keras._sublayers import Layer

__all__ = ["modules", "split", "tied"]


def split(layer: keras.layers.Layer) -> tuple[dict[str, Any], Callable[[Any], keras.layers.Layer]]:
    """A model's parameters and statistics by name, and what gives it other ones."""
    for path, part in modules(layer).items():
        if not part.built:
            if not isinstance(part, Layer):
                raise ValueError(
                    f"layer must be built, as by a first call, {path or 'the top'!r} is not"
                )
            part.build()
    variables = {
        path: part
        for path, part, first in _parts(layer)
        if path == first and isinstance(part, keras.Variable)
    }

    def assign(parameters: Mapping[str, Any]) -> keras.layers.Layer:
        for path, value in parameters.items():
            variables[path].assign(value)
        return layer

    return {path: variable.value for path, variable in variables.items()}, assign


def modules(layer: keras.layers.Layer) -> dict[str, Any]:
    """A model's parts and itself, by their paths: by all where a part is at several."""
    return {path: part for path, part, _ in _parts(layer) if isinstance(part, keras.layers.Layer)}


def tied(layer: keras.layers.Layer) -> dict[str, str]:
    """The further paths of parts and parameters that are at several, each with the first one."""
    return {path: first for path, _, first in _parts(layer) if path != first}


def _parts(layer: keras.layers.Layer) -> Iterator[tuple[str, Any, str]]:
    return parts_of(layer, keras.layers.Layer | keras.Variable, _children)


def _children(part: Any) -> Mapping[Any, Any]:
    """What is in a layer: its own variables by their names, other layers by their attributes."""
    if not isinstance(part, keras.layers.Layer):
        return {}
    if isinstance(part, keras.Sequential):
        return {"layers": [each for each in part.layers if each.weights]}
    found = {name: value for name, value in vars(part).items() if not name.startswith("_")}
    if isinstance(part, keras.Model):
        names = ("optimizer", "loss", "inputs", "outputs")  # what is trained with
        found = {name: value for name, value in found.items() if name not in names}
        if not any(isinstance(value, keras.layers.Layer) for value in found.values()):
            found |= {each.name: each for each in part.layers if each.weights}
    found = {name: value for name, value in found.items() if not isinstance(value, keras.Variable)}
    inner = {
        id(variable)
        for value in found.values()
        for _, each, _ in parts_of(value, keras.layers.Layer, lambda _: {})
        for variable in each.weights
    }
    return found | {v.name: v for v in part.weights if id(v) not in inner}
