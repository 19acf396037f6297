"""Values that are added into images at given positions: the adjoint of sampling."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleParams, add_samples, add_samples_reference, sample_params
from oxijax._sampling.grids import (
    Reading,
    channels_first,
    channels_last,
    check_grid,
    parse_data_format,
)

__all__ = ["parse_splat", "splat", "splat_reference"]


@explain_keywords
def splat(
    values: ArrayLike,
    grid: ArrayLike,
    size: tuple[int, ...],
    *,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    coordinates: str = "normalized",
    data_format: str | None = None,
    return_weights: bool = False,
    implementation: ImplementationLike = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Values that are added into images at the positions that a grid gives.

    It is the adjoint of `grid_sample`, known as push, forward warping or cloud-in-cell assignment:
    each value is added to the pixels that a sample at its position would be made of, with their
    weights.

    Args:
      values: [N, ..., C]; float16, bfloat16, float32 or float64.
      grid: positions [N, ..., K] in images of K dimensions, as in `grid_sample`.
      size: the size of the images: (width,), (height, width) or (depth, height, width).
      method: "bilinear", "nearest" or "bicubic", as in `grid_sample`.
      padding_mode: "zeros", "border", "reflection" or "wrap", as in `grid_sample`.
      align_corners: as in `grid_sample`.
      coordinates: "normalized", "unit" or "pixel", as in `grid_sample`.
      data_format: the order of the dimensions of the images and, for the channels, of values, as in
        `grid_sample`.
      return_weights: whether to return the sums of the weights as well, by which a mean is divided.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Values [1, ..., C] are added into the images of all grids, and at a grid [1, ..., K] the values
    for all images are added.

    Returns:
      The images [N, *size, C], or [N, C, *size], in the dtype of values: sums in float32, for
      float64 values in float64. With `return_weights` a pair of them and of [N, *size, 1], or
      [N, 1, *size].

      A value whose position has a NaN, or is infinite, is added nowhere; with "border" an infinite
      one is at the edge. On GPUs the order of the additions is not fixed, unless
      `oxijax.config.deterministic` asks for it.

    Differentiable in forward and reverse mode, any number of times: with respect to values, the
    gradient is `grid_sample` of the images' gradient.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Niklaus and Liu, "Softmax Splatting for Video Frame Interpolation", 2020: section 3.1;
    Hockney and Eastwood, "Computer Simulation Using Particles", 1988: cloud-in-cell.
    """
    reading = (method, padding_mode, align_corners, coordinates, data_format)
    inputs = parse_splat(values, grid, size, *reading, return_weights, implementation)
    return _laid_out(add_samples(*inputs.operands), inputs)


def _reference(*values: Any) -> jax.Array | tuple[jax.Array, jax.Array]:
    inputs = parse_splat(*values)
    return _laid_out(add_samples_reference(*inputs.operands), inputs)


splat_reference = reference_twin(splat, _reference)


class SplatInputs(NamedTuple):
    """The inputs of `splat`, which have been checked.

    Attributes:
      operands: what is static, locations [N, Q, 1, T, K], their weights and values [N, Q, 1, D].
      size: the size of the images.
      data_format: that of the images.
      return_weights: whether the last of the channels is the sum of weights.
    """

    operands: tuple[SampleParams, jax.Array, jax.Array | None, jax.Array]
    size: tuple[int, ...]
    data_format: str
    return_weights: bool


def parse_splat(
    values, grid, size, method, padding_mode, align_corners, coordinates, data_format,
    return_weights, implementation,
) -> SplatInputs:  # fmt: skip
    """Checks all arguments."""
    grid = checks.as_float_array("grid", grid)
    size = tuple(checks.parse_int("size", extent) for extent in checks.parse_sequence("size", size))
    dims = len(size)
    if dims > 3:
        raise ValueError(f"size must have 1, 2 or 3 numbers, got {size}")
    reading = Reading.parse(method, padding_mode, align_corners, coordinates, dims)
    return_weights = checks.parse_bool("return_weights", return_weights)
    data_format = parse_data_format(data_format, dims)
    values = checks.as_array("values", values, grid.ndim, f" as grid {grid.shape} has")
    values = channels_last(values, data_format) if values.ndim > 2 else values
    if values.shape[-1] < 1:
        raise ValueError(f"values must have channels, got shape {values.shape}")
    check_grid("grid", grid, values.shape[0], dims, f"size {size}")
    if values.shape[1:-1] != grid.shape[1:-1]:
        raise ValueError(
            f"values must have shape (N or 1, ..., C) with the dimensions of grid {grid.shape}, "
            f"got {values.shape}"
        )
    n = grid.shape[0] if values.shape[0] == 1 else values.shape[0]
    values, grid = (jnp.broadcast_to(array, (n, *array.shape[1:])) for array in (values, grid))
    if return_weights:
        values = jnp.concatenate([values, jnp.ones_like(values[..., :1])], -1)
    locations, weights, geometry = reading.points(grid, n, size)
    values = reshape(values, (*locations.shape[:3], values.shape[-1]))
    params = sample_params(
        1, values.shape[-1], (size,), locations.shape[3:4], geometry,
        implementation=parse_implementation(implementation),
    )  # fmt: skip
    return SplatInputs((params, locations, weights, values), size, data_format, return_weights)


def _laid_out(images: jax.Array, inputs: SplatInputs) -> jax.Array | tuple[jax.Array, jax.Array]:
    """The results, of images [N, S, 1, D]."""
    n, _, _, channels = images.shape
    images = channels_first(reshape(images, (n, *inputs.size, channels)), inputs.data_format)
    if not inputs.return_weights:
        return images
    axis = 1 if inputs.data_format[1] == "C" else -1
    sums, weights = jnp.split(images, [channels - 1], axis)
    return sums, weights
