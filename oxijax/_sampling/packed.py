"""Locations and weights of all points of a query in one row, as DCNv4 has them."""

import jax
import jax.numpy as jnp

from ptx.kernels.sampling.config import SamplingConfig, packed_width

__all__ = ["pack_gradients", "packed_width", "unpack"]


def unpack(
    config: SamplingConfig,
    heads: int,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """Locations [N, Q, M, T, 2] and weights [N, Q, M, T], out of rows [N, Q, P] if packed."""
    if packed is None:
        assert locations is not None
        return locations, weights
    n, q, _ = packed.shape
    points = sum(config.points)
    each = packed[..., : 3 * heads * points].reshape(n, q, heads, 3 * points)
    locations = each[..., : 2 * points].reshape(n, q, heads, points, 2)
    return locations, each[..., 2 * points :]


def pack_gradients(locations: jax.Array, weights: jax.Array, width: int) -> jax.Array:
    """The gradient to rows of this width, from those to what they hold; zeros in the padding."""
    n, q, heads, points, _ = locations.shape
    parts = [locations.reshape(n, q, heads, 2 * points), weights]
    used = jnp.concatenate(parts, axis=-1).reshape(n, q, 3 * heads * points)
    return jnp.pad(used, ((0, 0), (0, 0), (0, width - used.shape[-1])))
