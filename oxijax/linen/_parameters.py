"""The parameters of a layer."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn

__all__ = ["modules", "split"]


def split(layer: nn.Module) -> tuple[Any, Callable[[Any], nn.Module]]:
    """A bound layer's parameters by name, and what makes a layer of other ones."""
    if layer.scope is None:
        raise TypeError("layer must be bound to its variables: layer.bind(variables)")
    module, variables = layer.unbind()
    parameters = variables["params"]
    return parameters, lambda parameters: module.bind({**variables, "params": parameters})


def modules(layer: nn.Module) -> dict[str, Any]:
    """The layer itself: only its variables say which parts it has."""
    return {"": layer}
