"""Sampling of images, lines and volumes at given positions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.grids import Reading, check_grid, laid_out, parse_images

__all__ = ["grid_sample", "grid_sample_reference", "parse_grid_sample"]


@explain_keywords
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    coordinates: str = "normalized",
    data_format: str | None = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Images of one, two or three dimensions, sampled at the positions that a grid gives.

    Args:
      x: images [N, W, C], [N, H, W, C] or [N, D, H, W, C]; float16, bfloat16, float32 or float64.
      grid: [N, ..., K] for images of K dimensions, any of these dtypes: (x), (x, y) or (x, y, z),
        where x goes along the width, y along the height and z along the depth.
      method: "bilinear", which is linear along each dimension, "nearest" for the nearest pixel,
        with halves rounded to even ones, or "bicubic" for the cubic convolution of 4 pixels along
        each of one or two dimensions, with the coefficient -0.75.
      padding_mode: what is outside of the image: "zeros", "border" for the nearest pixel inside,
        "reflection" for what mirrors at the edges show, or "wrap" for the image once more.
      align_corners: whether -1 and 1 are the centres of the outermost pixels, at which mirrors are
        then as well; else they are the edges of the image. False but for "normalized" coordinates.
      coordinates: "normalized", from -1 to 1 across the image; "unit", from 0 to 1 from edge to
        edge; or "pixel", from 0, the centre of the first pixel, to size - 1, that of the last one.
      data_format: the order of the dimensions of x and of the result: "NWC", "NHWC" or "NDHWC", or
        with channels first "NCW", "NCHW" or "NCDHW". None is channels last.
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
    values = (x, grid, method, padding_mode, align_corners, coordinates, data_format)
    return laid_out(sample(parse_grid_sample(*values, implementation)), data_format)


def _reference(*values: Any) -> jax.Array:
    return laid_out(sample_reference(parse_grid_sample(*values)), values[-2])


grid_sample_reference = reference_twin(grid_sample, _reference)


def parse_grid_sample(
    x, grid, method, padding_mode, align_corners, coordinates, data_format, implementation
) -> SampleInputs:
    """Checks all arguments."""
    x = parse_images(x, data_format)
    dims = x.ndim - 2
    grid = checks.as_float_array("grid", grid)
    reading = Reading.parse(method, padding_mode, align_corners, coordinates, dims)
    n, *sizes, channels = x.shape
    check_grid("grid", grid, n, dims, f"x {x.shape} with channels last")
    if grid.shape[0] == 1 and n != 1:
        grid = jnp.broadcast_to(grid, (n, *grid.shape[1:]))
    sizes, pixels = tuple(sizes), 1
    for size in sizes:
        pixels *= size
    locations, weights, geometry = reading.points(grid, n, sizes)
    return sample_inputs(
        reshape(x, (n, pixels, 1, channels)),
        *((sizes,), locations.shape[3:4], geometry, (*grid.shape[:-1], channels)),
        locations=locations,
        weights=weights,
        implementation=parse_implementation(implementation),
    )
