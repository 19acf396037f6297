"""Windows of images about given positions, whose samples share one fraction of a pixel."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from oxijax._core import compat as _compat
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._core.primitive.kernel_primitive import map_present
from oxijax._core.primitive.operation import OpParams
from oxijax._sampling.grids import check_grid, laid_out, parse_images
from oxijax._sampling.windows import WindowsParams, sampling_windows
from ptx.kernels.sampling.windows import WindowsConfig

__all__ = ["parse_sample_windows", "sample_windows", "sample_windows_reference"]


@explain_keywords
def sample_windows(
    x: ArrayLike,
    centers: ArrayLike,
    radius: int | Sequence[int],
    *,
    padding_mode: str = "zeros",
    data_format: str | None = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Windows of samples, a pixel apart, about positions in images of one, two or three dimensions.

    All samples of a window lie equally far from their pixels: 2 radius + 2 pixels along a dimension
    make its 2 radius + 1 samples, and of images of one channel each of them is read once. These are
    the lookups of RAFT, TAPIR and PIPs in their correlation volumes.

    Args:
      x: images [N, W, C], [N, H, W, C] or [N, D, H, W, C]; float16, bfloat16, float32 or float64.
      centers: the positions of the windows' centres, [N, ..., K] for images of K dimensions, any of
        these dtypes: (x), (x, y) or (x, y, z) in pixels, from 0, the centre of the first pixel, to
        size - 1, that of the last one.
      radius: how many samples there are on each side of a centre, 0 or more: a number for all
        dimensions, or one for each of them in x's order, (height, width) for instance.
      padding_mode: what is outside of the image: "zeros", "border" for the nearest pixel inside, or
        "reflection" for what mirrors at the image's edges show.
      data_format: the order of the dimensions of x and of the result: "NWC", "NHWC" or "NDHWC", or
        with channels first "NCW", "NCHW" or "NCDHW". None is channels last.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    A single image is shared by all centres, and centres of a single image by all images.

    Returns:
      The samples [N, ..., 2 radius + 1 for each dimension of the image, C], or with channels first
      [N, C, ...], in x's dtype: what `grid_sample` with coordinates="pixel" has at the centre plus
      -radius, ..., radius along each dimension, of which the first is x's first. They are made in
      float32, for float64 x in float64; positions are in float32, for float64 centers in float64.

      A NaN in a centre makes its window NaN, and adds nothing to the gradient with respect to x. An
      infinite centre reads zeros, or with "border" pixels at the edge.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Teed and Deng, "RAFT: Recurrent All-Pairs Field Transforms for Optical Flow", 2020,
    section 3.2. Its code counts the samples of a window column by column.
    """
    inputs = parse_sample_windows(x, centers, radius, padding_mode, data_format, implementation)
    (y,) = sampling_windows(inputs.params, *map_present(_compat.match_varying, *inputs.operands))
    return _laid_out(y, inputs)


def _reference(*values: Any) -> jax.Array:
    inputs = parse_sample_windows(*values)
    (y,) = sampling_windows.call_reference(inputs.params, *inputs.operands)
    return _laid_out(y, inputs)


sample_windows_reference = reference_twin(sample_windows, _reference)


class WindowInputs(NamedTuple):
    """The inputs of `sample_windows`, which have been checked.

    Attributes:
      params: what is static.
      operands: images [N, S, C] and centres [N, Q, K].
      shape: that of the result with channels last.
      data_format: that of the result.
    """

    params: WindowsParams
    operands: tuple[jax.Array, jax.Array]
    shape: tuple[int, ...]
    data_format: str | None


def parse_sample_windows(
    x, centers, radius, padding_mode, data_format, implementation
) -> WindowInputs:
    """Checks all arguments."""
    x = parse_images(x, data_format)
    n, *sizes, channels = x.shape
    dims = len(sizes)
    checks.check_choice("padding_mode", padding_mode, ("zeros", "border", "reflection"))
    centers = checks.as_float_array("centers", centers)
    check_grid("centers", centers, n, dims, f"x {x.shape} with channels last")
    if centers.shape[0] == 1 and n != 1:
        centers = jnp.broadcast_to(centers, (n, *centers.shape[1:]))
    op = WindowsConfig(channels, tuple(sizes), _parse_radius(radius, dims), padding_mode)
    queries = 1 if n == centers.shape[0] else centers.shape[0]  # a single image has all windows
    for size in centers.shape[1:-1]:
        queries = queries * size
    return WindowInputs(
        OpParams(op, implementation=parse_implementation(implementation)),
        (reshape(x, (n, math.prod(sizes), channels)), reshape(centers, (n, queries, dims))),
        (*centers.shape[:-1], *op.window, channels),
        data_format,
    )


def _parse_radius(radius: Any, dims: int) -> tuple[int, ...]:
    radii = [radius] * dims if checks.is_int(radius) else checks.parse_sequence("radius", radius)
    if len(radii) != dims or not all(map(checks.is_int, radii)):
        raise TypeError(
            f"radius must be an int, or an int for each of {dims} dimensions of x, "
            f"got {checks.shown(radius)}"
        )
    checks.check_range("radius", radii, radius, 0)
    return tuple(map(int, radii))


def _laid_out(y: jax.Array | None, inputs: WindowInputs) -> jax.Array:
    assert y is not None
    return laid_out(reshape(y, inputs.shape), inputs.data_format)
