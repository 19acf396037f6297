"""Weighted sums of samples, and their gradients, in pure JAX.

These three functions are the lowering of the primitives wherever no kernel is, and what every
kernel is judged by. Each goes over blocks of queries and, within one, over the points of a query:
rows of channels are gathered for one point of all queries and heads at a time, so that nothing is
ever held that is as large as all samples.

The formulas are those of Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End
Object Detection", 2021, with bilinear interpolation as in `torch.nn.functional.grid_sample`.

Dimensions in comments: B queries of a block, M heads, T points of a query and head, D channels.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import compat as _compat
from oxijax._core.blocks import accumulator, scan_blocks
from oxijax._core.rows import add_to_rows, row_products, take_rows
from oxijax._sampling.points import Images, Queries, SampleParams

__all__ = ["backward_points", "backward_value", "forward"]


def forward(
    config: SampleParams, value: jax.Array, locations: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array]:
    """The sums [N, Q, M, D], accumulated in float32 (float64 for float64 value), in its dtype."""
    images = Images.of(config, value)
    heads, channels = value.shape[2:]

    def block(_, queries: Queries):
        points = queries.points(config)

        def add(total, point):
            row, factors, steps = point
            for i in range(steps.shape[0]):
                sample = take_rows(images.rows, row + steps[i]).astype(total.dtype)
                total = total + sample * factors[i][..., None].astype(total.dtype)
            return total, None

        total = jnp.zeros((*points.row.shape[:2], channels), accumulator(value))
        total = _compat.match_varying(total, points.row, images.rows)[0]
        each = _by_point(points.row), _by_point(points.factors(config)), images.steps
        total, _ = lax.scan(add, total, each)
        return None, total.astype(value.dtype)

    queries = Queries.of(locations, config.weights(weights))
    _, y = scan_blocks(block, None, queries, _query_bytes(locations, channels))
    return (y.reshape(*locations.shape[:2], heads, channels),)


def backward_value(
    config: SampleParams, locations: jax.Array, weights: jax.Array | None, grad_y: jax.Array
) -> tuple[jax.Array]:
    """Gradient with respect to value [N, S, M, D].

    Each sample's gradient is added to the pixels that it was read from.
    """
    n, _, heads, channels = grad_y.shape
    dtype = accumulator(grad_y)
    shape = (n, config.pixels, heads, channels)
    images = Images.of(config, jnp.zeros(shape, dtype))

    def block(rows, queries_and_grad):
        queries, grad = queries_and_grad
        points = queries.points(config)
        grad = grad.astype(dtype)

        def add(rows, point):
            row, factors, steps = point
            for i in range(steps.shape[0]):
                update = grad * factors[i][..., None].astype(dtype)
                rows = add_to_rows(rows, row + steps[i], update)
            return rows, None

        each = _by_point(points.row), _by_point(points.factors(config)), images.steps
        return lax.scan(add, rows, each)[0], None

    queries = Queries.of(locations, config.weights(weights))
    rows = _compat.match_varying(images.rows, grad_y, *jax.tree.leaves(queries))[0]
    grads = _flat(grad_y)
    rows, _ = scan_blocks(block, rows, (queries, grads), _query_bytes(locations, channels))
    return (images.without_border(config, rows, shape),)


def backward_points(
    config: SampleParams,
    value: jax.Array,
    locations: jax.Array,
    weights: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array, jax.Array | None]:
    """Gradients with respect to locations and, if there are any, weights.

    All follow from four dot products a sample, each pixel's channels with the gradient of the sum.
    """
    images = Images.of(config, value)
    channels, dtype = value.shape[3], accumulator(value)

    def block(_, queries_and_grad):
        queries, grad = queries_and_grad
        points = queries.points(config)
        grad = grad.astype(dtype)

        def dots(_, point):
            row, steps = point
            return None, [
                row_products(images.rows, row + steps[i], grad) for i in range(steps.shape[0])
            ]

        _, found = lax.scan(dots, None, (_by_point(points.row), images.steps))
        found = [jnp.moveaxis(dot, 0, 2) for dot in found]
        ly, lx = points.fraction_y, points.fraction_x
        if config.place.nearest:
            grad_weight = found[0] * (1 + ly * lx)  # NaN stays
            grad_y = grad_x = ly + lx
        else:
            d1, d2, d3, d4 = found
            grad_weight = (1 - ly) * ((1 - lx) * d1 + lx * d2) + ly * ((1 - lx) * d3 + lx * d4)
            grad_y = ((1 - lx) * (d3 - d1) + lx * (d4 - d2)) * points.slope_y
            grad_x = ((1 - ly) * (d2 - d1) + ly * (d4 - d3)) * points.slope_x
        if points.weight is None:
            return None, (grad_x, grad_y)
        return None, (grad_x * points.weight, grad_y * points.weight, grad_weight)

    used = config.weights(weights)
    queries = Queries.of(locations, used)
    grads = _flat(grad_y)
    _, found = scan_blocks(block, None, (queries, grads), _query_bytes(locations, channels))
    grad_locations = jnp.stack(found[:2], axis=-1).reshape(locations.shape)
    if weights is None or used is None:
        return grad_locations, None
    grad_weights = found[2].reshape(weights.shape)
    if config.normalize:
        used = used.astype(grad_weights.dtype)
        mean = jnp.sum(used * grad_weights, axis=-1, keepdims=True)
        grad_weights = used * (grad_weights - mean)
    return grad_locations, grad_weights


def _flat(array: jax.Array) -> jax.Array:
    """[N, Q, ...] -> [P, ...]."""
    n, q, *rest = array.shape
    return array.reshape(n * q, *rest)


def _by_point(array: jax.Array) -> jax.Array:
    """[..., B, M, T] -> [T, ..., B, M]."""
    return jnp.moveaxis(array, -1, 0)


def _query_bytes(locations: jax.Array, channels: Any) -> int:
    """Bytes that one query works with: its sums, and some ten numbers of each point."""
    heads, points = locations.shape[2:4]
    return 4 * heads * (channels + 10 * points)
