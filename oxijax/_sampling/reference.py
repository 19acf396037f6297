"""Weighted sums of samples, and their gradients, in pure JAX.

These three functions are the lowering of the primitives wherever no kernel is, and what every
kernel is judged by. Each goes over blocks of queries and, within one, over the points of a query:
rows of channels are gathered for one point of all queries and heads at a time, so that nothing is
ever held that is as large as all samples.

The formulas are those of Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End
Object Detection", 2021, with bilinear interpolation as in `torch.nn.functional.grid_sample`.

Dimensions in comments: B queries of a block, M heads, T points of a query and head, D channels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import compat as _compat
from oxijax._core.arguments.precision import accumulator
from oxijax._core.xla.blocks import apart, scan_blocks
from oxijax._core.xla.rows import (
    add_to_rows,
    hidden_zero,
    row_products_or_zeros,
    take_rows_or_zeros,
)
from oxijax._sampling.packed import pack_gradients, unpack
from oxijax._sampling.points import (
    Queries,
    SampleParams,
    image_rows,
    points_last,
    used_weights,
)
from ptx.kernels.sampling import SamplingConfig

__all__ = ["backward_points", "backward_samples", "backward_value", "forward"]


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

        first, *_ = points.first
        total = jnp.zeros((*first.shape[1:], channels), dtype)
        total = _compat.match_varying(total, first, rows)[0]
        total, _ = _scan(config, add, total, (points.rows(config), points.factors(config)))
        return None, total.astype(value.dtype)

    queries = Queries.of(locations, used_weights(config, weights))
    _, y = scan_blocks(block, None, queries, _query_bytes(locations, channels, is_fused=True))
    if channels == 1:  # or XLA's loop would be over what this becomes, whose rows may be short
        n, q = locations.shape[:2]
        y = apart(lambda y: y, y.reshape(n, q * heads), number=locations)
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
    locations, weights = unpack(config, grad_y.shape[2], locations, weights, packed)
    queries = Queries.of(locations, used_weights(config, weights))
    images, zero = _images(config, grad_y, queries), hidden_zero(grad_y)

    def block(images, queries_and_grad):
        queries, grad = queries_and_grad
        points, grad = queries.points(config), grad.astype(images.dtype)

        def add(images, point):
            return _add_to_images(images, point, grad, zero), None

        return _scan(config, add, images, (points.rows(config), points.factors(config)))

    arrays = queries, _flat(grad_y)
    size = _query_bytes(locations, grad_y.shape[3])
    images, _ = scan_blocks(block, images, arrays, size)
    return (_values(config, images, grad_y),)


def backward_points(
    params: SampleParams,
    value: jax.Array,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """Gradients with respect to locations and, if there are any, weights; or to what has both.

    All follow from dot products, of each pixel's channels with the gradient of the sum.
    """
    config = params.op
    rows = _rows(config, value)
    (heads, channels), dtype = value.shape[2:], accumulator(value)
    locations, weights = unpack(config, heads, locations, weights, packed)

    def places(queries: Queries):
        points = queries.points(config)
        return points.rows(config), (points.fractions, points.slopes, points.weight)

    def block(_, queries_and_grad):
        queries, grad = queries_and_grad
        # Apart, or all loops would find the places of one point again.
        of = queries.locations
        points = apart(places, queries, number=of) if is_fused else places(queries)
        grad = grad.astype(dtype)

        def step(_, point):
            return None, _point_gradients(config, rows, point, grad, zero)

        _, gradients = _scan(config, step, None, points)
        return None, _of_queries(gradients)

    used = used_weights(config, weights)
    is_fused = _is_fused(config, channels)
    at, zero = locations, None if is_fused else hidden_zero(grad_y)
    if is_fused:  # or `forward` would hold what both find of it for this
        at = apart(lambda at: at, locations, number=locations)
    arrays = Queries.of(at, used), _flat(grad_y)
    _, gradients = scan_blocks(
        block, None, arrays, _query_bytes(locations, channels, is_fused=is_fused)
    )
    return _as_operands(config, gradients, locations, weights, used, packed)


def backward_samples(
    params: SampleParams,
    value: jax.Array,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array | None, ...]:
    """The gradients of `backward_value` and `backward_points`, in one loop over points.

    One thread adds to the images while another one finds dot products.
    """
    config = params.op
    if _is_fused(config, value.shape[3]):
        grad_value = backward_value(params, locations, weights, packed, grad_y)
        return *grad_value, *backward_points(params, value, locations, weights, packed, grad_y)
    rows, heads = _rows(config, value), value.shape[2]
    locations, weights = unpack(config, heads, locations, weights, packed)
    used = used_weights(config, weights)
    queries = Queries.of(locations, used)
    images, zero = _images(config, grad_y, queries), hidden_zero(grad_y)

    def block(images, queries_and_grad):
        queries, grad = queries_and_grad
        points, grad = queries.points(config), grad.astype(images.dtype)

        def step(images, point):
            pixels, factors, of_place = point
            images = _add_to_images(images, (pixels, factors), grad, zero)
            return images, _point_gradients(config, rows, (pixels, of_place), grad, zero)

        of_places = points.fractions, points.slopes, points.weight
        found = points.rows(config), points.factors(config), of_places
        images, gradients = _scan(config, step, images, found)
        return images, _of_queries(gradients)

    arrays = queries, _flat(grad_y)
    size = _query_bytes(locations, grad_y.shape[3])
    images, gradients = scan_blocks(block, images, arrays, size)
    grad_points = _as_operands(config, gradients, locations, weights, used, packed)
    return _values(config, images, grad_y), *grad_points


def _is_fused(config: SamplingConfig, channels: Any) -> bool:
    """Whether XLA finds the places of points where it uses them: of one point there is no loop."""
    return sum(config.points) == 1 and channels > 8


def _images(config: SamplingConfig, grad_y: jax.Array, queries: Queries) -> jax.Array:
    """Images of zeros, [N, S*M*D], to add to."""
    n, _, heads, channels = grad_y.shape
    image_rows(config, n, heads)  # few enough to count
    # XLA fills rows of few channels number by number.
    images = jnp.zeros((n, config.pixels * heads * channels), accumulator(grad_y))
    return _compat.match_varying(images, grad_y, *jax.tree.leaves(queries))[0]


def _values(config: SamplingConfig, images: jax.Array, grad_y: jax.Array) -> jax.Array:
    """Such images as a gradient to value, [N, S, M, D]."""
    n, _, heads, channels = grad_y.shape
    return images.reshape(n, config.pixels, heads, channels)


def _add_to_images(images: jax.Array, point: Any, grad: jax.Array, zero: jax.Array) -> jax.Array:
    """Images with the gradients of samples, one of each query and head, added to their pixels."""
    for row, factor in _pixels(*point):
        images = add_to_rows(images, row, grad, factor, zero, drop=True)
    return images


def _point_gradients(
    config: SamplingConfig, rows: jax.Array, point: Any, grad: jax.Array, zero: jax.Array | None
) -> tuple[list[Any], jax.Array | None]:
    """Gradients with respect to each coordinate, [B, M], first axis first, and to any weight."""
    (lines, columns), (fractions, slopes, weight) = point
    dots = [row_products_or_zeros(rows, i + j, grad, zero) for i in lines for j in columns]
    poison = 0 * sum(fractions)  # one NaN coordinate makes all gradients of the point NaN
    if config.geometry.nearest:
        return [poison] * config.dims, None if weight is None else dots[0] + poison
    found = []
    for axis, slope in enumerate(slopes):
        # Steps from each pixel to the next one along the axis.
        low, high = _halves(dots, axis)
        steps = [after - before for before, after in zip(low, high, strict=True)]
        gradient = _interpolated(steps, [*fractions[:axis], *fractions[axis + 1 :]]) * slope
        found.append((gradient if weight is None else gradient * weight) + poison)
    return found, None if weight is None else _interpolated(dots, fractions)


def _of_queries(gradients: Any) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of all points, [T, B, M], as [B, M, T, K] and [B, M, T]."""
    of_axes, of_weight = gradients
    of_locations = points_last(jnp.stack(of_axes[::-1], axis=-1))
    return of_locations, None if of_weight is None else points_last(of_weight)


