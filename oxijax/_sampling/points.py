"""Points of the sampling operators, block by block, and the pixels that they sample: in pure JAX.

The images of all levels get borders of zeros, two pixels wide, and lie one after the other as rows
of a head's channels. Every point, also a far one, finds its pixels there as rows at fixed
distances, and neither gathers nor additions need a mask.

Dimensions in comments: B queries of a block, M heads, T points of a query and head, D channels.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core.blocks import accumulator
from oxijax._core.sizes import require_product
from oxijax._sampling.places import HEIGHT, WIDTH, Place

__all__ = ["BORDER", "Images", "Points", "Queries", "SampleParams", "padded_pixels"]

BORDER = 2  # pixels of a point just outside are up to two pixels outside
_FAR = 2**31 - 128  # positions are clamped to this before they become integers


@dataclasses.dataclass(frozen=True)
class SampleParams:
    """What is static in a weighted sum of samples.

    Attributes:
      levels: height and width of the images of each level.
      points: of a query and head in each level.
      place: where they lie.
      normalize: weights are the softmax of what is given, over all points of a query and head.
    """

    levels: tuple[tuple[int, int], ...]
    points: tuple[int, ...]
    place: Place
    normalize: bool = False

    @property
    def pixels(self) -> int:
        """Of all levels of an image."""
        return sum(height * width for height, width in self.levels)

    def sizes(self, axis: int) -> np.ndarray:
        """Of the image that each point is in, [T]."""
        return np.repeat([level[axis] for level in self.levels], self.points)

    def weights(self, weights: jax.Array | None) -> jax.Array | None:
        """The weights of the points, [N, Q, M, T]."""
        if weights is None or not self.normalize:
            return weights
        return jax.nn.softmax(weights.astype(accumulator(weights)), axis=-1)


class Images(NamedTuple):
    """The images of all levels with their borders, as rows of the channels of one head."""

    rows: jax.Array  # [N * pixels with borders * M, D]
    steps: np.ndarray  # from a point's first row to those of its pixels, [T, 4], or [T, 1] for one

    @classmethod
    def of(cls, config: SampleParams, value: jax.Array) -> "Images":
        """The images [N, S, M, D]."""
        n, _, heads, channels = value.shape
        _check_rows(config, n, heads)
        levels, start = [], 0
        border = (BORDER, BORDER)
        for height, width in config.levels:
            level = value[:, start : start + height * width]
            level = level.reshape(n, height, width, heads, channels)
            level = jnp.pad(level, ((0, 0), border, border, (0, 0), (0, 0)))
            padded = (height + 2 * BORDER) * (width + 2 * BORDER)
            levels.append(level.reshape(n, padded, heads, channels))
            start += height * width
        rows = jnp.concatenate(levels, axis=1)
        rows = rows.reshape(n * padded_pixels(config) * heads, channels)
        return cls(rows, _steps(config, heads))

    def without_border(
        self, config: SampleParams, rows: jax.Array, shape: tuple[int, ...]
    ) -> jax.Array:
        """Rows as the images again, of this shape, [N, S, M, D]."""
        n, _, heads, channels = shape
        images = rows.reshape(n, padded_pixels(config), heads, channels)
        levels, start = [], 0
        for height, width in config.levels:
            padded = height + 2 * BORDER, width + 2 * BORDER
            level = images[:, start : start + math.prod(padded)]
            level = level.reshape(n, *padded, heads, channels)
            inside = level[:, BORDER : BORDER + height, BORDER : BORDER + width]
            levels.append(inside.reshape(n, height * width, heads, channels))
            start += math.prod(padded)
        return jnp.concatenate(levels, axis=1)


class Points(NamedTuple):
    """Points of some queries, by arrays [B, M, T]."""

    row: jax.Array  # of `Images`: the pixel at (floor y, floor x), or the nearest one
    fraction_y: jax.Array  # NaN if a coordinate is; 0 for the nearest pixel
    fraction_x: jax.Array
    slope_y: jax.Array | np.ndarray  # of the position, with respect to the coordinate
    slope_x: jax.Array | np.ndarray
    weight: jax.Array | None

    def factors(self, config: SampleParams) -> jax.Array:
        """Of the pixels, in the order of `Images.steps`, with the weight: [4 or 1, B, M, T]."""
        if config.place.nearest:
            one = 1 + self.fraction_y * self.fraction_x  # NaN stays
            return (one if self.weight is None else one * self.weight)[None]
        hy, hx = 1 - self.fraction_y, 1 - self.fraction_x
        ly, lx = self.fraction_y, self.fraction_x
        if self.weight is not None:
            hy, ly = hy * self.weight, ly * self.weight
        return jnp.stack([hy * hx, hy * lx, ly * hx, ly * lx])


class Queries(NamedTuple):
    """Queries of all images, [P], and all that their points depend on."""

    x: jax.Array  # coordinates, [P, M, T]
    y: jax.Array
    weight: jax.Array | None
    image: jax.Array  # [P]
    query: jax.Array  # in its image

    @classmethod
    def of(cls, locations: jax.Array, weights: jax.Array | None) -> "Queries":
        """All queries, of locations [N, Q, M, T, 2] as (x, y) and weights [N, Q, M, T]."""
        n, q, *rest = locations.shape[:-1]
        image, query = (
            jax.lax.broadcasted_iota(jnp.int32, (n, q), axis).reshape(-1) for axis in range(2)
        )
        x, y = (locations[..., i].reshape(n * q, *rest) for i in range(2))
        weights = None if weights is None else weights.reshape(n * q, *rest)
        return cls(x, y, weights, image, query)

    def points(self, config: SampleParams) -> Points:
        """The points of these queries."""
        dtype = accumulator(self.x)
        coordinates = {HEIGHT: self.y.astype(dtype), WIDTH: self.x.astype(dtype)}
        # One NaN coordinate makes the whole sample NaN, and its gradients. Its row is as far
        # outside as that of an infinite one, where what is added is dropped.
        invalid = jnp.isnan(coordinates[HEIGHT]) | jnp.isnan(coordinates[WIDTH])
        poison = jnp.where(invalid, jnp.nan, 0).astype(dtype)
        found = []
        for axis, coordinate in coordinates.items():
            size = config.sizes(axis).astype(np.int32)
            real, whole, slope = config.place.along(axis, coordinate, size, self.query)
            floor = jnp.floor(real)
            fraction = jnp.where(jnp.isfinite(real), real - floor, 0)
            floor = jnp.where(invalid | jnp.isnan(floor), -_FAR, jnp.clip(floor, -_FAR, _FAR))
            # The sum could overflow; what is clipped first ends between -BORDER and the size.
            pixel = jnp.clip(floor.astype(jnp.int32), -BORDER - whole, size - whole)
            found.append((pixel + (whole + BORDER), fraction + poison, slope))
        (y, fraction_y, slope_y), (x, fraction_x, slope_x) = found

        heads, pitch = self.x.shape[1], config.sizes(WIDTH) + 2 * BORDER
        # What fills a block up, with `NOWHERE` for integers, is in the first image.
        pixel = jnp.maximum(self.image, 0)[:, None, None] * padded_pixels(config)
        pixel = pixel + (y * pitch.astype(np.int32) + x + _starts(config))
        row = pixel * heads + np.arange(heads, dtype=np.int32)[:, None]
        return Points(row, fraction_y, fraction_x, slope_y, slope_x, self.weight)


def padded_pixels(config: SampleParams) -> int:
    """Of all levels of an image, with their borders."""
    return sum((h + 2 * BORDER) * (w + 2 * BORDER) for h, w in config.levels)


def _starts(config: SampleParams) -> np.ndarray:
    """The first pixel of the level of each point, [T]."""
    sizes = [(h + 2 * BORDER) * (w + 2 * BORDER) for h, w in config.levels]
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int32)
    return np.repeat(starts, config.points)


def _steps(config: SampleParams, heads: int) -> np.ndarray:
    """From a point's first row to (y, x), (y, x+1), (y+1, x) and (y+1, x+1), [T, 4]."""
    down = (config.sizes(WIDTH).astype(np.int32) + 2 * BORDER) * heads
    right = np.full_like(down, heads)
    steps = np.stack([0 * down, right, down, down + right], axis=1)
    return steps[:, :1] if config.place.nearest else steps


def _check_rows(config: SampleParams, n: int, heads: int) -> None:
    factors = (n, padded_pixels(config), heads)
    require_product(
        factors,
        2**31 - 1,
        f"a batch of {n} with {heads} heads and levels {config.levels} needs {math.prod(factors)} "
        "rows of samples, and XLA indexes fewer than 2**31: split the batch",
    )
