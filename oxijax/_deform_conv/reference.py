"""Deformable convolution and its gradients in pure JAX, NHWC.

These four functions are the lowering of the primitives wherever no kernel is, and what
every kernel is judged by. Each is one scan over the taps of the kernel, so that no column
buffer (the samples of all taps at once) is ever written. A tap's samples are rows of C/OG
channels, gathered from an image with a border of zeros two pixels wide: every sample, also
a far one, finds its four corners there, and no gather needs a mask.

The formulas are those of DCNv2 (Zhu et al., "Deformable ConvNets v2", 2019, with gradients
as in its supplement) in torchvision's conventions for order, borders and integers.

Dimensions in comments: K taps; P = N*Ho*Wo output pixels; M = P*OG samples of one tap.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oxijax._core import compat as _compat
from oxijax._core.convolution import ConvParams
from oxijax._core.sizes import is_known, require_product

__all__ = [
    "BORDER",
    "backward_input",
    "backward_offset",
    "backward_weight",
    "forward",
    "sample_taps",
]

BORDER = 2  # the corners of a sample just outside are up to two pixels outside
# Offsets are clamped to this before they become integers. Padding has 2**30 pixels at most, and an
# image that XLA can index fewer than 2**31 / 5: from no tap is anything inside so far away.
_FAR = 2**31 - 128


def forward(
    config: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> tuple[jax.Array]:
    """The output [N, Ho, Wo, Co], accumulated in float32 (float64 for float64 x), in x's dtype."""
    n, ho, wo, _ = offset.shape
    out_channels = weight.shape[-1]
    image = _Image.of(config, x, offset)

    def add_tap(y, tap_and_weight):
        tap, tap_weight = tap_and_weight
        return y + _matmul(config, image.sample(tap), tap_weight), None

    y = jnp.zeros((n * ho * wo, out_channels), _accumulator(x))
    y = _compat.match_varying(y, x)[0]
    taps = sample_taps(config, offset, mask)
    y, _ = lax.scan(jax.checkpoint(add_tap), y, (taps, _tap_weights(config, weight)))
    if bias is not None:
        y = y + bias.astype(y.dtype)
    return (y.astype(x.dtype).reshape(n, ho, wo, out_channels),)


def backward_input(
    config: ConvParams,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array]:
    """Gradient with respect to x [N, H, W, C], in weight's dtype.

    Each sample's gradient is added to the four corners that it was read from.
    """
    channels = weight.shape[2] * config.groups
    shape = (*grad_y.shape[:1], *config.image_size, channels)
    # Scatters into an image's rows what `forward` gathers from them: same rows, same steps.
    blank = jnp.zeros(shape, _accumulator(grad_y))
    image = _Image.of(config, _compat.match_varying(blank, grad_y)[0], offset)

    def scatter_tap(rows, tap_and_weight):
        tap, tap_weight = tap_and_weight
        grad_samples = _samples_gradient(config, grad_y, tap_weight, image.rows.shape[-1])
        for step, corner_weight in zip(image.steps, tap.corner_weights(), strict=True):
            update = grad_samples * corner_weight[:, None].astype(rows.dtype)
            rows = rows.at[tap.row + step].add(update, mode="promise_in_bounds")
        return rows, None

    taps = sample_taps(config, offset, mask)
    rows, _ = lax.scan(scatter_tap, image.rows, (taps, _tap_weights(config, weight)))
    return (image.without_border(rows, shape).astype(weight.dtype),)


def backward_offset(
    config: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array, jax.Array | None]:
    """Gradients with respect to offset and, if there is one, mask, in their dtypes.

    All three follow from four dot products a sample, each corner's channels with the
    sample's gradient.
    """
    image = _Image.of(config, x, offset)
    ones = jnp.ones((image.rows.shape[-1],), _accumulator(x))

    def tap_gradients(_, tap_and_weight):
        tap, tap_weight = tap_and_weight
        grad_samples = _samples_gradient(config, grad_y, tap_weight, image.rows.shape[-1])
        # A product with ones: XLA's CPU compiler makes it twice as fast as a sum over rows.
        d1, d2, d3, d4 = ((corner * grad_samples) @ ones for corner in image.corners(tap))
        ly, lx = tap.fraction_y, tap.fraction_x
        grad_mask = (1 - ly) * ((1 - lx) * d1 + lx * d2) + ly * ((1 - lx) * d3 + lx * d4)
        grad_offset_y = (1 - lx) * (d3 - d1) + lx * (d4 - d2)
        grad_offset_x = (1 - ly) * (d2 - d1) + ly * (d4 - d3)
        if tap.mask is not None:
            grad_offset_y, grad_offset_x = grad_offset_y * tap.mask, grad_offset_x * tap.mask
        return None, (grad_offset_y, grad_offset_x, grad_mask)

    taps = sample_taps(config, offset, mask)
    _, (grad_y_, grad_x_, grad_mask) = lax.scan(
        tap_gradients, None, (taps, _tap_weights(config, weight))
    )
    grad_offset = _from_taps(jnp.stack([grad_y_, grad_x_], axis=1), offset)
    return grad_offset, None if mask is None else _from_taps(grad_mask[:, None], mask)


