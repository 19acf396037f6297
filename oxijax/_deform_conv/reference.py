"""Deformable convolution and its gradients in pure JAX, NHWC.

These four functions are the lowering of the primitives wherever no kernel is, and what
every kernel is judged by. Each goes over blocks of output pixels (`samples`), samples the image
for all taps of a block, or finds what is to be added to it, and has one matrix product a block.

The formulas are those of DCNv2 (Zhu et al., "Deformable ConvNets v2", 2019, with gradients
as in its supplement) in torchvision's conventions for order, borders and integers.

Dimensions in comments: B pixels of a block, K taps, OG offset groups, R = OG*K, C and Co channels.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oxijax._core import compat as _compat
from oxijax._core.convolution import ConvParams
from oxijax._core.sizes import require_product
from oxijax._deform_conv.samples import (
    BORDER,
    Image,
    Pixels,
    accumulator,
    flat,
    scan_blocks,
    scan_parts,
)

__all__ = ["backward_input", "backward_offset", "backward_weight", "forward", "pixels_of"]


# Of a pixel and a tap. Up to so many, the gradient to the weights of all taps at once costs less to
# add up, block by block, than the samples of one tap after the other cost to find.
_FEW_PRODUCTS = 128 * 128


def forward(
    config: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> tuple[jax.Array]:
    """The output [N, Ho, Wo, Co], accumulated in float32 (float64 for float64 x), in x's dtype."""
    image = Image.of(config, x, offset)
    columns = _columns(config, weight, image)

    def block(_, pixels: Pixels):
        return scan_parts(product, None, pixels.corners(config))

    def product(_, corners):
        y = _product(config, image.sample(corners), columns)
        if bias is not None:
            y = y + bias.astype(y.dtype)
        return None, y.astype(x.dtype)

    pixels = pixels_of(config, offset, mask)
    _, y = scan_blocks(block, None, pixels, _pixel_bytes(config, columns))
    return (y.reshape(*offset.shape[:3], weight.shape[-1]),)


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
    blank = jnp.zeros(shape, accumulator(grad_y))
    image = Image.of(config, _compat.match_varying(blank, grad_y)[0], offset)
    columns = _columns(config, weight, image)

    def block(rows, pixels_and_grad):
        pixels, grad = pixels_and_grad
        grad_samples = _samples_gradient(config, grad, columns, image)
        corners = pixels.corners(config).flat()
        return scan_parts(scatter, rows, (corners, grad_samples), parts=4)

    def scatter(rows, corners_and_gradient):
        corners, grad_samples = corners_and_gradient
        for step, weight in zip(image.steps, corners.weights(), strict=True):
            update = grad_samples * weight[:, None].astype(rows.dtype)
            rows = rows.at[corners.row + step].add(
                update, mode="promise_in_bounds", wrap_negative_indices=False
            )
        return rows, None

    pixels = pixels_of(config, offset, mask), flat(grad_y)
    rows, _ = scan_blocks(block, image.rows, pixels, _pixel_bytes(config, columns))
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
    image = Image.of(config, x, offset)
    columns = _columns(config, weight, image)

    def block(_, pixels_and_grad):
        pixels, grad = pixels_and_grad
        corners = pixels.corners(config)
        grad_samples = _samples_gradient(config, grad, columns, image)
        row = corners.row.reshape(-1)

        def dots(found, lower):
            at = row + lower * image.down
            left, right = (_dot(image, at + step, grad_samples) for step in (0, image.right))
            return (found[1], (left, right)), None

        # Carried, and not stacked, they are made by all cores.
        none = jnp.zeros(row.shape, grad_samples.dtype)
        none = _compat.match_varying(none, row, grad_samples, image.rows)[0]
        found, _ = lax.scan(dots, ((none, none), (none, none)), np.arange(2, dtype=np.int32))
        (d1, d2), (d3, d4) = jax.tree.map(lambda dot: dot.reshape(corners.row.shape), found)
        ly, lx = corners.fraction_y, corners.fraction_x
        grad_mask = (1 - ly) * ((1 - lx) * d1 + lx * d2) + ly * ((1 - lx) * d3 + lx * d4)
        grad_offset_y = (1 - lx) * (d3 - d1) + lx * (d4 - d2)
        grad_offset_x = (1 - ly) * (d2 - d1) + ly * (d4 - d3)
        if mask is None:
            return None, (grad_offset_y, grad_offset_x)
        return None, (grad_offset_y * corners.mask, grad_offset_x * corners.mask, grad_mask)

    pixels = pixels_of(config, offset, mask), flat(grad_y)
    pixel_bytes = _pixel_bytes(config, columns)
    _, gradients = scan_blocks(block, None, pixels, pixel_bytes)
    grad_offset = jnp.stack(gradients[:2], axis=-1).astype(offset.dtype).reshape(offset.shape)
    if mask is None:
        return grad_offset, None
    return grad_offset, gradients[2].astype(mask.dtype).reshape(mask.shape)


