"""Search in sorted keys, such as the cells whose lists of samples kernels gather from."""

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core.arguments.sizes import is_known

__all__ = ["first_not_below"]


def first_not_below(keys: jax.Array, boundaries: jax.Array) -> jax.Array:
    """For each boundary the index of the first of the sorted keys that is not below it: int32."""
    if is_known(*keys.shape, *boundaries.shape):
        return jnp.searchsorted(keys, boundaries, method="scan_unrolled").astype(jnp.int32)
    return _by_sorting(keys, boundaries)


def _by_sorting(keys: jax.Array, boundaries: jax.Array) -> jax.Array:
    """The same where sizes are symbolic: a search has to know in how many steps it ends."""
    merged = jnp.concatenate([boundaries, keys])
    positions = lax.iota(jnp.int32, merged.shape[0])
    # Where each of them is after a stable sort, in which a boundary comes before its equals.
    _, order = lax.sort((merged, positions), is_stable=True, num_keys=1)
    _, found = lax.sort((order, positions), is_stable=True, num_keys=1)
    count = boundaries.shape[0]
    return found[:count] - lax.iota(jnp.int32, count)
