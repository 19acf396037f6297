"""Multi-scale deformable attention."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import parse_precision
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from ptx.kernels.sampling.geometry import Across

__all__ = [
    "check_method",
    "ms_deform_attn",
    "ms_deform_attn_reference",
    "parse_ms_deform_attn",
    "parse_spatial_shapes",
]


@explain_keywords
def ms_deform_attn(
    value: ArrayLike,
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    *,
    spatial_shapes: tuple[tuple[int, ...], ...],
    points: tuple[int, ...] | None = None,
    method: str = "bilinear",
    normalize: bool = False,
    precision: lax.PrecisionLike = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Multi-scale deformable attention.

    Each head of each query reads a few points of images of several sizes, and returns their
    weighted sum:

        y[n, q, m] = sum over levels l and points p of attention_weights[n, q, m, l, p]
            * value_of_level(l)[n, m] at sampling_locations[n, q, m, l, p]

    A location (x, y) from (0, 0) to (1, 1) goes across the image of its level, from the edges of
    the outermost pixels: in pixels it is (x * width - 0.5, y * height - 0.5). Outside of the image
    is 0. So it is for volumes, where a location is (x, y, z), and for lines, where it is (x,).

    Args:
      value: [N, S, M, D] for N images, M heads and D channels of a head; S counts the pixels of all
        levels, row by row and level after level. float16, bfloat16, float32 or float64.
      sampling_locations: [N, Q, M, L, P, 2] for Q queries, L levels and P points of each, with 3 or
        1 in the end for volumes or lines; with `points` [N, Q, M, sum(points), 2], the points of a
        level after those of the one before. Any of these dtypes.
      attention_weights: [N, Q, M, L, P], or [N, Q, M, sum(points)]. Any of these dtypes.
      spatial_shapes: height and width of each level, ints; (depth, height, width) of volumes,
        (width,) of lines.
      points: how many there are in each level, where levels differ.
      method: "bilinear", or "nearest" for the pixel at (floor(x * width + 0.5),
        floor(y * height + 0.5)) or, if there is none, the one at the edge: RT-DETRv2's "discrete".
      normalize: take the softmax of attention_weights over all points of a query and head.
      precision: as in `jax.lax`. There are no matrix products here that it would change.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      The sums [N, Q, M, D] in value's dtype. They are made in float32, for float64 value in
      float64; positions are in float32, for float64 locations in float64.

      A NaN location makes its query and head NaN, and the gradients with respect to that location
      and its weight, but adds nothing to the gradient with respect to value. An infinite one reads
      zeros, or with "nearest" the pixel at the edge, and has finite gradients.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
    2021; "nearest" and `points`: Lv et al., "RT-DETRv2", 2024.
    """
    return sample(
        parse_ms_deform_attn(
            *(value, sampling_locations, attention_weights),
            *(spatial_shapes, points, method, normalize, precision, implementation),
        )
    )


ms_deform_attn_reference = reference_twin(
    ms_deform_attn, lambda *values: sample_reference(parse_ms_deform_attn(*values))
)


def parse_ms_deform_attn(
    value, locations, weights,
    spatial_shapes, points, method, normalize, precision, implementation,
) -> SampleInputs:  # fmt: skip
    """Checks all arguments."""
    value = checks.as_array("value", value, 4)
    check_method(method)
    normalize = checks.parse_bool("normalize", normalize)
    parse_precision(precision)
    levels = parse_spatial_shapes(spatial_shapes)
    counts = _parse_points(points, levels)
    n, pixels, heads, channels = value.shape
    if heads < 1 or channels < 1:
        raise ValueError(f"value must have heads and channels, got shape {value.shape}")
    dims, wanted = len(levels[0]), sum(math.prod(level) for level in levels)
    if pixels != wanted:
        raise ValueError(
            f"value must have the {wanted} pixels of spatial_shapes {levels} in its second "
            f"dimension, got {pixels} in shape {value.shape}"
        )

    ndim = 6 if counts is None else 5
    why = " without points=(...), the points of each level" if counts is None else " with points"
    locations = checks.as_array("sampling_locations", locations, ndim, why)
    weights = checks.as_array("attention_weights", weights, ndim - 1, why)
    queries = locations.shape[1]
    names, shape = ("N", "Q", "M"), (n, queries, heads)
    if counts is None:
        each = locations.shape[4]
        if each < 1:
            raise ValueError(
                "sampling_locations must have points, got shape "
                f"{locations.shape} = [N, Q, M, L, P, {dims}]"
            )
        counts = (each,) * len(levels)
        names, shape = (*names, "L", "P"), (*shape, len(levels), each)
    else:
        names, shape = (*names, "sum(points)"), (*shape, sum(counts))
    checks.check_shape("sampling_locations", locations, (*names, str(dims)), (*shape, dims))
    checks.check_shape("attention_weights", weights, names, shape)
    locations = reshape(locations, (n, queries, heads, sum(counts), dims))
    weights = reshape(weights, (n, queries, heads, sum(counts)))
    return sample_inputs(
        value, levels, counts, Across(method == "nearest"), (n, queries, heads, channels),
        locations=locations, weights=weights, normalize=normalize,
        implementation=parse_implementation(implementation),
    )  # fmt: skip


def check_method(method: Any) -> None:
    of_rt_detr = {"default": "bilinear", "discrete": "nearest"}
    checks.check_choice("method", method, ("bilinear", "nearest"), of_rt_detr)


def parse_spatial_shapes(
    spatial_shapes: Any, ranks: Sequence[int] = (1, 2, 3)
) -> tuple[tuple[int, ...], ...]:
    """The sizes of each level, all of them of one of these numbers of dimensions."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(spatial_shapes)):
        raise TypeError(
            "spatial_shapes must be known when a program is traced: a tuple of pairs of ints, got "
            f"{checks.shown(spatial_shapes)}"
        )
    levels, first = [], ""
    for i, sizes in enumerate(checks.parse_sequence("spatial_shapes", spatial_shapes)):
        name = f"spatial_shapes[{i}]"
        length = len(sizes) if isinstance(sizes, Sequence | np.ndarray) else 0
        if length not in ranks or not all(map(checks.is_int, sizes)):
            expected = (
                "a pair of ints" if 2 in ranks else f"ints, in a sequence of {ranks[0]}{first}"
            )
            raise TypeError(f"{name} must be {expected}, got {checks.shown(sizes)}")
        checks.check_range(name, list(sizes), sizes, 1)
        ranks, first = (length,), ", as spatial_shapes[0] is"
        levels.append(tuple(map(int, sizes)))
    return tuple(levels)


def _parse_points(points: Any, levels: Sequence[Any]) -> tuple[int, ...] | None:
    if points is None:
        return None
    points = checks.parse_sequence("points", points)
    counts = tuple(checks.parse_int(f"points[{i}]", count) for i, count in enumerate(points))
    if len(counts) != len(levels):
        raise ValueError(
            f"points must have a number for each of the {len(levels)} levels of spatial_shapes, "
            f"got {checks.shown(points)}"
        )
    return counts
