"""Sampling of an image at given positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from oxijax._convolution import from_nhwc, to_nhwc
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import accumulator
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.points import check_image
from oxijax._sampling.positions import position, reflected
from ptx.kernels.sampling.geometry import HEIGHT, WIDTH, Grid

__all__ = ["grid_sample", "grid_sample_reference", "parse_grid_sample"]

_CUBIC_A = -0.75  # of the cubic convolution, as in PyTorch


@explain_keywords
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    data_format: str = "NHWC",
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Images, sampled at the positions that a grid gives.

    Args:
      x: images [N, H, W, C], or [N, C, H, W] with data_format "NCHW"; float16, bfloat16, float32 or
        float64.
      grid: [N, ..., 2], any of these dtypes: (x, y), each from -1 to 1 across the image.
      method: "bilinear", "nearest" for the nearest pixel, with halves rounded to even ones, or
        "bicubic" for the cubic convolution of 4 x 4 pixels with the coefficient -0.75.
      padding_mode: what is outside of the image: "zeros", "border" for the nearest pixel inside, or
        "reflection" for what mirrors at the edges show.
      align_corners: whether -1 and 1 are the centres of the outermost pixels; else they are the
        edges of the image.
      data_format: "NHWC" or "NCHW", of x and of the result.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    A single image is shared by all grids, and a single grid by all images.

    Returns:
      The samples [N, ..., C], or [N, C, ...], in x's dtype, with the values of
      `torch.nn.functional.grid_sample`. They are made in float32, for float64 x in float64;
      positions are in float32, for a float64 grid in float64.

      A NaN in the grid makes its sample NaN, and adds nothing to the gradient with respect to x. An
      infinite position reads zeros, or with "border" the pixel at the edge.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Jaderberg et al., "Spatial Transformer Networks", 2015.
    """
    values = (x, grid, method, padding_mode, align_corners, data_format, implementation)
    return from_nhwc(sample(parse_grid_sample(*values)), data_format)


def _reference(*values: Any) -> jax.Array:
    return from_nhwc(sample_reference(parse_grid_sample(*values)), values[-2])


grid_sample_reference = reference_twin(grid_sample, _reference)


def parse_grid_sample(
    x, grid, method, padding_mode, align_corners, data_format, implementation
) -> SampleInputs:
    """Checks all arguments."""
    checks.check_choice("data_format", data_format, ("NHWC", "NCHW"))
    x = to_nhwc(checks.as_array("x", x, 4), data_format)
    check_image("x", x)
    grid = checks.as_float_array("grid", grid)
    checks.check_choice("method", method, ("bilinear", "nearest", "bicubic"))
    checks.check_choice("padding_mode", padding_mode, ("zeros", "border", "reflection"))
    align_corners = checks.parse_bool("align_corners", align_corners)
    n, height, width, channels = x.shape
    if grid.ndim < 2 or grid.shape[-1] != 2 or (n not in (1, grid.shape[0]) and grid.shape[0] != 1):
        raise ValueError(
            f"grid must have shape (N or 1, ..., 2) = ({n} or 1, ..., 2), got {grid.shape}"
        )
    if grid.shape[0] == 1 and n != 1:
        grid = jnp.broadcast_to(grid, (n, *grid.shape[1:]))
    shape = (*grid.shape[:-1], channels)
    # Grids that share an image are one grid of it.
    queries = 1 if n == grid.shape[0] else grid.shape[0]
    for size in grid.shape[1:-1]:
        queries = queries * size
    locations, weights = reshape(grid, (n, queries, 1, 1, 2)), None
    geometry = Grid(align_corners, padding_mode, method == "nearest")
    if method == "bicubic":
        locations, weights = _cubic_points(locations, (height, width), geometry)
        geometry = Grid(nearest=True)
    return sample_inputs(
        reshape(x, (n, height * width, 1, channels)),
        *(((height, width),), locations.shape[3:4], geometry, shape),
        locations=locations,
        weights=weights,
        implementation=parse_implementation(implementation),
    )


def _cubic_points(
    locations: jax.Array, size: tuple[int, int], geometry: Grid
) -> tuple[jax.Array, jax.Array]:
    """The 4 x 4 pixels about locations [N, Q, 1, 1, 2], [N, Q, 1, 16, 2], and their weights."""
    locations = locations.astype(accumulator(locations))
    found, weights = [], []
    for axis, index in ((HEIGHT, 1), (WIDTH, 0)):
        at, extent = locations[..., index], np.full((1, 1, 1, 1), size[axis], np.int32)
        unbounded = Grid(geometry.align_corners)
        real = position(unbounded, axis, at, extent, None).real
        first = jax.lax.stop_gradient(jnp.floor(real))
        # Infinitely far it is a pixel's middle.
        fraction = jax.lax.select(jnp.isinf(real), jnp.zeros_like(real), real - first)
        weights.append(_cubic_weights(fraction))
        pixel = first + np.arange(-1, 3, dtype=first.dtype).reshape(1, 1, 1, 4)
        if geometry.padding_mode != "zeros":
            pixel = _inside(pixel, extent, geometry)
        found.append((2 * pixel + 1) / size[axis] - 1)
    (y, x), (of_y, of_x) = found, weights
    y, x = jnp.broadcast_arrays(y[..., None], x[..., None, :])
    points = (*locations.shape[:3], 16)
    pairs = jnp.stack([reshape(x, points), reshape(y, points)], -1)
    return pairs, reshape(of_y[..., None] * of_x[..., None, :], points)


def _inside(pixel: jax.Array, extent: np.ndarray, geometry: Grid) -> jax.Array:
    """Numbers of pixels after the padding mode; infinite ones stay where edges reflect."""
    last = extent.astype(pixel.dtype) - 1
    if geometry.padding_mode == "border":
        return jnp.clip(pixel, 0, last)
    found = jnp.clip(reflected(geometry, pixel, last + 1)[0], 0, last)
    return jnp.where(jnp.isinf(pixel), pixel, found)


def _cubic_weights(t: jax.Array) -> jax.Array:
    """What the pixels at -1, 0, 1 and 2 weigh for fractions [..., 1]: [..., 4]."""
    a = _CUBIC_A

    def near(d):  # up to a pixel away
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d):
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return jnp.concatenate([far(t + 1), near(t), near(1 - t), far(2 - t)], -1)
