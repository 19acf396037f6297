"""The matrix products of deformable convolution and its gradients, of one block's samples.

They are written for XLA's CPU compiler, which calls a library for a product and makes one loop of
all that leads to its operands.

Dimensions in comments: B pixels, K taps, OG offset groups, R = OG*K, C and Co channels, G groups.
"""

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import compat as _compat
from oxijax._core.convolution import ConvParams
from oxijax._core.precision import accumulator
from oxijax._deform_conv.samples import Image

__all__ = [
    "by_tap",
    "columns_of",
    "grouped",
    "product",
    "sample_bytes",
    "samples_gradient",
]


def columns_of(config: ConvParams, weight: jax.Array, image: Image) -> jax.Array:
    """The weights in the order of samples, [R, C/OG, Co], in accumulation dtype.

    Where there are groups, in the order of taps, [K, C/G, Co].
    """
    weight = weight.astype(accumulator(weight))
    if config.groups > 1:
        return weight.reshape(config.taps, *weight.shape[2:])
    row, out_channels = image.rows.shape[1], weight.shape[-1]
    weight = weight.reshape(config.taps, -1, row, out_channels).swapaxes(0, 1)
    return weight.reshape(-1, row, out_channels)


def sample_bytes(config: ConvParams, columns: jax.Array) -> int:
    """Bytes of the samples of one pixel."""
    return columns.size // columns.shape[-1] * config.groups * columns.dtype.itemsize


def product(config: ConvParams, samples: jax.Array, columns: jax.Array) -> jax.Array:
    """The samples [B, R, C/OG] times the weights -> [B, Co]."""
    if config.groups == 1:
        return _multiply(config, samples, columns)
    (pixels, *_), (_, in_group, out_channels) = samples.shape, columns.shape
    weight = grouped(config, columns)

    def add_tap(y, tap):
        samples, weight = tap
        samples = grouped(config, samples.reshape(pixels, config.groups * in_group))
        return y + jnp.einsum("pgc,cgo->pgo", samples, weight, precision=config.precision), None

    y = jnp.zeros((pixels, config.groups, out_channels // config.groups), samples.dtype)
    y = _compat.match_varying(y, samples)[0]
    y, _ = lax.scan(add_tap, y, (by_tap(config, samples), weight))
    return y.reshape(pixels, out_channels)


def _multiply_by_convolution(
    config: ConvParams, samples: jax.Array, columns: jax.Array
) -> jax.Array:
    """[B, R, C/OG] times [R, C/OG, Co] -> [B, Co].

    In float32 it is a convolution whose window is all there is. XLA's CPU compiler fuses samples
    into the reshape in front of a product, where it makes no vectors of them, but nothing into a
    convolution.
    """
    if samples.dtype != jnp.float32:
        return _multiply_directly(config, samples, columns)
    y = lax.conv_general_dilated(
        samples, columns, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
        precision=config.precision,
    )  # fmt: skip
    return y[:, 0]


def _multiply_directly(config: ConvParams, samples: jax.Array, columns: jax.Array) -> jax.Array:
    dimensions = (((1, 2), (0, 1)), ((), ()))
    return lax.dot_general(samples, columns, dimensions, precision=config.precision)


def _multiply_jvp(config: ConvParams, primals, tangents):
    # A convolution's transpose would multiply mostly zeros.
    (samples, columns), (samples_dot, columns_dot) = primals, tangents
    y_dot = _multiply_directly(config, samples_dot, columns)
    y_dot = y_dot + _multiply_directly(config, samples, columns_dot)
    return _multiply(config, samples, columns), y_dot


_multiply = jax.custom_jvp(_multiply_by_convolution, nondiff_argnums=(0,))
_multiply.defjvp(_multiply_jvp)


def samples_gradient(
    config: ConvParams, grad: jax.Array, columns: jax.Array, image: Image
) -> jax.Array:
    """Gradient with respect to modulated samples, [B*R, C/OG], in accumulation dtype."""
    grad = grad.astype(columns.dtype)
    pixels, offset_groups, row = grad.shape[0], image.right, image.rows.shape[1]
    if config.groups == 1:
        matrix = columns.reshape(-1, columns.shape[-1])
        return jnp.dot(grad, matrix.T, precision=config.precision).reshape(-1, row)
    grad = grouped(config, grad)

    def tap_gradient(_, weight):
        return None, jnp.einsum("pgo,cgo->pgc", grad, weight, precision=config.precision)

    _, products = lax.scan(tap_gradient, None, grouped(config, columns))
    products = products.reshape(config.taps, pixels, offset_groups, row)
    return products.transpose(1, 2, 0, 3).reshape(-1, row)


def by_tap(config: ConvParams, samples: jax.Array) -> jax.Array:
    """[B, R, ...] -> [K, B*OG, ...]."""
    pixels, rows, *rest = samples.shape
    samples = samples.reshape(pixels, rows // config.taps, config.taps, *rest)
    return jnp.moveaxis(samples, 2, 0).reshape(config.taps, rows // config.taps * pixels, *rest)


def grouped(config: ConvParams, channels: jax.Array) -> jax.Array:
    """[..., C] -> [..., G, C/G]."""
    *outer, size = channels.shape
    return channels.reshape(*outer, config.groups, size // config.groups)
