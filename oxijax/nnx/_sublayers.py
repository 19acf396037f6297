"""Factories of the NNX layers that the layers here are made of."""

import functools
from typing import Any

from flax import nnx

from oxijax._core.arguments import checks
from oxijax._layers.flax import Options, Sublayers

__all__ = ["check_rngs", "make_sublayers"]


def check_rngs(rngs: Any) -> None:
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"rngs must be a flax.nnx.Rngs, got {checks.shown(rngs)}")
    if not hasattr(rngs, "params"):
        raise ValueError(f"rngs must have a stream params or default, got {rngs}")


def make_sublayers(
    features: int, rngs: Any, *options: Any
) -> Sublayers[nnx.Linear, nnx.Conv, nnx.LayerNorm]:
    """The factories of a layer; `options` are arguments of `Options.parse`."""
    parsed = Options.parse(*options)
    check_rngs(rngs)
    return Sublayers(
        features,
        parsed,
        functools.partial(nnx.Linear, features, rngs=rngs),
        functools.partial(nnx.Conv, features, features, rngs=rngs),
        functools.partial(nnx.LayerNorm, features, rngs=rngs),
    )
