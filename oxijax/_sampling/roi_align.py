"""Means of samples in regions of interest."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from oxijax._convolution import parse_pair
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, is_known, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import accumulator, usual_promotion
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.points import check_image
from oxijax._sampling.stencils import WHOLE_PIXELS, pixel_points
from ptx.kernels.sampling.geometry import Grid

__all__ = ["parse_roi_align", "roi_align", "roi_align_reference", "roi_levels"]

_MOST_PIXELS = 2**24  # that float32 can number


@explain_keywords
def roi_align(
    x: ArrayLike | Sequence[ArrayLike],
    boxes: ArrayLike,
    *,
    output_size: int | tuple[int, int],
    spatial_scale: float | Sequence[float] = 1.0,
    sampling_ratio: int = 0,
    max_sampling_ratio: int | None = None,
    aligned: bool = False,
    levels: ArrayLike | None = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Regions of interest, pooled to one size: means of samples in each of their bins.

    Args:
      x: images [N, H, W, C]; float16, bfloat16, float32 or float64. Or a sequence of such, the
        levels of a feature pyramid, with as many images and channels each.
      boxes: [N, K, 4] for K boxes of each image, as (x1, y1, x2, y2), or [K, 5], of which each has
        the number of its image first. Any of these dtypes.
      output_size: the bins of a box, an int or (height, width).
      spatial_scale: the pixels of x in one of the units that boxes have; one for each level.
      sampling_ratio: samples in a bin along each axis. 0, or torchvision's -1, takes as many as a
        bin has pixels, rounded up: where boxes are traced, at most `max_sampling_ratio`, which then
        must be given.
      max_sampling_ratio: the most samples in a bin along each axis with `sampling_ratio` 0. None is
        as many as the largest box needs.
      aligned: whether the centre of the first pixel is at 0.5; else it is at 0, and boxes are at
        least one pixel wide and high.
      levels: the level of each box, integers [N, K] or [K]; see `roi_levels`. None where x is no
        sequence.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      [N, K, output height, output width, C], or [K, output height, output width, C], in x's dtype,
      with the values of `torchvision.ops.roi_align`. Means are made in float32, for float64 x in
      float64; positions are in float32, for float64 boxes in float64.

      Samples more than a pixel outside of the image are 0; other ones outside have the value at its
      edge. A box without samples is 0, and so is one of an image or a level that does not exist.

    Differentiable with respect to x and boxes in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: He et al., "Mask R-CNN", 2017; the documentation of `torchvision.ops.roi_align`.
    """
    values = (x, boxes, output_size, spatial_scale, sampling_ratio, max_sampling_ratio, aligned)
    return sample(parse_roi_align(*values, levels, implementation))


roi_align_reference = reference_twin(
    roi_align, lambda *values: sample_reference(parse_roi_align(*values))
)


@explain_keywords
def roi_levels(
    boxes: ArrayLike, count: int, *, canonical_size: float = 224.0, canonical_level: int = 2
) -> jax.Array:
    """The level of a feature pyramid for each box, by its size.

    Args:
      boxes: [..., 4], as (x1, y1, x2, y2) in pixels of the network's input.
      count: the number of levels, each with half the height and width of the one before.
      canonical_size: the side of a box that belongs to the canonical level.
      canonical_level: that level, counted from the finest one, 0. The default is P4 where the
        finest is P2.

    Returns:
      int32 [...], for `roi_align`.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Lin et al., "Feature Pyramid Networks for Object Detection", 2017: equation 1.
    """
    boxes = checks.as_float_array("boxes", boxes)
    if boxes.ndim < 1 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must have shape (..., 4), got {boxes.shape}")
    count = checks.parse_int("count", count)
    size = checks.parse_number("canonical_size", canonical_size)
    if size <= 0:
        raise ValueError(f"canonical_size must be positive, got {size}")
    if not checks.is_int(canonical_level):
        raise TypeError(f"canonical_level must be an int, got {checks.shown(canonical_level)}")
    checks.check_range("canonical_level", [canonical_level], canonical_level, -(2**30))
    sides = (boxes[..., 2:] - boxes[..., :2]).astype(accumulator(boxes))
    # A box without a size, whose logarithm would be none, is in the finest level.
    least = np.asarray(1e-30, sides.dtype)
    area = jnp.where((sides > 0).all(-1), sides[..., 0] * sides[..., 1], least)
    level = jnp.floor(canonical_level + jnp.log2(jnp.sqrt(area) / size) + 1e-6)
    return jnp.clip(level, 0, count - 1).astype(jnp.int32)


class _Bins(NamedTuple):
    """Samples in the bins of boxes along an axis, [..., bins, samples of a bin].

    Attributes:
      at: their positions.
      weight: one over their number in a bin, or 0.
    """

    at: jax.Array
    weight: jax.Array


