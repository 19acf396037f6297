"""Sampling of an image at given positions."""

import jax
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.points import check_image
from ptx.kernels.sampling.geometry import Grid

__all__ = ["grid_sample", "grid_sample_reference", "parse_grid_sample"]


@explain_keywords
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Images, sampled at the positions that a grid gives.

    Args:
      x: images [N, H, W, C]; float16, bfloat16, float32 or float64.
      grid: [N, ..., 2], any of these dtypes: (x, y), each from -1 to 1 across the image.
      method: "bilinear", or "nearest" for the nearest pixel, with halves rounded to even ones.
      padding_mode: what is outside of the image: "zeros", "border" for the nearest pixel inside, or
        "reflection" for what mirrors at the edges show.
      align_corners: whether -1 and 1 are the centres of the outermost pixels; else they are the
        edges of the image.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      The samples [N, ..., C] in x's dtype, with `torch.nn.functional.grid_sample`'s values. They
      are made in float32, for float64 x in float64; positions are in float32, for a float64 grid in
      float64.

      A NaN in the grid makes its sample NaN, and adds nothing to the gradient with respect to x. An
      infinite position reads zeros, or with "border" the pixel at the edge.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Jaderberg et al., "Spatial Transformer Networks", 2015.
    """
    return sample(parse_grid_sample(x, grid, method, padding_mode, align_corners, implementation))


grid_sample_reference = reference_twin(
    grid_sample, lambda *values: sample_reference(parse_grid_sample(*values))
)


def parse_grid_sample(x, grid, method, padding_mode, align_corners, implementation) -> SampleInputs:
    """Checks all arguments."""
    x = checks.as_array("x", x, 4)
    check_image("x", x)
    grid = checks.as_float_array("grid", grid)
    checks.check_choice("method", method, ("bilinear", "nearest"))
    checks.check_choice("padding_mode", padding_mode, ("zeros", "border", "reflection"))
    align_corners = checks.parse_bool("align_corners", align_corners)
    n, height, width, channels = x.shape
    if grid.ndim < 2 or grid.shape[0] != n or grid.shape[-1] != 2:
        raise ValueError(f"grid must have shape (N, ..., 2) = ({n}, ..., 2), got {grid.shape}")
    value = reshape(x, (n, height * width, 1, channels))
    outer, queries = grid.shape[1:-1], 1
    for size in outer:
        queries = queries * size
    locations = reshape(grid, (n, queries, 1, 1, 2))
    return sample_inputs(
        value, ((height, width),), (1,), Grid(align_corners, padding_mode, method == "nearest"),
        (n, *outer, channels),
        locations=locations, implementation=parse_implementation(implementation),
    )  # fmt: skip
