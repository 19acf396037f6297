"""Loops over blocks of independent items, for XLA's CPU compiler.

What a block works with stays in a core's cache from when it is found until it is used, whatever the
number of blocks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim, min_dim

from oxijax._core.arguments.checks import is_known

__all__ = ["NOWHERE", "apart", "scan_blocks"]

NOWHERE = -(2**31 - 2**29)  # the integers of items that fill a block up

_LEAST = 104  # items of a block: fewer rows make a matrix product slow
_BLOCK_BYTES = 1 << 21  # of a block: half of the second-level caches of two cores, or so


def scan_blocks(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    arrays: Any,
    item_bytes: int,
) -> tuple[Any, Any]:
    """`lax.scan` over blocks of items, as output pixels are.

    Args:
      step: called with the carry and a block of the arrays, returns the next carry and results
        for each of its items.
      carry: the first one.
      arrays: a pytree of arrays [P, ...]. The last block is filled up: with zeros, and integers
        with `NOWHERE`. Nobody sees its results; what it adds to the carry has to be nothing.
      item_bytes: that one item works with.

    Returns:
      The last carry, and the results [P, ...].
    """
    total = jax.tree.leaves(arrays)[0].shape[0]
    most = max(_LEAST, _BLOCK_BYTES // item_bytes)
    count, size = _blocks(total, most)
    rest = count * size - total

    def split(array: jax.Array) -> jax.Array:
        if not is_known(rest) or rest:
            value = NOWHERE if jnp.issubdtype(array.dtype, jnp.integer) else 0
            fill = jnp.full((rest, *array.shape[1:]), value, array.dtype)
            array = jnp.concatenate([array, fill])
        return array.reshape(count, size, *array.shape[1:])

    # Differentiated, a block is computed again: nothing of all samples at once is ever stored.
    carry, results = lax.scan(jax.checkpoint(step), carry, jax.tree.map(split, arrays))
    return carry, jax.tree.map(
        lambda array: array.reshape(count * size, *array.shape[2:])[:total], results
    )


def _blocks(total: Any, most: int) -> tuple[Any, Any]:
    """How many blocks there are, and of how many items: a multiple of 4, `most` or so."""
    if not is_known(total):
        size = 4 * max_dim(1, (min_dim(most, total) + 3) // 4)
        return 1 + (total - 1) // size, size
    least = max(1, -(-total // most))
    # Blocks that need not be filled up save a copy of all that they are taken from.
    count = next((c for c in range(least, 2 * least) if total % (4 * c) == 0), least)
    return count, -(-total // (4 * count)) * 4


def apart(function: Callable[..., Any], *operands: Any, number: jax.Array) -> Any:
    """`function` of operands that are computed before it, and results before what uses them.

    XLA's CPU compiler fuses what makes an operand into all that uses it: places into samples, where
    each is found once a channel, and samples into the operand of a matrix product, of which it then
    makes no vectors. It fuses nothing into a branch that it can't choose itself.

    Args:
      function: makes a pytree of arrays of the operands.
      *operands: pytrees of arrays.
      number: floats that depend on arguments of the program.
    """
    function = jax.jit(function)  # traced once

    def never(*operands: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, function(*operands))  # of the same types

    def branch(*operands: Any) -> Any:
        return lax.cond(jnp.any(number.reshape(-1)[:1] > np.inf), never, function, *operands)

    return lax.platform_dependent(*operands, cpu=branch, default=function)
