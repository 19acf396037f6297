"""The parameters of a layer."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

__all__ = ["split"]


def split(layer: eqx.Module) -> tuple[Any, Callable[[Any], eqx.Module]]:
    """A layer's parameters by name, and what makes a layer of other ones."""

    def is_parameter(leaf: Any) -> bool:
        return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)

    parameters, rest = eqx.partition(layer, is_parameter)
    return parameters, lambda parameters: eqx.combine(parameters, rest)