@usual_promotion()
def parse_roi_align(
    x, boxes, output_size, spatial_scale, sampling_ratio, max_sampling_ratio, aligned, levels,
    implementation,
) -> SampleInputs:  # fmt: skip
    """Checks all arguments."""
    images, scales = _parse_levels(x, spatial_scale)
    n, channels = images[0].shape[0], images[0].shape[-1]
    # In a program that is traced, what is made of known boxes is known as well.
    known = not any(isinstance(array, Tracer) for array in (boxes, levels))
    evaluated = jax.ensure_compile_time_eval if known else contextlib.nullcontext
    with evaluated():
        boxes = checks.as_float_array("boxes", boxes)
    by_image = boxes.ndim == 3
    if not (by_image and boxes.shape[0] == n and boxes.shape[2] == 4) and not (
        boxes.ndim == 2 and boxes.shape[1] == 5
    ):
        raise ValueError(
            f"boxes must have shape (N, K, 4) = ({n}, K, 4) or (K, 5), got {boxes.shape}"
        )
    size = parse_pair("output_size", output_size)
    aligned = checks.parse_bool("aligned", aligned)
    with evaluated():
        levels = _check_levels(levels, boxes, x)
    scale = np.asarray(scales, accumulator(boxes))
    extents = np.array([image.shape[1:3] for image in images])
    with evaluated():
        of_boxes = scale[0]
        if levels is not None:
            of_boxes = jnp.take(scale, levels, mode="clip")[..., None]
        corners = boxes[..., -4:].astype(accumulator(boxes)) * of_boxes - (0.5 if aligned else 0.0)
        start, sides = corners[..., :2], corners[..., 2:] - corners[..., :2]
        if not aligned:
            sides = jax.lax.max(sides, jnp.ones_like(sides))
    most = _most_samples(sides, size, sampling_ratio, max_sampling_ratio)
    along = []
    for axis, last in ((0, 1), (1, 0)):
        extent = (
            extents[0, axis] if levels is None else jnp.take(extents[:, axis], levels, mode="clip")
        )
        of_axis = start[..., last], sides[..., last]
        bins = _bins(*of_axis, extent, size[axis], most[axis], adaptive=sampling_ratio in (0, -1))
        along.append(bins)
    shape = (*boxes.shape[:-1], *size, channels)
    implementation = parse_implementation(implementation)
    if by_image and levels is None:
        (image,) = images
        return _by_image(image, along, shape, implementation)
    return _flat(images, boxes, levels, extents, along, shape, implementation)


def _parse_levels(x: Any, spatial_scale: Any) -> tuple[list[jax.Array], list[float]]:
    """The images of each level, and the scale."""
    if not isinstance(x, list | tuple):
        image = checks.as_array("x", x, 4)
        check_image("x", image)
        return [image], [checks.parse_number("spatial_scale", spatial_scale)]
    images = [
        checks.as_array(f"x[{i}]", image, 4)
        for i, image in enumerate(checks.parse_sequence("x", x))
    ]
    n, *_, channels = images[0].shape
    for i, image in enumerate(images):
        check_image(f"x[{i}]", image)
        checks.check_same_dtype(f"x[{i}]", image, "x[0]", images[0])
        expected = n, *image.shape[1:3], channels
        checks.check_shape(f"x[{i}]", image, ("N", "H", "W", "C"), expected)
    scales = checks.parse_sequence("spatial_scale", spatial_scale)
    if len(scales) != len(images):
        raise ValueError(
            f"spatial_scale must have a number for each of the {len(images)} levels of x, got "
            f"{checks.shown(spatial_scale)}"
        )
    return images, [
        checks.parse_number(f"spatial_scale[{i}]", scale) for i, scale in enumerate(scales)
    ]


def _check_levels(levels: Any, boxes: jax.Array, x: Any) -> jax.Array | None:
    """The level of each box; None where there is one."""
    if levels is None:
        if isinstance(x, list | tuple):
            raise ValueError("levels must be given where x is a sequence: see roi_levels")
        return None
    if not isinstance(x, list | tuple):
        raise ValueError(f"levels must be None where x is no sequence, got {checks.shown(levels)}")
    levels = checks.to_array("levels", levels)
    if not jnp.issubdtype(levels.dtype, jnp.integer):
        raise TypeError(f"levels must be integers, got {levels.dtype}")
    if levels.shape != boxes.shape[:-1]:
        raise ValueError(f"levels must have shape {boxes.shape[:-1]}, got {levels.shape}")
    return levels


def _most_samples(
    sides: jax.Array, size: tuple[int, int], sampling_ratio: Any, most: Any
) -> tuple[int, int]:
    """Samples of a bin along each axis, or the most that some bin may have."""
    if not checks.is_int(sampling_ratio):
        raise TypeError(f"sampling_ratio must be an int, got {checks.shown(sampling_ratio)}")
    sampling_ratio = 0 if sampling_ratio == -1 else sampling_ratio
    checks.check_range("sampling_ratio", [sampling_ratio], sampling_ratio, 0)
    most = None if most is None else checks.parse_int("max_sampling_ratio", most)
    if sampling_ratio:
        return int(sampling_ratio), int(sampling_ratio)
    if most is not None:
        return most, most
    if isinstance(sides, Tracer):
        raise ValueError(
            "sampling_ratio 0 takes as many samples as a bin has pixels, which traced boxes do not "
            "tell: give max_sampling_ratio, or another sampling_ratio"
        )
    # Outside of what is traced, for the boxes' values decide about shapes.
    width, height = (
        np.ceil(np.asarray(sides) / np.array(size[::-1])).reshape(-1, 2).max(0, initial=1)
    )
    return int(height), int(width)


