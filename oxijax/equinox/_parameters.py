"""The parameters of a layer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax

__all__ = ["modules", "split"]


def split(layer: eqx.Module) -> tuple[Any, Callable[[Any], eqx.Module]]:
    """A model's parameters by name, and what makes a model of other ones."""

    def is_parameter(leaf: Any) -> bool:
        return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)

    parameters, rest = eqx.partition(layer, is_parameter)
    return parameters, lambda parameters: eqx.combine(parameters, rest)


def modules(layer: eqx.Module) -> dict[str, Any]:
    """A model's parts and itself, by their paths."""
    found = {}

    def search(path: str, value: Any) -> None:
        parts: Mapping[Any, Any] = {}
        if isinstance(value, eqx.Module):
            found[path] = value
            fields = dataclasses.fields(value)  # pyright: ignore[reportArgumentType]
            parts = {field.name: getattr(value, field.name, None) for field in fields}
        elif isinstance(value, list | tuple):
            parts = dict(enumerate(value))
        elif isinstance(value, dict):
            parts = value
        for name, part in parts.items():
            search(f"{path}.{name}" if path else f"{name}", part)

    search("", layer)
    return found
