"""Samples that are weighted sums of whole pixels: of cubic ones, and of periodic images.

Each pixel is a point of its own, with a weight, of a geometry in which points are pixels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core.arguments.precision import accumulator
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling.positions import position, reflected
from ptx.kernels.sampling.geometry import Grid

__all__ = ["WHOLE_PIXELS", "inside", "pixel_points", "stencil_points"]

WHOLE_PIXELS = Grid(nearest=True, coordinates="pixel")  # of points that are pixels
_CUBIC_A = -0.75  # of the cubic convolution, as in PyTorch


def stencil_points(
    locations: jax.Array, sizes: tuple[int, ...], geometry: Grid, method: str, *, wrap: bool
) -> tuple[jax.Array, jax.Array | None]:
    """The pixels that are sampled, [N, Q, 1, T, K], and their weights, [N, Q, 1, T]; None for 1.

    Args:
      locations: [N, Q, 1, 1, K].
      sizes: the sizes of the images.
      geometry: how coordinates are read, and the padding.
      method: as in `grid_sample`.
      wrap: whether the image repeats itself, instead of the padding.
    """
    locations = locations.astype(accumulator(locations))
    unbounded = Grid(geometry.align_corners, coordinates=geometry.coordinates)
    along = []
    for axis, size in enumerate(sizes):
        at, extent = locations[..., -1 - axis], np.full((1, 1, 1, 1), size, np.int32)
        real = position(unbounded, axis, at, extent, None).real
        pixel, weight = _stencil(real, method)
        along.append((inside(pixel, extent, geometry, wrap), weight))
    return pixel_points(along)


def pixel_points(
    along: list[tuple[jax.Array, jax.Array | None]],
) -> tuple[jax.Array, jax.Array | None]:
    """Places [..., T, K] and weights [..., T] of the products of pixels [..., P] of each axis.

    Args:
      along: for each axis the pixels and their weights, or None for 1 in all of them.
    """
    pixels = [pixel for pixel, _ in along]
    counts = [pixel.shape[-1] for pixel in pixels]
    points = *pixels[0].shape[:-1], int(np.prod(counts))

    def spread(array: jax.Array, axis: int) -> jax.Array:
        """An array of an axis along all of them."""
        dims = [1] * len(counts)
        dims[axis] = counts[axis]
        shape = *array.shape[:-1], *counts
        return reshape(
            jnp.broadcast_to(reshape(array, (*shape[: -len(counts)], *dims)), shape), points
        )

    places = jnp.stack([spread(pixel, axis) for axis, pixel in enumerate(pixels)][::-1], -1)
    weights = None
    for axis, (_, weight) in enumerate(along):
        if weight is not None:
            weight = spread(weight, axis)
            weights = weight if weights is None else weights * weight
    return places, weights


def _stencil(real: jax.Array, method: str) -> tuple[jax.Array, jax.Array | None]:
    """The pixels about positions [..., 1], [..., P], and their weights."""
    if method == "nearest":
        return jnp.round(jax.lax.stop_gradient(real)), None
    first = jax.lax.stop_gradient(jnp.floor(real))
    # Infinitely far it is a pixel's middle.
    fraction = jax.lax.select(jnp.isinf(real), jnp.zeros_like(real), real - first)
    if method == "bicubic":
        steps, weights = np.arange(-1, 3), _cubic_weights(fraction)
    else:
        steps, weights = np.arange(2), jnp.concatenate([1 - fraction, fraction], -1)
    steps = np.expand_dims(steps.astype(first.dtype), tuple(range(first.ndim - 1)))
    return first + steps, weights


def inside(pixel: jax.Array, extent: np.ndarray, geometry: Grid, wrap: bool) -> jax.Array:
    """Numbers of pixels after the padding mode; infinite ones stay unless edges hold them."""
    size = extent.astype(pixel.dtype)
    if wrap:
        return jnp.where(jnp.isinf(pixel), pixel, pixel - size * jnp.floor(pixel / size))
    if geometry.padding_mode == "border":
        return jnp.clip(pixel, 0, size - 1)
    if geometry.padding_mode == "zeros":
        return pixel
    found = jnp.clip(reflected(geometry, pixel, size)[0], 0, size - 1)
    return jnp.where(jnp.isinf(pixel), pixel, found)


def _cubic_weights(t: jax.Array) -> jax.Array:
    """What the pixels at -1, 0, 1 and 2 weigh for fractions [..., 1]: [..., 4]."""
    a = _CUBIC_A

    def near(d):  # up to a pixel away
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d):
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return jnp.concatenate([far(t + 1), near(t), near(1 - t), far(2 - t)], -1)
