"""Deformable convolution and its gradients in pure JAX, NHWC.

These functions are the lowering of the primitives wherever no kernel is, and what
every kernel is judged by. Each goes over blocks of output pixels, samples the image
for all taps of a block, or finds what is to be added to it, and has one matrix product a block.

The formulas are those of DCNv2 (Zhu et al., "Deformable ConvNets v2", 2019, with gradients
as in its supplement) in torchvision's conventions for order, borders and integers.

Dimensions in comments: B pixels of a block, K taps, OG offset groups, R = OG*K, C and Co channels.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oxijax._convolution import ConvParams
from oxijax._core import compat as _compat
from oxijax._core.arguments.checks import require_product
from oxijax._core.arguments.precision import accumulator
from oxijax._core.xla.blocks import apart, scan_blocks
from oxijax._core.xla.rows import add_to_rows, row_products
from oxijax._deform_conv.products import (
    by_tap,
    columns_of,
    grouped,
    product,
    sample_bytes,
    samples_gradient,
)
from oxijax._deform_conv.samples import (
    BORDER,
    Corners,
    Image,
    Pixels,
    flat,
)

__all__ = [
    "backward_input",
    "backward_offset",
    "backward_samples",
    "backward_weight",
    "forward",
    "pixels_of",
]

# Of a pixel and a tap. Up to so many, the gradient to the weights of all taps at once costs less to
# add up, block by block, than the samples of one tap after the other cost to find.
_FEW_PRODUCTS = 256 * 256


def forward(
    params: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> tuple[jax.Array]:
    """The output [N, Ho, Wo, Co], accumulated in float32 (float64 for float64 x), in x's dtype."""
    image = Image.of(params, x, offset)
    columns = columns_of(params, weight, image)

    def block(_, pixels: Pixels):
        corners = pixels.corners(params)
        y = apart(
            lambda samples: product(params, samples, columns),
            image.sample(corners),
            number=corners.fraction_y,
        )
        if bias is not None:
            y = y + bias.astype(y.dtype)
        return None, y.astype(x.dtype)

    pixels = pixels_of(params, offset, mask)
    _, y = scan_blocks(block, None, pixels, 3 * sample_bytes(params, columns) // 2)
    return (y.reshape(*offset.shape[:3], weight.shape[-1]),)


def backward_input(
    params: ConvParams,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array]:
    """Gradient with respect to x [N, H, W, C], in weight's dtype.

    Each sample's gradient is added to the four corners that it was read from.
    """
    channels = weight.shape[2] * params.op.groups
    shape = (*grad_y.shape[:1], *params.size("h", "w"), channels)
    blank = jnp.zeros(shape, accumulator(grad_y))
    image = Image.of(params, _compat.match_varying(blank, grad_y)[0], offset)

    def block(rows, corners, grad_samples):
        return _add_to_image(image, rows, corners, grad_samples), None

    rows, _ = _scan_gradients(block, params, image.rows, image, offset, weight, mask, grad_y)
    return (image.without_border(rows, shape).astype(weight.dtype),)


def backward_offset(
    params: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array, jax.Array | None]:
    """Gradients with respect to offset and, if there is one, mask, in their dtypes."""
    image = Image.of(params, x, offset)

    def block(_, corners, grad_samples):
        return None, _place_gradients(image, corners, grad_samples)

    _, gradients = _scan_gradients(block, params, None, image, offset, weight, mask, grad_y)
    return _as_operands(gradients, offset, mask)


def backward_samples(
    params: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """The gradients of `backward_input` and `backward_offset`, with one matrix product for both."""
    image = Image.of(params, x, offset)
    rows = jnp.zeros(image.rows.shape, accumulator(grad_y))
    rows = _compat.match_varying(rows, grad_y)[0]

    def block(rows, corners, grad_samples):
        rows = _add_to_image(image, rows, corners, grad_samples)
        return rows, _place_gradients(image, corners, grad_samples)

    rows, gradients = _scan_gradients(block, params, rows, image, offset, weight, mask, grad_y)
    grad_x = image.without_border(rows, x.shape).astype(x.dtype)
    return grad_x, *_as_operands(gradients, offset, mask)


def _scan_gradients(
    step: Callable[[Any, Corners, jax.Array], tuple[Any, Any]],
    params: ConvParams,
    carry: Any,
    image: Image,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[Any, Any]:
    """`scan_blocks` of a step that is given the corners of a block's samples and their gradients.

    The gradients are those with respect to modulated samples, [B*R, C/OG].
    """
    columns = columns_of(params, weight, image)

    def block(carry, pixels_and_grad):
        pixels, grad = pixels_and_grad
        grad_samples = samples_gradient(params, grad, columns, image)
        return step(carry, pixels.corners(params), grad_samples)

    pixels = pixels_of(params, offset, mask), flat(grad_y)
    return scan_blocks(block, carry, pixels, sample_bytes(params, columns))


def _add_to_image(
    image: Image, rows: jax.Array, corners: Corners, grad_samples: jax.Array
) -> jax.Array:
    """Adds to rows like the image's what samples' gradients are to the corners of a block."""

    # Scatters into an image's rows what `forward` gathers from them: same rows, same steps.
    def scatter(rows, corners_and_gradient):
        corners, grad_samples = corners_and_gradient
        for step, weight in zip(image.steps, corners.weights(), strict=True):
            rows = add_to_rows(rows, corners.row + step, grad_samples, weight, image.zero)
        return rows, None

    # What a loop is given is computed before it; parts, since what is added is held as well.
    whole = corners.flat(), grad_samples
    return lax.scan(scatter, rows, jax.tree.map(lambda a: a.reshape(4, -1, *a.shape[1:]), whole))[0]


def _place_gradients(
    image: Image, corners: Corners, grad_samples: jax.Array
) -> tuple[jax.Array, ...]:
    """Gradients with respect to y, x and, if there is one, mask of a block's samples, [B, R] each.

    All three follow from four dot products a sample, each corner's channels with the
    sample's gradient.
    """
    row = corners.row.reshape(-1)

    def dots(found, lower):
        at = row + lower * image.down
        left, right = (
            row_products(image.rows, at + step, grad_samples, image.zero)
            for step in (0, image.right)
        )
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
    if corners.mask is None:
        return grad_offset_y, grad_offset_x
    return grad_offset_y * corners.mask, grad_offset_x * corners.mask, grad_mask


def _as_operands(
    gradients: Sequence[jax.Array], offset: jax.Array, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """`_place_gradients` of all pixels, [P, R] each, like offset and mask."""
    grad_offset = jnp.stack(gradients[:2], axis=-1).astype(offset.dtype).reshape(offset.shape)
    if mask is None:
        return grad_offset, None
    return grad_offset, gradients[2].astype(mask.dtype).reshape(mask.shape)


def backward_weight(
    params: ConvParams,
    x: jax.Array,
    offset: jax.Array,
    mask: jax.Array | None,
    grad_y: jax.Array,
) -> tuple[jax.Array]:
    """Gradient with respect to weight [Kh, Kw, C/G, Co], in accumulation dtype."""
    channels, out_channels = x.shape[-1], grad_y.shape[-1]
    image = Image.of(params, x, offset)
    pixels = pixels_of(params, offset, mask), flat(grad_y).astype(accumulator(x))
    at_once = params.op.groups == 1 and channels * out_channels <= _FEW_PRODUCTS
    total = (_weight_gradient if at_once else _weight_gradient_by_tap)(params, image, *pixels)
    return (total.reshape(*params.op.kernel_size, channels // params.op.groups, out_channels),)


def _weight_gradient(
    params: ConvParams, image: Image, pixels: Pixels, grad_y: jax.Array
) -> jax.Array:
    """The gradient to the weights of one group, [K, OG, C/OG, Co], of all taps at once."""
    out_channels, rows, row = grad_y.shape[1], pixels.offset.shape[1] // 2, image.rows.shape[1]

    def block(total, pixels_and_grad):
        pixels, grad = pixels_and_grad
        corners = pixels.corners(params)
        return apart(add, total, image.sample(corners), grad, number=corners.fraction_y), None

    def add(total, samples, grad):
        samples = samples.reshape(samples.shape[0], rows * row)
        return total + jnp.dot(grad.T, samples, precision=params.precision)

    total = jnp.zeros((out_channels, rows * row), grad_y.dtype)
    total = _compat.match_varying(total, grad_y)[0]
    pixel_bytes = 5 * rows * row * grad_y.dtype.itemsize // 4
    total, _ = scan_blocks(block, total, (pixels, grad_y), pixel_bytes)
    return total.reshape(out_channels, image.right, params.op.taps, row).transpose(2, 1, 3, 0)


def _weight_gradient_by_tap(
    params: ConvParams, image: Image, pixels: Pixels, grad_y: jax.Array
) -> jax.Array:
    """The gradient to the weights, [K, C/G, Co], of one tap after the other."""
    channels, out_channels = image.rows.shape[1] * image.right, grad_y.shape[1]

    def block(total, pixels_and_grad):
        pixels, grad = pixels_and_grad
        corners = jax.tree.map(lambda a: by_tap(params, a), pixels.corners(params))

        def tap_gradient(_, corners):
            samples = image.sample(corners).reshape(grad.shape[0], channels)
            if params.op.groups == 1:
                return None, jnp.dot(grad.T, samples, precision=params.precision).T
            product = jnp.einsum(
                "pgc,pgo->cgo",
                grouped(params, samples),
                grouped(params, grad),
                precision=params.precision,
            )
            return None, product.reshape(total.shape[1:])

        return total + lax.scan(tap_gradient, None, corners)[1], None

    shape = (params.op.taps, channels // params.op.groups, out_channels)
    total = _compat.match_varying(jnp.zeros(shape, grad_y.dtype), grad_y)[0]
    # Of one tap; and blocks are twice as large, since each adds to all of the weights.
    pixel_bytes = channels * grad_y.dtype.itemsize // 2
    return scan_blocks(block, total, (pixels, grad_y), pixel_bytes)[0]


def pixels_of(params: ConvParams, offset: jax.Array, mask: jax.Array | None) -> Pixels:
    """All output pixels, of an image that XLA can index."""
    n, (height, width) = offset.shape[0], params.size("h", "w")
    offset_groups = offset.shape[-1] // (2 * params.op.taps)
    factors = (n, height + 2 * BORDER, width + 2 * BORDER, offset_groups)
    require_product(
        factors,
        2**31 - 1,
        f"x with batch {n}, height and width {params.size('h', 'w')} and {offset_groups} offset "
        f"groups needs {math.prod(factors)} sample rows, and XLA indexes fewer than 2**31: split "
        "the batch",
    )
    return Pixels.of(params, offset, mask)
