"""Lists of the points in each cell, from which the deterministic backward to images gathers.

They are made by one stable sort and by counting, whose results XLA does not leave to chance. They
hold nothing for each channel: an index and the weights of its pixels for each point.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oxijax._core.arguments.checks import require_product
from oxijax._core.xla.runs import run_starts
from oxijax._sampling.points import (
    Points,
    Queries,
    of_points,
    points_last,
    sizes_along,
    used_weights,
)
from ptx.kernels.sampling import SamplingConfig
from ptx.kernels.sampling.backward_value_gather import CELL_BORDER

__all__ = ["PointLists", "point_lists"]


class PointLists(NamedTuple):
    """The points of all queries and heads, by the cell that they lie in.

    What lies far outside, or nowhere, is in cells that no pixel has.
    """

    starts: jax.Array  # int32 [N * cells * M + 1]
    order: jax.Array  # int32 [N*Q*M*T]
    corner_weights: jax.Array  # [N*Q*M*T, pixels of a point], in that order


def point_lists(
    config: SamplingConfig,
    locations: jax.Array,
    weights: jax.Array | None,
    dtype: jax.typing.DTypeLike,
) -> PointLists:
    """The lists of a weighted sum of samples.

    Args:
      config: the sum.
      locations: [N, Q, M, T, K].
      weights: [N, Q, M, T], or None.
      dtype: the dtype of the corners' weights: float32 or float64.

    Raises:
      ValueError: points or cells are too many to count; the message says what to do.
    """
    n, queries, heads, each, _ = locations.shape
    cells = sum(_level_cells(config))
    for what, factors in (
        ("points", (n, queries, heads * each)),
        ("cells", (n, cells * heads)),
    ):
        require_product(
            factors,
            2**31 - 2,
            f"the deterministic gradient of a batch of {n} with {queries} queries, {heads} heads "
            f"of {each} points and levels {config.levels} sorts points, and can count fewer than "
            f"2**31 {what}: split the batch",
        )
    points = Queries.of(locations, used_weights(config, weights)).points(config)
    keys = points_last(_cell(config, points)).reshape(-1).astype(jnp.uint32)
    (starts,) = run_starts(keys[None], n * cells * heads)
    numbers = lax.iota(jnp.int32, keys.shape[0])
    _, order = lax.sort((keys, numbers), is_stable=True, num_keys=1)
    lines, columns = points.factors(config)
    factors = jnp.stack(
        [points_last(line * column).reshape(-1) for line in lines for column in columns]
    )
    factors = factors.astype(dtype)[:, order]
    return PointLists(starts, order, factors.T)


def _cell(config: SamplingConfig, points: Points) -> jax.Array:
    """The cell that each point is in, [T, B, M]: a pixel and head of the images with borders."""
    heads, sizes = points.first[0].shape[2], _level_cells(config)
    first = of_points(config, [0, *itertools.accumulate(sizes[:-1])])
    cell, *others = (
        jnp.clip(at, -CELL_BORDER, sizes_along(config, axis)) + CELL_BORDER
        for axis, at in enumerate(points.first)
    )
    for axis, at in enumerate(others, start=1):
        cell = cell * (sizes_along(config, axis) + 2 * CELL_BORDER) + at
    pixel = points.image[:, None] * sum(sizes) + (cell + first)
    return pixel * heads + np.arange(heads, dtype=np.int32)


def _level_cells(config: SamplingConfig) -> list[int]:
    """Pixels of each level of an image with its borders."""
    return [math.prod(size + 2 * CELL_BORDER for size in level) for level in config.levels]
