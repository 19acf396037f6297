"""Starts of runs of equal keys, such as the cells whose lists of samples kernels gather from."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["run_starts"]


def run_starts(keys: jax.Array, count: Any) -> jax.Array:
    """Where the run of each number below `count` starts in each row of keys, once it is sorted.

    Args:
      keys: [L, S], in any order; numbers below `count`.
      count: how many numbers there are; may be symbolic.

    Returns:
      int32 [L, count + 1], in the end where the last run ends. Sums of integers are the same in
      any order.
    """
    rows = keys.shape[0]
    row = lax.broadcasted_iota(jnp.int32, keys.shape, 0)
    counts = jnp.zeros((rows, count + 1), jnp.int32)
    counts = counts.at[row, keys.astype(jnp.int32) + 1].add(1, mode="promise_in_bounds")
    return jnp.cumsum(counts, axis=1, dtype=jnp.int32)
