"""The base class of the layers here, and factories of the Linen layers that they are made of."""

import functools
import inspect
from typing import Any

from flax import linen as nn

from oxijax._layers import flax
from oxijax._layers.flax import Options, Sublayers

__all__ = ["Layer", "make_sublayers"]


class Layer(nn.Module):
    """A module with methods of `oxijax._layers.flax`."""

    def __init_subclass__(cls, **options: Any) -> None:
        # Linen wraps only the methods that a class has itself: without that, the layers' calls
        # would be in no profile and no `capture_intermediates`.
        for base in cls.__bases__:
            if base.__module__ == flax.__name__:
                for name, method in inspect.getmembers(base, inspect.isfunction):
                    if name != "__annotate_func__":  # which Python 3.14 counts among functions
                        setattr(cls, name, method)
        super().__init_subclass__(**options)


def make_sublayers(features: int, layer: Any) -> Sublayers[nn.Dense, nn.Conv, nn.LayerNorm]:
    """The factories of a layer, by its attributes."""
    return Sublayers(
        features,
        Options.of(layer),
        nn.Dense,
        functools.partial(nn.Conv, features),
        nn.LayerNorm,
    )
