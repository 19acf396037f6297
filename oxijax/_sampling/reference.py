"""Weighted sums of samples, and their gradients, in pure JAX.

These three functions are the lowering of the primitives wherever no kernel is, and what every
kernel is judged by. Each goes over blocks of queries and, within one, over the points of a query:
rows of channels are gathered for one point of all queries and heads at a time, so that nothing is
ever held that is as large as all samples.

The formulas are those of Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End
Object Detection", 2021, with bilinear interpolation as in `torch.nn.functional.grid_sample`.

Dimensions in comments: B queries of a block, M heads, T points of a query and head, D channels.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import compat as _compat
from oxijax._core.arguments.precision import accumulator
from oxijax._core.xla.blocks import scan_blocks
from oxijax._core.xla.rows import add_to_rows, row_products_or_zeros, take_rows_or_zeros
from oxijax._sampling.packed import pack_gradients, unpack
from oxijax._sampling.points import (
    Queries,
    SampleParams,
    image_rows,
    points_last,
    used_weights,
)
from ptx.kernels.sampling import SamplingConfig

__all__ = ["backward_points", "backward_value", "forward"]


def forward(
    params: SampleParams,
    value: jax.Array,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
) -> tuple[jax.Array]:
    """The sums [N, Q, M, D], accumulated in float32 (float64 for float64 value), in its dtype."""
    config = params.op
    rows = _rows(config, value)
    heads, channels = value.shape[2:]
    dtype = accumulator(value)
    locations, weights = unpack(config, heads, locations, weights, packed)

    def block(_, queries: Queries):
        points = queries.points(config)

        def add(total, point):
            for row, factor in _pixels(*point):
                sample = take_rows_or_zeros(rows, row).astype(dtype)
                total = total + sample * factor[..., None].astype(dtype)
            return total, None

        total = jnp.zeros((*points.y.shape[1:], channels), dtype)
        total = _compat.match_varying(total, points.y, rows)[0]
        total, _ = _scan(config, add, total, (points.rows(config), points.factors(config)))
        return None, total.astype(value.dtype)

    queries = Queries.of(locations, used_weights(config, weights))
    _, y = scan_blocks(block, None, queries, _query_bytes(locations, channels))
    return (y.reshape(*locations.shape[:2], heads, channels),)


def backward_value(
    params: SampleParams,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array]:
    """Gradient with respect to value [N, S, M, D].

    Each sample's gradient is added to the pixels that it was read from.
    """
    config = params.op
    n, _, heads, channels = grad_y.shape
    locations, weights = unpack(config, heads, locations, weights, packed)
    dtype = accumulator(grad_y)

    def block(rows, queries_and_grad):
        queries, grad = queries_and_grad
        points = queries.points(config)
        grad = grad.astype(dtype)

        def add(rows, point):
            for row, factor in _pixels(*point):
                update = grad * factor[..., None].astype(dtype)
                rows = add_to_rows(rows, row, update, drop=True)
            return rows, None

        rows, _ = _scan(config, add, rows, (points.rows(config), points.factors(config)))
        return rows, None

    queries = Queries.of(locations, used_weights(config, weights))
    rows = jnp.zeros((image_rows(config, n, heads), channels), dtype)
    rows = _compat.match_varying(rows, grad_y, *jax.tree.leaves(queries))[0]
    arrays = queries, _flat(grad_y)
    rows, _ = scan_blocks(block, rows, arrays, _query_bytes(locations, channels))
    return (rows.reshape(n, config.pixels, heads, channels),)


def backward_points(
    params: SampleParams,
    value: jax.Array,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """Gradients with respect to locations and, if there are any, weights; or to what has both.

    All follow from four dot products a sample, each pixel's channels with the gradient of the sum.
    """
    config = params.op
    rows = _rows(config, value)
    (heads, channels), dtype = value.shape[2:], accumulator(value)
    locations, weights = unpack(config, heads, locations, weights, packed)

    def block(_, queries_and_grad):
        queries, grad = queries_and_grad
        points = queries.points(config)
        grad = grad.astype(dtype)

        def gradients(_, point):
            (lines, columns), (ly, lx, slope_y, slope_x, weight) = point
            dots = [row_products_or_zeros(rows, i + j, grad) for i in lines for j in columns]
            poison = 0 * (ly + lx)  # one NaN coordinate makes all gradients of the point NaN
            if config.geometry.nearest:
                return None, [poison, poison, dots[0] + poison]
            d1, d2, d3, d4 = dots
            grad_x = ((1 - ly) * (d2 - d1) + ly * (d4 - d3)) * slope_x
            grad_y = ((1 - lx) * (d3 - d1) + lx * (d4 - d2)) * slope_y
            if weight is not None:
                grad_x, grad_y = grad_x * weight, grad_y * weight
            grad_weight = (1 - ly) * ((1 - lx) * d1 + lx * d2) + ly * ((1 - lx) * d3 + lx * d4)
            return None, [grad_x + poison, grad_y + poison, grad_weight]

        of_points = (
            points.fraction_y, points.fraction_x, points.slope_y, points.slope_x, points.weight
        )  # fmt: skip
        _, (grad_x, grad_y, grad_weight) = _scan(
            config, gradients, None, (points.rows(config), of_points)
        )
        grad_locations = points_last(jnp.stack([grad_x, grad_y], axis=-1))
        return None, (grad_locations, points_last(grad_weight))

    used = used_weights(config, weights)
    queries = Queries.of(locations, used)
    arrays = queries, _flat(grad_y)
    _, (grad_locations, grad_weights) = scan_blocks(
        block, None, arrays, _query_bytes(locations, channels)
    )
    grad_locations = grad_locations.reshape(locations.shape)
    if weights is None or used is None:
        return grad_locations, None, None
    grad_weights = grad_weights.reshape(weights.shape)
    if config.normalize:
        used = used.astype(grad_weights.dtype)
        mean = jnp.sum(used * grad_weights, axis=-1, keepdims=True)
        grad_weights = used * (grad_weights - mean)
    if packed is None:
        return grad_locations, grad_weights, None
    return None, None, pack_gradients(grad_locations, grad_weights, packed.shape[-1])


def _scan(config: SamplingConfig, step: Callable[..., Any], carry: Any, points: Any) -> Any:
    """`lax.scan` over points.

    A nearest pixel is less work than the sums that it is added to: two take one pass over these.
    """
    return lax.scan(step, carry, points, unroll=2 if config.geometry.nearest else 1)


def _rows(config: SamplingConfig, value: jax.Array) -> jax.Array:
    """The images [N, S, M, D] as rows."""
    n, _, heads, channels = value.shape
    return value.reshape(image_rows(config, n, heads), channels)


def _pixels(rows: Any, factors: Any) -> list[tuple[jax.Array, jax.Array]]:
    """The row and the factor of each pixel of a point, from its lines' and its columns'."""
    lines, columns = (list(zip(*pair, strict=True)) for pair in zip(rows, factors, strict=True))
    return [(i + j, of_line * of_column) for i, of_line in lines for j, of_column in columns]


def _flat(array: jax.Array) -> jax.Array:
    """[N, Q, ...] -> [P, ...]."""
    n, q, *rest = array.shape
    return array.reshape(n * q, *rest)


def _query_bytes(locations: jax.Array, channels: Any) -> int:
    """Bytes that one query works with: its sums, and some ten numbers of each point."""
    heads, points = locations.shape[2:4]
    return 4 * heads * (channels + 10 * points)
