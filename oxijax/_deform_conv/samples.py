"""The samples of deformable convolution in pure JAX: positions, and reads block by block.

An image gets a border of zeros two pixels wide and is viewed as rows of the C/OG channels of one
offset group. Every sample, also a far one, finds its four corners there as four rows at fixed
distances, and neither gathers nor scatters need a mask.

Output pixels are counted through the batch, P = N*Ho*Wo, and taken in blocks whose samples stay in
a core's cache from when they are gathered until they are multiplied: what a pixel costs does not
depend on how large the image is.

The samples of a block are [B, R, C/OG]: B pixels, and R = OG*K rows in the order of the offsets,
all K taps of an offset group after those of the one before.
"""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oxijax._convolution import ConvParams
from oxijax._core.arguments.precision import accumulator
from oxijax._core.xla.blocks import apart
from oxijax._core.xla.rows import hidden_zero, take_rows

__all__ = [
    "BORDER",
    "Corners",
    "Image",
    "Pixels",
    "flat",
]

BORDER = 2  # the corners of a sample just outside are up to two pixels outside
# Offsets are clamped to this before they become integers. Padding has 2**30 pixels at most, and an
# image that XLA can index fewer than 2**31 / 5: from no tap is anything inside so far away.
_FAR = 2**31 - 128


def flat(images: jax.Array) -> jax.Array:
    """[N, Ho, Wo, ...] -> [P, ...]."""
    n, height, width, *rest = images.shape
    return images.reshape(n * height * width, *rest)


class Corners(NamedTuple):
    """The four corners of each sample, by arrays that are [P, R]."""

    row: jax.Array  # the row of the `Image` that holds the corner at (floor y, floor x)
    fraction_y: jax.Array
    fraction_x: jax.Array
    mask: jax.Array | None

    def weights(self) -> tuple[jax.Array, ...]:
        """Bilinear weights times mask, for the corners in the order of `Image.steps`."""
        hy, hx = 1 - self.fraction_y, 1 - self.fraction_x
        ly, lx = self.fraction_y, self.fraction_x
        if self.mask is not None:
            hy, ly = hy * self.mask, ly * self.mask
        return hy * hx, hy * lx, ly * hx, ly * lx

    def flat(self) -> "Corners":
        """The same corners, with one axis."""
        return jax.tree.map(lambda array: array.reshape(-1), self)


