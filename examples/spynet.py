"""SPyNet, which estimates optical flow from coarse to fine, and warping by a flow.

A flow [N, H, W, 2] says for each pixel how far away, (x, y) in pixels, another image shows it.

Source: Ranjan and Black, "Optical Flow Estimation using a Spatial Pyramid Network", 2017, in the
form that BasicVSR uses: six levels, without batch normalization.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import oxijax

__all__ = ["SPyNet", "resize", "warp"]

LEVELS = 6
# Of ImageNet's images.
MEAN, DEVIATION = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)


class ConvModule(nnx.Module):
    """A convolution with an activation or without."""

    def __init__(self, inputs: int, outputs: int, activated: bool, rngs: nnx.Rngs):
        # A new network sees no motion.
        init = nnx.initializers.he_normal() if activated else nnx.initializers.zeros
        self.conv = nnx.Conv(inputs, outputs, (7, 7), kernel_init=init, rngs=rngs)
        self.activated = activated

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.conv(x)) if self.activated else self.conv(x)


class BasicModule(nnx.Module):
    """The convolutions of a level: two images and a flow, 8 channels, to a flow to add to it."""

    def __init__(self, widths: Sequence[int], rngs: nnx.Rngs):
        sizes = list(itertools.pairwise((8, *widths, 2)))
        self.basic_module = nnx.Sequential(
            *(ConvModule(*size, activated=size is not sizes[-1], rngs=rngs) for size in sizes)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.basic_module(x)


class SPyNet(nnx.Module):
    """The flow from images to others: where each pixel of the first is in the second.

    Args:
      widths: channels between the convolutions of a level.
      rngs: random keys.
    """

    def __init__(self, widths: Sequence[int] = (32, 64, 32, 16), *, rngs: nnx.Rngs):
        self.basic_module = nnx.List([BasicModule(widths, rngs) for _ in range(LEVELS)])

    def __call__(self, images: jax.Array, others: jax.Array) -> jax.Array:
        """The flow [N, H, W, 2] between images [N, H, W, 3] with values from 0 to 1."""
        _, height, width, _ = images.shape
        coarsest = 2 ** (LEVELS - 1)
        size = [-(-n // coarsest) * coarsest for n in (height, width)]
        flow = self.of_whole_pixels(resize(images, size), resize(others, size))
        scale = np.array([width / size[1], height / size[0]], flow.dtype)
        return resize(flow, (height, width)) * scale

    def of_whole_pixels(self, images: jax.Array, others: jax.Array) -> jax.Array:
        """The same, where height and width can be halved all the way."""
        pyramid = [((images - MEAN) / DEVIATION, (others - MEAN) / DEVIATION)]
        for _ in range(LEVELS - 1):
            x, other = (nnx.avg_pool(x, (2, 2), (2, 2)) for x in pyramid[-1])
            pyramid.append((x, other))
        flow = jnp.zeros_like(pyramid[-1][0][..., :2])
        for module, (x, other) in zip(self.basic_module, reversed(pyramid), strict=True):
            flow = 2 * resize(flow, x.shape[1:3], align_corners=True)
            moved = warp(other, flow, padding_mode="border")
            flow = flow + module(jnp.concatenate([x, moved, flow], axis=-1))
        return flow


def warp(x: jax.Array, flow: jax.Array, padding_mode: str = "zeros") -> jax.Array:
    """Images [N, H, W, C], each pixel read where the flow [N, H, W, 2] says, bilinearly."""
    _, height, width, _ = x.shape
    ys, xs = np.mgrid[:height, :width]
    last = np.maximum([width - 1, height - 1], 1)
    pixels = np.stack([xs, ys], axis=-1).astype(flow.dtype)
    grid = 2 * (pixels + flow) / last.astype(flow.dtype) - 1
    return oxijax.grid_sample(x, grid, padding_mode=padding_mode, align_corners=True)


def resize(x: jax.Array, size: Sequence[int], align_corners: bool = False) -> jax.Array:
    """Images [N, H, W, C] of another size [N, *size, C], bilinearly and without smoothing.

    With `align_corners` the outermost pixels stay in the corners; else the edges of the image do.
    """
    for axis, (n, m) in enumerate(zip(x.shape[1:3], size, strict=True), start=1):
        if n != m:
            weights = jnp.asarray(_bilinear(n, m, align_corners), x.dtype)
            x = jnp.moveaxis(jnp.tensordot(x, weights, (axis, 1)), -1, axis)
    return x


def _bilinear(n: int, m: int, align_corners: bool) -> np.ndarray:
    """The weights [m, n] of n pixels in a row of m."""
    if align_corners:
        places = np.arange(m) * (n - 1) / max(m - 1, 1)
    else:
        places = np.clip((np.arange(m) + 0.5) * n / m - 0.5, 0, n - 1)
    return np.maximum(0, 1 - abs(places[:, None] - np.arange(n)))