def backward_weight(
    config: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array]:
    """Gradient with respect to weight [Kh, Kw, C/G, Co], in accumulation dtype."""
    channels, out_channels = x.shape[-1], grad_y.shape[-1]
    image = Image.of(config, x, offset)
    dtype = accumulator(x)
    arrays = pixels_of(config, offset, mask), flat(grad_y).astype(dtype)
    taps, in_group, row = config.taps, channels // config.groups, image.rows.shape[1]
    if config.groups == 1 and channels * out_channels <= _FEW_PRODUCTS:
        total = _compat.match_varying(jnp.zeros((out_channels, channels * taps), dtype), arrays[1])[
            0
        ]

        def block(total, pixels_and_grad):
            pixels, grad = pixels_and_grad
            return scan_parts(half, total, (pixels.corners(config), grad))

        def half(total, corners_and_grad):
            corners, grad = corners_and_grad
            return scan_parts(add, total, (image.sample(corners), grad))

        def add(total, samples_and_grad):
            samples, grad = samples_and_grad
            samples = samples.reshape(samples.shape[0], total.shape[1])
            return total + jnp.dot(grad.T, samples, precision=config.precision), None

        total, _ = scan_blocks(block, total, arrays, taps * channels * dtype.itemsize)
        total = total.reshape(out_channels, image.right, taps, row).transpose(2, 1, 3, 0)
        return (total.reshape(*config.kernel_size, in_group, out_channels),)

    total = _compat.match_varying(jnp.zeros((taps, in_group, out_channels), dtype), arrays[1])[0]

    def block(total, pixels_and_grad):
        pixels, grad = pixels_and_grad
        corners = jax.tree.map(lambda a: _by_tap(config, a), pixels.corners(config))

        def tap_gradient(_, corners):
            samples = image.sample(corners).reshape(grad.shape[0], channels)
            if config.groups == 1:
                return None, jnp.dot(grad.T, samples, precision=config.precision).T
            samples, grads = _grouped(config, samples), _grouped(config, grad)
            product = jnp.einsum("pgc,pgo->cgo", samples, grads, precision=config.precision)
            return None, product.reshape(total.shape[1:])

        return total + lax.scan(tap_gradient, None, corners)[1], None

    total, _ = scan_blocks(block, total, arrays, channels * dtype.itemsize // 2)
    return (total.reshape(*config.kernel_size, in_group, out_channels),)


def pixels_of(config: ConvParams, offset: jax.Array, mask: jax.Array | None) -> Pixels:
    """All output pixels, of an image that XLA can index."""
    n, (height, width) = offset.shape[0], config.image_size
    offset_groups = offset.shape[-1] // (2 * config.taps)
    factors = (n, height + 2 * BORDER, width + 2 * BORDER, offset_groups)
    require_product(
        factors,
        2**31 - 1,
        f"x with batch {n}, height and width {config.image_size} and {offset_groups} offset "
        f"groups needs {math.prod(factors)} sample rows, and XLA indexes fewer than 2**31: split "
        "the batch",
    )
    return Pixels.of(config, offset, mask)


def _columns(config: ConvParams, weight: jax.Array, image: Image) -> jax.Array:
    """The weights in the order of samples, [R, C/OG, Co], in accumulation dtype.

    Where there are groups, in the order of taps, [K, C/G, Co].
    """
    weight = weight.astype(accumulator(weight))
    if config.groups > 1:
        return weight.reshape(config.taps, *weight.shape[2:])
    row, out_channels = image.rows.shape[1], weight.shape[-1]
    weight = weight.reshape(config.taps, -1, row, out_channels).swapaxes(0, 1)
    return weight.reshape(-1, row, out_channels)


def _pixel_bytes(config: ConvParams, columns: jax.Array) -> int:
    """Bytes of the samples of one pixel."""
    return columns.size // columns.shape[-1] * config.groups * columns.dtype.itemsize


def _product(config: ConvParams, samples: jax.Array, columns: jax.Array) -> jax.Array:
    """The samples [B, R, C/OG] times the weights -> [B, Co]."""
    if config.groups > 1:
        weight = _grouped(config, columns)

        def add_tap(y, tap):
            samples, weight = tap
            samples = _grouped(config, samples.reshape(y.shape[0], -1))
            return y + jnp.einsum("pgc,cgo->pgo", samples, weight, precision=config.precision), None

        y = jnp.zeros((samples.shape[0], config.groups, weight.shape[-1]), samples.dtype)
        y = _compat.match_varying(y, samples)[0]
        y, _ = lax.scan(add_tap, y, (_by_tap(config, samples), weight))
        return y.reshape(samples.shape[0], columns.shape[-1])
    return _multiply(config, samples, columns)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply(config: ConvParams, samples: jax.Array, columns: jax.Array) -> jax.Array:
    """[B, R, C/OG] times [R, C/OG, Co] -> [B, Co].

    In float32 it is a convolution whose window is all there is. XLA's CPU compiler fuses samples
    into the reshape in front of a product, and finds their corners once a channel then, but
    nothing into a convolution.
    """
    if samples.dtype != jnp.float32:
        return _multiply_directly(config, samples, columns)
    y = lax.conv_general_dilated(
        samples, columns, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
        precision=config.precision,
    )  # fmt: skip
    return y[:, 0]


@_multiply.defjvp
def _multiply_jvp(config: ConvParams, primals, tangents):
    # A convolution's transpose would multiply mostly zeros.
    samples, columns = primals
    samples_dot, columns_dot = tangents
    return _multiply(config, samples, columns), (
        _multiply_directly(config, samples_dot, columns)
        + _multiply_directly(config, samples, columns_dot)
    )


def _multiply_directly(config: ConvParams, samples: jax.Array, columns: jax.Array) -> jax.Array:
    dimensions = (((1, 2), (0, 1)), ((), ()))
    return lax.dot_general(samples, columns, dimensions, precision=config.precision)


def _samples_gradient(
    config: ConvParams, grad: jax.Array, columns: jax.Array, image: Image
) -> jax.Array:
    """Gradient with respect to modulated samples, [B*R, C/OG], in accumulation dtype."""
    grad = grad.astype(columns.dtype)
    pixels, offset_groups, row = grad.shape[0], image.right, image.rows.shape[1]
    if config.groups == 1:
        matrix = columns.reshape(-1, columns.shape[-1])
        return jnp.dot(grad, matrix.T, precision=config.precision).reshape(-1, row)
    grad = _grouped(config, grad)

    def tap_gradient(_, weight):
        return None, jnp.einsum("pgo,cgo->pgc", grad, weight, precision=config.precision)

    _, products = lax.scan(tap_gradient, None, _grouped(config, columns))
    products = products.reshape(config.taps, pixels, offset_groups, row)
    return products.transpose(1, 2, 0, 3).reshape(-1, row)


def _dot(image: Image, row: jax.Array, values: jax.Array) -> jax.Array:
    """The dot product of each of these rows with its values, [M, C/OG] -> [M]."""
    # Parts of the rows are added first, channel by channel: XLA's CPU compiler makes that up to
    # three times as fast as a product with ones, and that faster than a sum over rows.
    channels = values.shape[-1]
    parts = next(n for n in (8, 4, 2, 1) if channels % n == 0 and (n == 1 or channels // n >= 16))
    width = channels // parts
    products = sum(
        image.gather(row, start, start + width) * values[:, start : start + width]
        for start in range(0, channels, width)
    )
    if width <= 8:
        return sum(products[:, i] for i in range(width))
    return products @ jnp.ones(width, values.dtype)


def _by_tap(config: ConvParams, samples: jax.Array) -> jax.Array:
    """[B, R, ...] -> [K, B*OG, ...]."""
    pixels, rows, *rest = samples.shape
    samples = samples.reshape(pixels, rows // config.taps, config.taps, *rest)
    return jnp.moveaxis(samples, 2, 0).reshape(config.taps, rows // config.taps * pixels, *rest)


def _grouped(config: ConvParams, channels: jax.Array) -> jax.Array:
    """[..., C] -> [..., G, C/G]."""
    *outer, size = channels.shape
    return channels.reshape(*outer, config.groups, size // config.groups)