class Pixels(NamedTuple):
    """Output pixels [P], and all that their samples depend on."""

    offset: jax.Array  # [P, R*2]
    mask: jax.Array | None  # [P, R]
    image: jax.Array  # [P], with `y` and `x`: where the tap (0, 0) is without an offset
    y: jax.Array
    x: jax.Array

    @classmethod
    def of(cls, params: ConvParams, offset: jax.Array, mask: jax.Array | None) -> "Pixels":
        """All output pixels, of offset [N, Ho, Wo, OG*K*2] and mask [N, Ho, Wo, OG*K]."""
        image, y, x = (
            lax.broadcasted_iota(jnp.int32, offset.shape[:3], axis).reshape(-1) for axis in range(3)
        )
        (top, _), (left, _) = params.op.padding
        return cls(
            flat(offset),
            None if mask is None else flat(mask),
            image,
            y * params.op.strides[0] - top,
            x * params.op.strides[1] - left,
        )

    def corners(self, params: ConvParams) -> Corners:
        """The corners of these pixels' samples.

        The offset is split into floor and fraction before the integer position of its pixel
        and tap is added, so the fraction is as exact for a large image as for a small one.
        """
        # XLA's CPU compiler makes no vectors of a loop that reads coordinates of both axes.
        offsets = (self.offset[:, axis::2] for axis in range(2))
        row, fraction_y, fraction_x = apart(
            lambda y, x: self._places(params, y, x), *offsets, number=self.offset
        )
        return Corners(row, fraction_y, fraction_x, self.mask)

    def _places(
        self, params: ConvParams, y: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The row of each sample's first corner, and its fractions, of offsets [P, R]."""
        dtype = accumulator(y)
        y, x = y.astype(dtype), x.astype(dtype)

        # One NaN coordinate makes the whole sample NaN, and its gradients. Its row is as far
        # outside as that of an infinite one, where what is scattered is dropped.
        invalid = jnp.isnan(y) | jnp.isnan(x)
        poison = jnp.where(invalid, np.asarray(np.nan, dtype), np.zeros((), dtype))

        def split(coordinate, pixel, tap, extent):
            floor = jnp.floor(coordinate)
            fraction = jnp.where(jnp.isinf(coordinate), 0, coordinate - floor) + poison
            floor = jnp.where(invalid, -_FAR, jnp.clip(floor, -_FAR, _FAR)).astype(jnp.int32)
            base = pixel[:, None] + np.tile(tap, offset_groups).astype(np.int32)
            # The sum could overflow; what is clipped first ends between -BORDER and the extent.
            corner = jnp.clip(floor, -BORDER - base, extent - base) + (base + BORDER)
            return corner, fraction

        offset_groups = y.shape[1] // params.op.taps
        (kh, kw), (height, width) = params.op.kernel_size, params.size("h", "w")
        tap_y = np.repeat(np.arange(kh), kw) * params.op.dilation[0]
        tap_x = np.tile(np.arange(kw), kh) * params.op.dilation[1]
        row_y, fraction_y = split(y, self.y, tap_y, height)
        row_x, fraction_x = split(x, self.x, tap_x, width)

        group = np.repeat(np.arange(offset_groups, dtype=np.int32), params.op.taps)
        # What fills a block up, with `NOWHERE` for integers, is outside of the first image.
        row = jnp.maximum(self.image, 0)[:, None] * (height + 2 * BORDER) + row_y
        row = row * (width + 2 * BORDER) + row_x
        return row * offset_groups + group, fraction_y, fraction_x


class Image(NamedTuple):
    """An image with a border of zeros, as rows of the channels of one offset group."""

    rows: jax.Array  # [N*(H+4)*(W+4)*OG, C/OG]
    right: int  # from a corner's row to that of the one to its right
    down: int
    zero: jax.Array  # see `hidden_zero`

    @classmethod
    def of(cls, params: ConvParams, x: jax.Array, offset: jax.Array) -> "Image":
        """The image x [N, H, W, C], for the samples of offset."""
        offset_groups = offset.shape[-1] // (2 * params.op.taps)
        border = (BORDER, BORDER)
        padded = jnp.pad(x, ((0, 0), border, border, (0, 0)))
        rows = padded.reshape(-1, x.shape[-1] // offset_groups)
        return cls(rows, offset_groups, padded.shape[2] * offset_groups, hidden_zero(offset))

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """From a corner's row to it, (y, x+1), (y+1, x) and (y+1, x+1)."""
        return 0, self.right, self.down, self.down + self.right

    def gather(self, row: jax.Array, start: int = 0, stop: int | None = None) -> jax.Array:
        """Channels of these rows, [..., C/OG], to be summed."""
        found = take_rows(self.rows, row, start, stop)
        return found.astype(accumulator(found))

    def sample(self, corners: Corners) -> jax.Array:
        """The modulated samples, [P, R, C/OG], to be summed."""
        values = (self.gather(corners.row + step) for step in self.steps)
        weighted = (
            value * weight[..., None].astype(value.dtype)
            for value, weight in zip(values, corners.weights(), strict=True)
        )
        return functools.reduce(operator.add, weighted)

    def without_border(self, rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Rows as an image again, [N, H, W, C]."""
        n, height, width, channels = shape
        padded = rows.reshape(n, height + 2 * BORDER, width + 2 * BORDER, channels)
        return padded[:, BORDER : BORDER + height, BORDER : BORDER + width]
