"""Sampling operators as nodes of ONNX."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core.arguments.precision import accumulator
from oxijax._sampling.packed import unpack
from oxijax._sampling.points import SampleParams
from oxijax._sampling.positions import position
from oxijax._sampling.windows import WindowsParams, of_samples
from oxijax.onnx._node import node
from ptx.kernels.sampling.geometry import Geometry, Grid, Window

__all__ = ["sampling", "windows"]

# As far as a grid goes: from there on positions are more than a pixel outside of any image.
_FAR = 5


def sampling(
    opset: int,
    params: SampleParams,
    value: jax.Array,
    locations: jax.Array | None,
    weights: jax.Array | None,
    packed: jax.Array | None,
) -> jax.Array:
    """`sampling_forward` as a GridSample for each level: of the images of all heads at once."""
    config, (n, _, heads, channels) = params.op, value.shape
    locations, weights = unpack(config, heads, locations, weights, packed)
    if weights is not None:
        weights = weights.astype(accumulator(weights))
        if config.normalize:
            weights = node("Softmax", (weights,), weights.shape, axis=-1)
    queries, images, wide = locations.shape[1], n * heads, accumulator(value)
    total, pixel, point = None, 0, 0
    if config.dims == 3 and opset < 20:
        raise ValueError(f"opset must be at least 20 for volumes, got {opset}")
    for sizes, points in zip(config.levels, config.points, strict=True):
        level, pixels = value, math.prod(sizes)
        if len(config.levels) > 1:
            level = value[:, pixel : pixel + pixels]
        level = level.astype(wide).reshape(n, *sizes, heads, channels)
        level = jnp.moveaxis(level, (-2, -1), (1, 2)).reshape(images, channels, *sizes)
        of_level = slice(point, point + points)
        at = locations[..., of_level, :].transpose(0, 2, 1, 3, 4)
        at = at.reshape(images, queries, points, config.dims)
        grid = _grid(config.geometry, at, sizes).astype(wide)
        if config.dims == 1:  # an image of one line, all of whose points are in it
            level, grid = level[:, :, None], jnp.concatenate([grid, jnp.zeros_like(grid)], -1)
        shape = (images, channels, queries, points)
        if config.dims == 3:
            grid, shape = grid[:, None], (images, channels, 1, queries, points)
        samples = node("GridSample", (level, grid), shape, **_attributes(opset, config.geometry))
        samples = samples.reshape(images, channels, queries, points)
        if weights is not None:
            factors = weights[..., of_level].transpose(0, 2, 1, 3).astype(wide)
            factors = factors.reshape(images, 1, queries, points)
            samples = node("Mul", (samples, factors), samples.shape)
        sums = samples.squeeze(3) if points == 1 else samples.sum(3)
        total = sums if total is None else total + sums
        pixel, point = pixel + pixels, point + points
    assert total is not None
    y = total.reshape(n, heads, channels, queries).transpose(0, 3, 1, 2)
    return y.astype(value.dtype)


def windows(opset: int, params: WindowsParams, value: jax.Array, centers: jax.Array) -> jax.Array:
    """`sampling_windows` as a GridSample at all positions of the windows."""
    (y,) = of_samples(lambda *call: (sampling(opset, *call),), params, value, centers)
    return y


def _attributes(opset: int, geometry: Geometry) -> dict[str, Any]:
    linear = "linear" if opset >= 20 else "bilinear"
    grid = isinstance(geometry, Grid)
    return {
        "mode": "nearest" if geometry.nearest else linear,
        "padding_mode": geometry.padding_mode if grid else "zeros",
        "align_corners": int(grid and geometry.align_corners),
    }


def _grid(geometry: Geometry, at: jax.Array, size: Sequence[Any]) -> jax.Array:
    """GridSample's grid, from -1 to 1 across the image, of locations [N*M, Q, T, K]."""
    grid = _anywhere(geometry, at.astype(accumulator(at)), size)
    if isinstance(geometry, Grid) and geometry.padding_mode == "reflection":
        return grid
    # Runtimes read some pixel or other at positions that no integer of theirs counts.
    return jnp.clip(grid, -_FAR, _FAR)


def _anywhere(geometry: Geometry, at: jax.Array, size: Sequence[Any]) -> jax.Array:
    """The grid as it is, of locations in the dtype of positions."""
    if isinstance(geometry, Grid) and geometry.coordinates == "normalized":
        return at
    if isinstance(geometry, Grid) and geometry.coordinates == "pixel":
        extent = np.array(size[::-1], at.dtype)
        if geometry.align_corners:
            return 2 * at / np.maximum(extent - 1, 1) - 1
        return (2 * at + 1) / extent - 1
    if isinstance(geometry, Grid) or not (isinstance(geometry, Window) or geometry.nearest):
        return 2 * at - 1
    queries, points = at.shape[1:3]
    known = isinstance(queries, int)
    query = np.arange(queries, dtype=np.int32) if known else jax.lax.iota(jnp.int32, queries)
    along = []
    for axis in reversed(range(len(size))):
        extents = np.full((points, 1, 1), size[axis], np.int32)
        coordinate = at[..., -1 - axis].transpose(2, 1, 0)
        real, whole, _ = position(geometry, axis, coordinate, extents, query)
        pixel = jnp.asarray(real + whole, at.dtype).transpose(2, 1, 0)
        along.append((2 * pixel + 1) / size[axis] - 1)
    return jnp.stack(along, -1)