def _bins(
    start: jax.Array, side: jax.Array, extent: Any, bins: int, most: int, *, adaptive: bool
) -> _Bins:
    """The samples of boxes [...] along an axis."""
    start, width = start[..., None, None], (side / bins)[..., None, None]
    count: Any = jnp.full_like(width, most)
    if adaptive:
        count = jnp.clip(jnp.ceil(jax.lax.stop_gradient(width)), 0, most)
    number = np.arange(most, dtype=width.dtype)
    of_bin = np.arange(bins, dtype=width.dtype)[:, None]
    share = 1 / jax.lax.max(count, jnp.ones_like(count))
    at = start + (of_bin + (number + 0.5) * share) * width
    extent = jnp.asarray(extent, width.dtype)[..., None, None]
    counts = (number < count) & ~(at < -1) & ~(at > extent)
    # NaN stays, and is in the sample.
    return _Bins(jnp.clip(at, 0, extent - 1), jnp.where(counts, share, 0))


def _points(along: list[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Places [..., bins, bins, T, 2] and weights, of positions and weights of each axis."""
    both = []
    for axis, pair in enumerate(along):
        shape = list(along[0][0].shape)
        shape.insert(-1, along[1][0].shape[-2])
        shape[-1] = pair[0].shape[-1]
        both.append([jnp.broadcast_to(jnp.expand_dims(a, -2 - axis), shape) for a in pair])
    (rows, of_rows), (columns, of_columns) = both
    places, weights = pixel_points([(rows, of_rows), (columns, of_columns)])
    assert weights is not None
    return places, weights


def _by_image(
    image: jax.Array, along: list[_Bins], shape: tuple[int, ...], implementation: Any
) -> SampleInputs:
    """Samples of images that each have their own boxes."""
    n, height, width, channels = image.shape
    places, weights = _points([(bins.at, bins.weight) for bins in along])
    points, queries = weights.shape[-1], math.prod(shape[1:-1])
    return sample_inputs(
        reshape(image, (n, height * width, 1, channels)), ((height, width),), (points,),
        Grid(padding_mode="border", coordinates="pixel"), shape,
        locations=reshape(places, (n, queries, 1, points, 2)),
        weights=reshape(weights, (n, queries, 1, points)), implementation=implementation,
    )  # fmt: skip


def _flat(
    images: list[jax.Array], boxes, levels, extents, along: list[_Bins], shape, implementation
) -> SampleInputs:
    """Samples of the pixels of all images and levels, one after the other, as of one line."""
    n, channels = images[0].shape[0], images[0].shape[-1]
    of_levels = np.prod(extents, 1)
    first = np.cumsum([0, *(n * of_levels)]) if is_known(n) else None
    if first is None or first[-1] >= _MOST_PIXELS:
        raise ValueError(
            f"x must have fewer than 2**24 pixels in all, and a batch that is known, where boxes "
            f"say which image or level they are in, got shapes {[image.shape for image in images]}"
        )
    total, dtype = int(first[-1]), along[0].at.dtype
    level = jnp.zeros(boxes.shape[:-1], jnp.int32) if levels is None else levels
    if boxes.ndim == 3:
        image = jax.lax.broadcasted_iota(dtype, boxes.shape[:-1], 0)
    else:
        image = boxes[:, 0].astype(dtype)
    exists = (image >= 0) & (image < n) & (level >= 0) & (level < len(images))

    def of_level(values: np.ndarray) -> jax.Array:
        return jnp.take(np.asarray(values, dtype), level, mode="clip")

    start = of_level(first[:-1]) + jnp.where(exists, image, 0) * of_level(of_levels)
    width = of_level(extents[:, 1])
    pairs = []
    for axis, bins in enumerate(along):
        last = of_level(extents[:, axis])[..., None, None] - 1
        floor = jax.lax.stop_gradient(jnp.floor(bins.at))
        fraction = bins.at - floor
        pixels = jnp.concatenate([floor, jnp.minimum(floor + 1, last)], -1)
        factors = jnp.concatenate([1 - fraction, fraction], -1)
        pairs.append((pixels, factors * jnp.concatenate([bins.weight, bins.weight], -1)))
    pixels, factors = _points(pairs)
    start, width, exists = (array[..., None, None, None] for array in (start, width, exists))
    places = jnp.where(exists, start + pixels[..., 1] * width + pixels[..., 0], -1)
    queries, points = math.prod(shape[:-1]), factors.shape[-1]
    rows = [reshape(image, (-1, channels)) for image in images]
    flat = rows[0] if len(rows) == 1 else jnp.concatenate(rows)
    return sample_inputs(
        reshape(flat, (1, total, 1, channels)), ((total,),), (points,), WHOLE_PIXELS, shape,
        locations=reshape(places, (1, queries, 1, points, 1)),
        weights=reshape(factors, (1, queries, 1, points)), implementation=implementation,
    )  # fmt: skip
