"""The layers of sampling operators that are timed, and the same in plain JAX: four gathers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import oxijax
from gpu_suite.layers import DTYPES, Work
from ptx.kernels.layer_model import OFFSET_DEVIATION
from ptx.kernels.network_layer import NetworkLayer
from ptx.kernels.sampling.catalog import NETWORKS
from ptx.kernels.sampling.geometry import Window
from ptx.kernels.sampling.model import centers

__all__ = ["SamplingLayer", "four_gathers", "layers", "operands", "work"]


@dataclasses.dataclass(frozen=True)
class SamplingLayer:
    """Multi-scale deformable attention, or DCNv3 with a window of 3 x 3.

    Attributes:
      name: the layer's name.
      images: how many.
      levels: height and width of their images.
      heads, channels: the heads of a query, and the channels of a head.
      queries: the queries of an image; None for a window around each pixel.
      points: the points of a query, head and level.
      normalize: whether weights are the softmax of what is given, as networks have it.
    """

    name: str
    images: int
    levels: tuple[tuple[int, int], ...]
    heads: int
    channels: int
    queries: int | None = None
    points: int = 9
    normalize: bool = True

    @property
    def pixels(self) -> int:
        """Of all levels of an image."""
        return sum(height * width for height, width in self.levels)

    def ours(self, *arrays: jax.Array) -> jax.Array:
        """The operator."""
        if self.queries is None:
            return oxijax.dcnv3(*arrays, kernel_size=3, groups=self.heads, softmax=self.normalize)
        return oxijax.ms_deform_attn(*arrays, spatial_shapes=self.levels, normalize=self.normalize)

    def plain(self, *arrays: jax.Array) -> jax.Array:
        """The same in plain JAX."""
        *others, weights = arrays
        if self.normalize:  # over the points of a query and head
            pixels = weights.shape[: 2 if self.queries is not None else 3]
            of_head = weights.reshape(*pixels, self.heads, -1)
            weights = jax.nn.softmax(of_head, axis=-1).reshape(weights.shape)
        if self.queries is None:
            x, offset = others
            return _window(self.heads, x, offset, weights)
        value, locations = others
        return _attention(self.levels, value, locations, weights)


def layers(tiny: bool) -> list[SamplingLayer]:
    """The layers of networks, or tiny ones."""
    if tiny:
        return [
            SamplingLayer("attention", 1, ((4, 6), (2, 3)), 2, 8, 5, 4),
            SamplingLayer("window", 1, ((5, 6),), 2, 8),
        ]
    return [_of_network(name, layer) for name, layer in NETWORKS.items()]


def _of_network(name: str, layer: NetworkLayer) -> SamplingLayer:
    config, (images, queries) = layer.config, layer.extent
    shape = images, config.levels, config.heads, config.channels
    if isinstance(config.geometry, Window):
        return SamplingLayer(name, *shape)
    return SamplingLayer(name, *shape, queries, config.points[0])


def operands(layer: SamplingLayer, dtype: str, seed: jax.Array) -> tuple[jax.Array, ...]:
    """Images, places and weights in float32, and the result's gradient."""
    keys, n, heads = jax.random.split(jax.random.key(seed), 5), layer.images, layer.heads
    normal = functools.partial(jax.random.normal, dtype=jnp.float32)
    if layer.queries is None:
        size = layer.levels[0]
        image = n, *size, heads * layer.channels
        arrays = [
            normal(keys[0], image),
            OFFSET_DEVIATION * normal(keys[1], (n, *size, heads * 18)),
            jax.random.uniform(keys[2], (n, *size, heads * 9)),
            normal(keys[3], image),
        ]
    else:
        shape = n, layer.queries, heads, len(layer.levels), layer.points
        spread = OFFSET_DEVIATION / np.array([(w, h) for h, w in layer.levels], np.float32)[:, None]
        # Queries are the pixels of all levels, or anywhere.
        places = jax.random.uniform(keys[4], (layer.queries, 2))
        if layer.queries == layer.pixels:
            places = jnp.asarray(centers(layer.levels))
        places = places[:, None, None, None] + spread * normal(keys[1], (*shape, 2))
        arrays = [
            normal(keys[0], (n, layer.pixels, heads, layer.channels)),
            places,
            jax.random.uniform(keys[2], shape),
            normal(keys[3], (n, layer.queries, heads, layer.channels)),
        ]
    return tuple(
        array.astype("float32" if i in (1, 2) else dtype) for i, array in enumerate(arrays)
    )


def work(layer: SamplingLayer, operation: str, dtype: str) -> Work:
    """What an operation has to do: it moves memory, and has no matrix product."""
    queries = layer.pixels if layer.queries is None else layer.queries
    points = layer.images * queries * layer.heads * len(layer.levels) * layer.points
    images = layer.images * layer.pixels * layer.heads * layer.channels
    sums = layer.images * queries * layer.heads * layer.channels
    moved = (images + sums) * DTYPES[dtype] + 12 * points
    if operation == "backward_points":
        moved += 12 * points
    return Work(0, moved)


def four_gathers(image: jax.Array, y: jax.Array, x: jax.Array) -> jax.Array:
    """Samples [N, Q, M, P, D] of an image [N, H, W, M, D] at positions [N, Q, M, P] in pixels."""
    n, height, width, heads, _ = image.shape
    top, left = jnp.floor(y), jnp.floor(x)
    of_image, of_head = jnp.arange(n)[:, None, None, None], jnp.arange(heads)[:, None]
    total = jnp.zeros((), image.dtype)
    for row, by_row in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, by_column in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at_row = jnp.clip(row, 0, height - 1).astype(int)
            at_column = jnp.clip(column, 0, width - 1).astype(int)
            pixel = image[of_image, at_row, at_column, of_head]
            total = total + pixel * (by_row * by_column * inside)[..., None]
    return total


def _attention(
    levels: tuple[tuple[int, int], ...], value: jax.Array, locations: jax.Array, weights: jax.Array
) -> jax.Array:
    n, _, heads, channels = value.shape
    total, start = jnp.zeros((), value.dtype), 0
    for level, (height, width) in enumerate(levels):
        image = value[:, start : start + height * width]
        image = image.reshape(n, height, width, heads, channels)
        start += height * width
        at = locations[:, :, :, level] * jnp.array([width, height]) - 0.5
        samples = four_gathers(image, at[..., 1], at[..., 0])
        total = total + (samples * weights[:, :, :, level, :, None]).sum(3)
    return total.astype(value.dtype)


def _window(heads: int, x: jax.Array, offset: jax.Array, mask: jax.Array) -> jax.Array:
    n, height, width, channels = x.shape
    image = x.reshape(n, height, width, heads, channels // heads)
    offset = offset.reshape(n, height * width, heads, 9, 2)
    row, column = jnp.divmod(jnp.arange(height * width), width)
    tap_x, tap_y = jnp.divmod(jnp.arange(9), 3)
    y = row[:, None, None] + (tap_y - 1) + offset[..., 1]
    left = column[:, None, None] + (tap_x - 1) + offset[..., 0]
    samples = four_gathers(image, y, left)
    weights = mask.reshape(n, height * width, heads, 9, 1)
    return (samples * weights).sum(3).reshape(x.shape).astype(x.dtype)