def backward_weight(
    config: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array]:
    """Gradient with respect to weight [Kh, Kw, C/G, Co], in accumulation dtype."""
    channels, out_channels = x.shape[-1], grad_y.shape[-1]
    image = _Image.of(config, x, offset)
    grad = _grouped(config, grad_y.astype(_accumulator(x)))

    def tap_gradient(_, tap):
        samples = _grouped(config, image.sample(tap))
        if config.groups == 1:
            product = lax.dot_general(
                samples[:, 0], grad[:, 0], (((0,), (0,)), ((), ())), precision=config.precision
            )
        else:
            product = jnp.einsum("pgc,pgo->cgo", samples, grad, precision=config.precision)
        return None, product

    _, grad_weight = lax.scan(tap_gradient, None, sample_taps(config, offset, mask))
    shape = (*config.kernel_size, channels // config.groups, out_channels)
    return (grad_weight.reshape(shape),)


class _Tap(NamedTuple):
    """The samples of one tap; in front of a scan, of all taps, with a leading axis [K]."""

    row: jax.Array  # [M] the row that holds the corner at (floor y, floor x)
    fraction_y: jax.Array  # [M]
    fraction_x: jax.Array  # [M]
    mask: jax.Array | None  # [M]

    def corner_weights(self) -> tuple[jax.Array, ...]:
        """Bilinear weights times mask, for the corners in the order of `_Image.steps`."""
        hy, hx = 1 - self.fraction_y, 1 - self.fraction_x
        ly, lx = self.fraction_y, self.fraction_x
        if self.mask is not None:
            hy, ly = hy * self.mask, ly * self.mask
        return hy * hx, hy * lx, ly * hx, ly * lx


@functools.partial(jax.jit, static_argnums=0)  # traced and lowered once, not by each function
def sample_taps(config: ConvParams, offset: jax.Array, mask: jax.Array | None) -> _Tap:
    """Rows, fractions and masks of all taps.

    The offset is split into floor and fraction before the integer position of its pixel
    and tap is added, so the fraction is as exact for a large image as for a small one.
    """
    n, ho, wo, _ = offset.shape
    dtype = jnp.promote_types(offset.dtype, jnp.float32)
    y, x = jnp.moveaxis(_to_taps(config, offset.astype(dtype), parts=2), 1, 0)

    # One NaN coordinate makes the whole sample NaN, and its gradients. Its row is as far
    # outside as that of an infinite one, where what is scattered is dropped.
    invalid = jnp.isnan(y) | jnp.isnan(x)
    poison = jnp.where(invalid, jnp.nan, 0).astype(dtype)

    def split(coordinate, axis, extent, out_size, tap_axis):
        floor = jnp.floor(coordinate)
        fraction = jnp.where(jnp.isinf(coordinate), 0, coordinate - floor) + poison
        floor = jnp.where(invalid, -_FAR, jnp.clip(floor, -_FAR, _FAR)).astype(jnp.int32)
        positions = np if is_known(out_size) else jnp
        position = positions.arange(out_size) * config.strides[axis] - config.padding[axis][0]
        shape = [config.taps, 1, 1, 1, 1]
        shape[2 + axis] = out_size
        tap = tap_axis * config.dilation[axis]
        base = (tap[:, None] + position).astype(np.int32).reshape(shape)
        # The sum could overflow; what is clipped first ends between -BORDER and the extent.
        corner = jnp.clip(floor, -BORDER - base, extent - base) + (base + BORDER)
        return corner, fraction

    height, width = config.image_size
    kh, kw = config.kernel_size
    row_y, fraction_y = split(y, 0, height, ho, np.repeat(np.arange(kh), kw))
    row_x, fraction_x = split(x, 1, width, wo, np.tile(np.arange(kw), kh))

    offset_groups = y.shape[-1]
    _check_rows(n, config, offset_groups)
    image = lax.broadcasted_iota(jnp.int32, (n, 1, 1, 1), 0)
    row = (image * (height + 2 * BORDER) + row_y) * (width + 2 * BORDER) + row_x
    row = row * offset_groups + np.arange(offset_groups, dtype=np.int32)
    taps = _Tap(row, fraction_y, fraction_x, None if mask is None else _to_taps(config, mask)[:, 0])
    return jax.tree.map(lambda a: a.reshape(config.taps, -1), taps)


def _to_taps(config: ConvParams, channels: jax.Array, parts: int = 1) -> jax.Array:
    """[N, Ho, Wo, OG*K*parts] -> [K, parts, N, Ho, Wo, OG]."""
    *pixels, size = channels.shape
    split = channels.reshape(*pixels, size // (config.taps * parts), config.taps, parts)
    return split.transpose(4, 5, 0, 1, 2, 3)


def _from_taps(gradients: jax.Array, like: jax.Array) -> jax.Array:
    """[K, parts, M] -> the layout [N, Ho, Wo, OG*K*parts] and dtype of `like`."""
    taps, parts, _ = gradients.shape
    n, ho, wo, channels = like.shape
    split = gradients.reshape(taps, parts, n, ho, wo, channels // (taps * parts))
    return split.transpose(2, 3, 4, 5, 0, 1).reshape(like.shape).astype(like.dtype)


def _check_rows(n: int, config: ConvParams, offset_groups: int) -> None:
    height, width = config.image_size
    factors = (n, height + 2 * BORDER, width + 2 * BORDER, offset_groups)
    require_product(
        factors,
        2**31 - 1,
        f"x with batch {n}, height and width {config.image_size} and {offset_groups} offset "
        f"groups needs {math.prod(factors)} sample rows, and XLA indexes fewer than 2**31: split "
        "the batch",
    )


class _Image(NamedTuple):
    """An image with a border of zeros, as rows of the channels of one offset group."""

    rows: jax.Array  # [N*(H+4)*(W+4)*OG, C/OG]
    steps: tuple[int, int, int, int]  # from a corner's row to it, (y, x+1), (y+1, x), (y+1, x+1)

    @classmethod
    def of(cls, config: ConvParams, x: jax.Array, offset: jax.Array) -> "_Image":
        offset_groups = offset.shape[-1] // (2 * config.taps)
        border = (BORDER, BORDER)
        padded = jnp.pad(x, ((0, 0), border, border, (0, 0)))
        right, down = offset_groups, padded.shape[2] * offset_groups
        rows = padded.reshape(-1, x.shape[-1] // offset_groups)
        return cls(rows, (0, right, down, down + right))

    def corners(self, tap: _Tap) -> list[jax.Array]:
        """The four corners of each sample, each [M, C/OG], in accumulation dtype."""
        rows = [self.rows.at[tap.row + step].get(mode="promise_in_bounds") for step in self.steps]
        return [row.astype(_accumulator(row)) for row in rows]

    def sample(self, tap: _Tap) -> jax.Array:
        """The modulated samples of a tap, [P, C]."""
        corners = self.corners(tap)
        samples = sum(
            corner * weight[:, None].astype(corner.dtype)
            for corner, weight in zip(corners, tap.corner_weights(), strict=True)
        )
        # Fused into the matrix product that follows, narrow rows would be read a third slower.
        samples = lax.optimization_barrier(samples)
        return samples.reshape(-1, self.steps[1] * self.rows.shape[-1])

    def without_border(self, rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        n, height, width, channels = shape
        padded = rows.reshape(n, height + 2 * BORDER, width + 2 * BORDER, channels)
        return padded[:, BORDER : BORDER + height, BORDER : BORDER + width]


def _accumulator(array: jax.Array) -> np.dtype:
    return jnp.promote_types(array.dtype, jnp.float32)


def _tap_weights(config: ConvParams, weight: jax.Array) -> jax.Array:
    """[Kh, Kw, C/G, Co] -> [K, C/G, Co], in accumulation dtype."""
    return weight.reshape(config.taps, *weight.shape[2:]).astype(_accumulator(weight))


def _grouped(config: ConvParams, channels: jax.Array) -> jax.Array:
    """[..., C] -> [P, G, C/G]."""
    return channels.reshape(-1, config.groups, channels.shape[-1] // config.groups)


def _matmul(config: ConvParams, samples: jax.Array, tap_weight: jax.Array) -> jax.Array:
    """[P, C] times [C/G, Co], group by group -> [P, Co]."""
    if config.groups == 1:
        return jnp.dot(samples, tap_weight, precision=config.precision)
    weight = tap_weight.reshape(tap_weight.shape[0], config.groups, -1)
    product = jnp.einsum(
        "pgc,cgo->pgo", _grouped(config, samples), weight, precision=config.precision
    )
    return product.reshape(samples.shape[0], weight.shape[1] * weight.shape[2])


def _samples_gradient(
    config: ConvParams, grad_y: jax.Array, tap_weight: jax.Array, row_size: int
) -> jax.Array:
    """Gradient with respect to a tap's modulated samples, [M, C/OG], in accumulation dtype."""
    in_group, _ = tap_weight.shape
    weight = tap_weight.reshape(in_group, config.groups, -1)
    grad = _grouped(config, grad_y.astype(tap_weight.dtype))
    if config.groups == 1:
        product = jnp.dot(grad[:, 0], weight[:, 0].T, precision=config.precision)
    else:
        product = jnp.einsum("pgo,cgo->pgc", grad, weight, precision=config.precision)
    return product.reshape(-1, row_size)
