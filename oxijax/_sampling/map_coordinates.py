"""Interpolation at coordinates in pixels, with SciPy's signature."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import accumulator, usual_promotion
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.points import check_image
from oxijax._sampling.stencils import WHOLE_PIXELS, stencil_points
from ptx.kernels.sampling.geometry import Grid

__all__ = ["map_coordinates", "map_coordinates_reference", "parse_map_coordinates"]

_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
_OF_SCIPY = {"grid-constant": "constant", "grid-mirror": "reflect", "grid-wrap": "wrap"}


@explain_keywords
def map_coordinates(
    input: ArrayLike,
    coordinates: Sequence[ArrayLike] | ArrayLike,
    order: int,
    mode: str = "constant",
    cval: ArrayLike = 0.0,
    *,
    channel_axis: int | None = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """An array, interpolated at coordinates in pixels: `jax.scipy.ndimage.map_coordinates`.

    Args:
      input: an array of one, two or three dimensions, and one of channels with `channel_axis`;
        float16, bfloat16, float32, float64 or integers.
      coordinates: for each dimension, in their order, an array of positions, all of one shape:
        from 0, the first pixel, to size - 1; or all of them in one array [K, ...]. Any of these
        dtypes.
      order: 0 for the nearest pixel, with halves rounded away from 0, or 1, which is linear along
        each dimension.
      mode: what is outside of the array: "constant" for `cval`, "nearest" for the pixel at the
        edge, "wrap" for the array once more, "mirror" for what mirrors at the centres of the
        outermost pixels show, "reflect" for mirrors at their edges.
      cval: the value outside with "constant".
      channel_axis: the first or the last axis of input, whose elements share the coordinates; it is
        the first or the last one of the result. None where there are no channels.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      The values, of the shape of one dimension's coordinates and perhaps channels, in the dtype of
      input: integers are rounded, with halves away from 0. They are made in float32, for float64
      input, or integers and float64 coordinates, in float64; positions are in float32, for float64
      coordinates in float64.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: the documentation of `scipy.ndimage.map_coordinates`, whose modes "grid-constant",
    "grid-wrap" and "grid-mirror" are "constant", "wrap" and "reflect" here.
    """
    values = (input, coordinates, order, mode, cval, channel_axis, implementation)
    inputs = parse_map_coordinates(*values)
    return _finished(sample(inputs.samples), inputs)


def _reference(*values: Any) -> jax.Array:
    inputs = parse_map_coordinates(*values)
    return _finished(sample_reference(inputs.samples), inputs)


map_coordinates_reference = reference_twin(map_coordinates, _reference)


class MapInputs(NamedTuple):
    """The inputs of `map_coordinates`, which have been checked.

    Attributes:
      samples: the samples [..., C] of an image with channels.
      outside: what is added to all channels, [...]; None for nothing.
      dtype: the dtype of the result.
      channel_axis: 0, -1, or None.
    """

    samples: SampleInputs
    outside: jax.Array | None
    dtype: Any
    channel_axis: int | None


@usual_promotion()
def parse_map_coordinates(
    input, coordinates, order, mode, cval, channel_axis, implementation
) -> MapInputs:
    """Checks all arguments."""
    image = checks.to_array("input", input)
    dtype, whole = image.dtype, jnp.issubdtype(image.dtype, jnp.integer)
    if not whole:
        image = checks.as_float_array("input", image)
    axis = _parse_channel_axis(channel_axis, image)
    dims = image.ndim - (axis is not None)
    if dims not in (1, 2, 3):
        raise ValueError(
            f"input must have 1, 2 or 3 dimensions, and one of channels with channel_axis, got "
            f"shape {image.shape}"
        )
    along = _parse_coordinates(coordinates, dims)
    if not checks.is_int(order) or order not in (0, 1):
        raise ValueError(f"order must be 0 or 1, got {checks.shown(order)}")
    checks.check_choice("mode", mode, _MODES, _OF_SCIPY)
    cval = checks.parse_factor("cval", cval)
    if whole:
        image = image.astype(accumulator(along[0]))
    image = image[..., None] if axis is None else jnp.moveaxis(image, axis, -1)
    check_image("input", image[None])
    *sizes, channels = image.shape
    if order == 0:
        along = [lax.round(at) for at in along]
    shape, queries = along[0].shape, math.prod(along[0].shape)
    locations = jnp.stack([reshape(at, (1, queries, 1, 1)) for at in reversed(along)], -1)
    padding = {"nearest": "border", "mirror": "reflection", "reflect": "reflection"}
    geometry = Grid(mode == "mirror", padding.get(mode, "zeros"), order == 0, "pixel")
    weights = None
    if mode == "wrap":
        method = "bilinear" if order else "nearest"
        points = stencil_points(locations, tuple(sizes), geometry, method, wrap=True)
        (locations, weights), geometry = points, WHOLE_PIXELS
    samples = sample_inputs(
        reshape(image, (1, math.prod(sizes), 1, channels)),
        *((tuple(sizes),), locations.shape[3:4], geometry, (*shape, channels)),
        locations=locations,
        weights=weights,
        implementation=parse_implementation(implementation),
    )
    outside: Any = None
    if mode == "constant" and not (isinstance(cval, float) and cval == 0):
        outside = cval * (1 - _coverage(along, sizes))
    return MapInputs(samples, outside, dtype, axis)


def _parse_channel_axis(value: Any, image: jax.Array) -> int | None:
    """0, -1 or None."""
    if value is None:
        return None
    if not checks.is_int(value) or not image.ndim or value not in (0, -1, image.ndim - 1):
        raise ValueError(
            f"channel_axis must be None or the first or last axis of input {image.shape}, got "
            f"{checks.shown(value)}"
        )
    return 0 if value == 0 else -1


def _parse_coordinates(coordinates: Any, dims: int) -> list[jax.Array]:
    """The coordinates of each dimension, of one shape and dtype."""
    if isinstance(coordinates, list | tuple):
        arrays = [checks.to_array(f"coordinates[{i}]", at) for i, at in enumerate(coordinates)]
    else:
        array = checks.to_array("coordinates", coordinates)
        arrays = [*array] if array.ndim else []
    if len(arrays) != dims:
        raise ValueError(
            f"coordinates must be {dims} arrays, as many as input has dimensions, got {len(arrays)}"
        )
    for i, array in enumerate(arrays):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            checks.as_float_array(f"coordinates[{i}]", array)
    dtype = jnp.result_type(*arrays, jnp.float32)
    shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    return [jnp.broadcast_to(array, shape).astype(dtype) for array in arrays]


def _coverage(along: list[jax.Array], sizes: Sequence[int]) -> jax.Array | float:
    """How much of what is interpolated is inside of the image."""
    return math.prod(
        jnp.clip(jnp.minimum(at + 1, size - at), 0, 1)
        for at, size in zip(along, sizes, strict=True)
    )


def _finished(y: jax.Array, inputs: MapInputs) -> jax.Array:
    """The result of samples [..., C]."""
    if inputs.outside is not None:
        wide = accumulator(y)
        y = y.astype(wide) + inputs.outside[..., None].astype(wide)
    if jnp.issubdtype(inputs.dtype, jnp.integer):
        y = lax.round(y)
    y = y.astype(inputs.dtype)
    if inputs.channel_axis is None:
        return y.squeeze(-1)
    return jnp.moveaxis(y, -1, inputs.channel_axis)
