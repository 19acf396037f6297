"""The matrix products of deformable convolution and its gradients, of one block's samples.

Dimensions in comments: B pixels, K taps, OG offset groups, R = OG*K, C and Co channels, G groups.
"""

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._convolution import ConvParams
from oxijax._core import compat as _compat
from oxijax._core.arguments.precision import accumulator
from oxijax._deform_conv.samples import Image

__all__ = [
    "by_tap",
    "columns_of",
    "grouped",
    "product",
    "sample_bytes",
    "samples_gradient",
]


def columns_of(params: ConvParams, weight: jax.Array, image: Image) -> jax.Array:
    """The weights in the order of samples, [R, C/OG, Co], in accumulation dtype.

    Where there are groups, in the order of taps, [K, C/G, Co].
    """
    weight = weight.astype(accumulator(weight))
    if params.op.groups > 1:
        return weight.reshape(params.op.taps, *weight.shape[2:])
    row, out_channels = image.rows.shape[1], weight.shape[-1]
    weight = weight.reshape(params.op.taps, -1, row, out_channels).swapaxes(0, 1)
    return weight.reshape(-1, row, out_channels)


def sample_bytes(params: ConvParams, columns: jax.Array) -> int:
    """Bytes of the samples of one pixel."""
    return columns.size // columns.shape[-1] * params.op.groups * columns.dtype.itemsize


def product(params: ConvParams, samples: jax.Array, columns: jax.Array) -> jax.Array:
    """The samples [B, R, C/OG] times the weights -> [B, Co]."""
    if params.op.groups == 1:
        dimensions = (((1, 2), (0, 1)), ((), ()))
        return lax.dot_general(samples, columns, dimensions, precision=params.precision)
    (pixels, *_), (_, in_group, out_channels) = samples.shape, columns.shape
    weight = grouped(params, columns)

    def add_tap(y, tap):
        samples, weight = tap
        samples = grouped(params, samples.reshape(pixels, params.op.groups * in_group))
        return y + jnp.einsum("pgc,cgo->pgo", samples, weight, precision=params.precision), None

    y = jnp.zeros((pixels, params.op.groups, out_channels // params.op.groups), samples.dtype)
    y = _compat.match_varying(y, samples)[0]
    y, _ = lax.scan(add_tap, y, (by_tap(params, samples), weight))
    return y.reshape(pixels, out_channels)


def samples_gradient(
    params: ConvParams, grad: jax.Array, columns: jax.Array, image: Image
) -> jax.Array:
    """Gradient with respect to modulated samples, [B*R, C/OG], in accumulation dtype."""
    grad = grad.astype(columns.dtype)
    pixels, offset_groups, row = grad.shape[0], image.right, image.rows.shape[1]
    if params.op.groups == 1:
        matrix = columns.reshape(-1, columns.shape[-1])
        return jnp.dot(grad, matrix.T, precision=params.precision).reshape(-1, row)
    grad = grouped(params, grad)

    def tap_gradient(_, weight):
        return None, jnp.einsum("pgo,cgo->pgc", grad, weight, precision=params.precision)

    _, products = lax.scan(tap_gradient, None, grouped(params, columns))
    products = products.reshape(params.op.taps, pixels, offset_groups, row)
    return products.transpose(1, 2, 0, 3).reshape(-1, row)


def by_tap(params: ConvParams, samples: jax.Array) -> jax.Array:
    """[B, R, ...] -> [K, B*OG, ...]."""
    pixels, rows, *rest = samples.shape
    samples = samples.reshape(pixels, rows // params.op.taps, params.op.taps, *rest)
    return jnp.moveaxis(samples, 2, 0).reshape(
        params.op.taps, rows // params.op.taps * pixels, *rest
    )


def grouped(params: ConvParams, channels: jax.Array) -> jax.Array:
    """[..., C] -> [..., G, C/G]."""
    *outer, size = channels.shape
    return channels.reshape(*outer, params.op.groups, size // params.op.groups)