def _as_operands(
    config: SamplingConfig,
    gradients: tuple[jax.Array, jax.Array | None],
    locations: jax.Array,
    weights: jax.Array | None,
    used: jax.Array | None,
    packed: jax.Array | None,
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """`_of_queries` of all queries like locations and weights; or what has both."""
    grad_locations, grad_weights = gradients
    grad_locations = grad_locations.reshape(locations.shape)
    if weights is None or used is None or grad_weights is None:
        return grad_locations, None, None
    grad_weights = grad_weights.reshape(weights.shape)
    if config.normalize:
        used = used.astype(grad_weights.dtype)
        mean = jnp.sum(used * grad_weights, axis=-1, keepdims=True)
        grad_weights = used * (grad_weights - mean)
    if packed is None:
        return grad_locations, grad_weights, None
    return None, None, pack_gradients(grad_locations, grad_weights, packed.shape[-1])


def _halves(corners: Sequence[Any], axis: int) -> tuple[list[Any], list[Any]]:
    """Values at the corners of a cube, on its two sides along an axis; the last axis is fastest."""
    distance = len(corners) >> (axis + 1)
    low = [value for i, value in enumerate(corners) if not i & distance]
    return low, [value for i, value in enumerate(corners) if i & distance]


def _interpolated(corners: Sequence[Any], fractions: Sequence[jax.Array]) -> jax.Array:
    """Values at the corners of a cube, interpolated along all of its axes, the last one first."""
    for fraction in reversed(fractions):
        pairs = zip(corners[::2], corners[1::2], strict=True)
        corners = [(1 - fraction) * low + fraction * high for low, high in pairs]
    (value,) = corners
    return value


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


def _query_bytes(locations: jax.Array, channels: Any, *, is_fused: bool = False) -> int:
    """Bytes that one query works with: a head's sums or products, and ten numbers of each point.

    Half of them are counted: in larger blocks cores wait for each other less often. Of one point
    XLA finds these where it uses them, in all passes over queries, and what is held is what is
    added to pixels; where a pass is fused with what follows, nothing at all.
    """
    heads, points = locations.shape[2:4]
    if points == 1:
        return 1 if is_fused else 4 * heads * channels
    return 2 * heads * (4 * min(channels, 32) + 10 * points)
