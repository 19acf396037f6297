"""The same jitted function on the CPU and on a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["on"]


def on(platform: str, function: Callable, operands: Sequence[Any]) -> list[jax.Array]:
    """The leaves of what a function gives, jitted, on the first device of a platform."""
    device = jax.devices(platform)[0]
    results = jax.jit(function)(*(jax.device_put(x, device) for x in operands))
    leaves = jax.tree.leaves(results)
    assert {leaf.device for leaf in leaves} == {device}
    return leaves
