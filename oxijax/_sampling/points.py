"""Points of the sampling operators, block by block, and the pixels that they sample: in pure JAX.

The images are rows of a head's channels, [N * S * M, D]. A pixel's row is the sum of a part of its
line and a part of its column; of a line or column outside of the image that part is so large that
no row has the number. So there are no copies of the images, and what a line or column says is
found once for all of its pixels. An image of one dimension is a line, and a volume has lines in
each of its slices.

Dimensions in comments: T points of a query and head, B queries of a block, M heads. Points come
first, so that arithmetic runs along queries, and loops take a point at a time.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core.arguments.checks import is_known, require_product
from oxijax._core.arguments.precision import accumulator
from oxijax._core.primitive.operation import OpParams
from oxijax._sampling.positions import position
from ptx.kernels.sampling import SamplingConfig

__all__ = [
    "Points",
    "Queries",
    "SampleParams",
    "check_image",
    "image_rows",
    "of_points",
    "points_last",
    "sizes_along",
    "used_weights",
]

_OUTSIDE = np.uint32(2**31 - 1)  # of a line or column: with any other part, it is no row


SampleParams = OpParams[SamplingConfig]


def sizes_along(config: SamplingConfig, axis: int) -> np.ndarray:
    """Along an axis, the size of the image that each point is in, [T, 1, 1]."""
    return of_points(config, [level[axis] for level in config.levels])


def of_points(config: SamplingConfig, of_levels: Sequence[int]) -> np.ndarray:
    """A number of each level, for each point: int32 [T, 1, 1]."""
    return np.repeat(np.asarray(of_levels, np.int32), config.points)[:, None, None]


def used_weights(config: SamplingConfig, weights: jax.Array | None) -> jax.Array | None:
    """The weights of the points, [N, Q, M, T], after a softmax if there is one."""
    if weights is None or not config.normalize:
        return weights
    return jax.nn.softmax(weights.astype(accumulator(weights)), axis=-1)


def check_image(name: str, image: jax.Array) -> None:
    """Checks images [N, ..., C] of one, two or three dimensions.

    Raises:
      ValueError: it has no pixels or channels, or sizes that are not known.
    """
    if not is_known(*image.shape[1:]):
        raise ValueError(
            f"{name} must have {_sizes(image)} and channels that are known when the program is "
            "traced, since kernels of the sampling operators are generated for them; its batch may "
            f"be symbolic. Got shape {image.shape}"
        )
    if min(image.shape[1:]) < 1:
        raise ValueError(f"{name} must have {_sizes(image)} and channels, got shape {image.shape}")


def _sizes(image: jax.Array) -> str:
    """The names of the sizes of images [N, ..., C]."""
    return ", ".join(("a depth", "a height", "a width")[5 - image.ndim :])


class Points(NamedTuple):
    """Points of some queries, by arrays [T, B, M].

    Attributes:
      first: along each axis, the pixel at the position's floor, or the nearest one, in its image:
        int32; far outside another one that is.
      fractions: from that pixel to the point; NaN if the coordinate is, 0 for the nearest pixel.
      slopes: of the position, with respect to the coordinate.
      weight: None for 1.
      image: int32 [B].
    """

    first: tuple[jax.Array, ...]
    fractions: tuple[jax.Array, ...]
    slopes: tuple[jax.Array | np.ndarray, ...]
    weight: jax.Array | None
    image: jax.Array

    def rows(self, config: SamplingConfig) -> tuple[list[jax.Array], list[jax.Array]]:
        """What the lines and the columns of the pixels add to the numbers of their rows: uint32.

        There are two columns, and lines as they are counted along the other axes, of which each
        has two; or one, for the nearest pixel.
        """
        heads = self.first[0].shape[2]
        pixels = [math.prod(level) for level in config.levels]
        first = of_points(config, [0, *itertools.accumulate(pixels[:-1])]).astype(np.uint32)
        image = self.image[:, None].astype(jnp.uint32) * np.uint32(config.pixels)
        *sizes, width = (sizes_along(config, axis).astype(np.uint32) for axis in config.axes)
        steps = range(1 if config.geometry.nearest else 2)
        # Below 0 the unsigned number is a large one.
        *others, columns = (
            [(at + np.int32(step)).astype(jnp.uint32) for step in steps] for at in self.first
        )
        lines = []
        for along in itertools.product(*others):
            line: Any = np.zeros_like(width)
            inside: Any = np.ones_like(width, bool)
            for at, size in zip(along, sizes, strict=True):
                line, inside = line * size + at, inside & (at < size)
            row = (image + (first + line * width)) * np.uint32(heads)
            row = row + np.arange(heads, dtype=np.uint32)
            lines.append(jnp.where(inside, row, _OUTSIDE))
        return lines, [
            jnp.where(column < width, column * np.uint32(heads), _OUTSIDE) for column in columns
        ]

    def factors(self, config: SamplingConfig) -> tuple[list[jax.Array], list[jax.Array]]:
        """The factors of these lines, with the weight, and of these columns.

        That of a pixel is the product of its line's and its column's.
        """
        if config.geometry.nearest:
            one = 1 + math.prod(self.fractions)  # NaN stays
            lines, columns = [one], [jnp.ones_like(one)]
        else:
            *others, columns = ([1 - fraction, fraction] for fraction in self.fractions)
            lines = [math.prod(along) for along in itertools.product(*others)]
        if self.weight is not None:
            lines = [line * self.weight for line in lines]
        return [jnp.broadcast_to(line, columns[0].shape) for line in lines], columns


class Queries(NamedTuple):
    """Queries of all images, [P], and all that their points depend on."""

    locations: jax.Array  # [P, M, T, K], the last axis's coordinate first
    weights: jax.Array | None  # [P, M, T]
    image: jax.Array  # [P]
    query: jax.Array  # in its image

    @classmethod
    def of(cls, locations: jax.Array, weights: jax.Array | None) -> "Queries":
        """All queries, of locations [N, Q, M, T, K] and weights [N, Q, M, T]."""
        n, q, *rest = locations.shape
        image, query = (
            jax.lax.broadcasted_iota(jnp.int32, (n, q), axis).reshape(-1) for axis in range(2)
        )
        weights = None if weights is None else weights.reshape(n * q, *rest[:2])
        return cls(locations.reshape(n * q, *rest), weights, image, query)

    def points(self, config: SamplingConfig) -> Points:
        """The points of these queries."""
        dtype = accumulator(self.locations)
        found = []
        for axis in config.axes:
            coordinate = _points_first(self.locations[..., -1 - axis]).astype(dtype)
            size = sizes_along(config, axis)
            real, whole, slope = position(config.geometry, axis, coordinate, size, self.query)
            # An infinite coordinate may have no position: in a mirror, or scaled by 0.
            nowhere = jnp.isnan(real) & ~jnp.isnan(coordinate)
            outside = np.array(-np.inf, real.dtype)
            real = jnp.where(nowhere, outside, real)
            floor = jnp.floor(real)
            # Of what no integer counts XLA has the first or the last one; of NaN pixels are as far
            # outside, where what is added is dropped. With what is whole it may come around.
            pixel = jnp.where(jnp.isnan(real), outside, floor).astype(jnp.int32) + whole
            fraction = jnp.where(jnp.isinf(real), 0, real - floor)
            found.append((pixel, fraction, slope))
        weight = None if self.weights is None else _points_first(self.weights)
        # What fills a block up, with `NOWHERE` for integers, is in the first image.
        image = jnp.maximum(self.image, 0)
        first, fractions, slopes = zip(*found, strict=True)
        return Points(first, fractions, slopes, weight, image)


def _points_first(array: jax.Array) -> jax.Array:
    """[B, M, T] -> [T, B, M]."""
    return jnp.moveaxis(array, 2, 0)


def points_last(array: jax.Array) -> jax.Array:
    """[T, B, M, ...] -> [B, M, T, ...]."""
    return jnp.moveaxis(array, 0, 2)


def image_rows(config: SamplingConfig, n: int, heads: int) -> int:
    """How many rows the images have.

    Raises:
      ValueError: they are too many to count.
    """
    images = max(n, 1) if is_known(n) else n  # without images pixels are numbered all the same
    factors = (images, config.pixels, heads)
    require_product(
        factors,
        2**31 - 1,
        f"a batch of {n} with {heads} heads and levels {config.levels} has {math.prod(factors)} "
        "rows of channels, and XLA indexes fewer than 2**31: split the batch",
    )
    return n * config.pixels * heads
