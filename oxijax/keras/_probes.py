"""Drawn arguments of the sampling of detectors in Keras, to compare stand-ins with it."""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from keras import ops

__all__ = [
    "KERAS_HUB_CORE", "Probe", "Shapes", "Sizes", "channels_before_pixels", "counted_points",
    "keras_hub_call", "keras_hub_core", "keras_hub_grid_sample", "layer_call", "one_level",
]  # fmt: skip

KERAS_HUB_CORE = "multi_scale_deformable_attention_v2"
Shapes = Sequence[tuple[int, int]]  # height and width of each level


class Sizes(NamedTuple):
    """The sizes of drawn arguments; points are those of each level, or the first is for all."""

    batch: int = 2
    levels: Shapes = ((4, 5), (3, 2))
    queries: int = 3
    heads: int = 2
    channels: int = 8
    points: Sequence[int] = (3, 2)
    seed: int = 0

    def drawn(self, *shape: int, low: float = -1.0, high: float = 1.0, more: int = 0) -> jax.Array:
        """Uniform float32, other numbers for another `more`."""
        drawn = np.random.default_rng([self.seed, more]).uniform(low, high, shape)
        return ops.convert_to_tensor(drawn.astype("float32"))

    def attention(self, points: Sequence[int]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Values [B, S, M, D], locations [B, Q, M, all points, 2], also outside, and weights."""
        shape = (self.batch, self.queries, self.heads, sum(points))
        value = self.drawn(self.batch, self.pixels, self.heads, self.channels)
        return value, self.drawn(*shape, 2, low=-0.2, high=1.2), self.drawn(*shape, more=1)

    def dense(self, *features: int, more: int) -> Callable[[jax.Array], jax.Array]:
        """A linear layer of queries or values."""
        kernel = self.drawn(self.features, math.prod(features), more=more)
        kernel = kernel / math.sqrt(self.features)
        return lambda x: (x @ kernel).reshape(*x.shape[:-1], *features)

    @property
    def features(self) -> int:
        return self.heads * self.channels

    @property
    def pixels(self) -> int:
        return sum(map(math.prod, self.levels))


# Several calls' arguments for what has a function, its module or its class, and for sizes.
Probe = Callable[[Any, Sizes], Sequence[tuple[Any, ...]]]


def channels_before_pixels(_: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    levels, points = len(sizes.levels), sizes.points[0]
    value, locations, weights = sizes.attention((points,) * levels)
    locations = locations.reshape(*locations.shape[:3], levels, points, 2)
    return [(ops.transpose(value, (0, 2, 3, 1)), sizes.levels, locations, weights)]


def one_level(owner: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    return channels_before_pixels(owner, sizes._replace(levels=sizes.levels[:1]))


def counted_points(_: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    value, locations, weights = sizes.attention(sizes.points)
    return [(value, list(sizes.levels), locations, weights, list(sizes.points))]


def layer_call(_: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    # What looks like a layer: a real one would change the names and the seeds of later ones.
    batch, features, levels = sizes.batch, sizes.features, len(sizes.levels)
    weights = sizes.heads * levels * sizes.points[0]
    layer = SimpleNamespace(
        hidden_dim=features, n_heads=sizes.heads, n_levels=levels, n_points=sizes.points[0],
        head_dim=sizes.channels, spatial_shapes=sizes.levels,
        sampling_offsets=sizes.dense(2 * weights, more=1),
        attention_weights=sizes.dense(weights, more=2),
        value_proj=sizes.dense(features, more=3), output_proj=sizes.dense(features, more=4),
    )  # fmt: skip
    query = sizes.drawn(batch, sizes.queries, features)
    references = sizes.drawn(batch, sizes.queries, levels, 2, low=0.0)
    return [(layer, query, references, sizes.drawn(batch, sizes.pixels, features, more=5))]


def keras_hub_core(_: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    levels, points = list(sizes.levels), list(sizes.points)
    pixels = [*map(math.prod, levels)]
    value, *others = sizes.attention(points)
    arguments = value, np.array(levels), *others, points, pixels, levels, len(levels), sizes.queries
    return [(*arguments, "default"), (*arguments, "discrete")]


def keras_hub_call(cls: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    heads, points, levels = sizes.heads, list(sizes.points), list(sizes.levels)
    scale = np.repeat(1 / np.array(points), points).astype("float32")
    layer = SimpleNamespace(
        hidden_dim=sizes.features, n_heads=heads, n_levels=len(levels), num_points=points,
        spatial_shapes=levels, num_points_scale=scale, offset_scale=0.5,
        sampling_offsets=sizes.dense(heads, sum(points), 2, more=1),
        attention_weights=sizes.dense(heads, sum(points), more=2),
        ms_deformable_attn_core=vars(sys.modules[cls.__module__])[KERAS_HUB_CORE],
    )  # fmt: skip
    layer.compute_attention = functools.partial(cls.compute_attention, layer)
    query = sizes.drawn(sizes.batch, sizes.queries, sizes.features)
    value = sizes.drawn(sizes.batch, sizes.pixels, sizes.features, more=3)
    boxes = sizes.drawn(sizes.batch, sizes.queries, 1, 4, low=0.1)
    methods = ("default", "discrete")
    layers = [SimpleNamespace(**vars(layer), decoder_method=method) for method in methods]
    return [(each, query, value, boxes, np.array(levels)) for each in layers]


def keras_hub_grid_sample(_: Any, sizes: Sizes) -> Sequence[tuple[Any, ...]]:
    (height, width), *_rest = sizes.levels
    images = sizes.drawn(sizes.batch, sizes.channels, height, width)
    grid = sizes.drawn(sizes.batch, sizes.queries, sizes.points[0], 2, low=-1.2, high=1.2)
    return [(images, grid, False), (images, grid, True), (images, grid, False, height, width)]
