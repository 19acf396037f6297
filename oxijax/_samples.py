"""Sampling positions of the operators, to inspect and to monitor."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from oxijax._convolution import ConvParams
from oxijax._core.arguments import checks
from oxijax._core.arguments.keywords import explain_keywords, unknown_keywords
from oxijax._core.arguments.precision import accumulator, usual_promotion
from oxijax._core.primitive.explicit import reshape
from oxijax._deform_conv import deform_conv, parse_deform_conv
from oxijax._deform_conv.volumes import VolumeInputs
from oxijax._sampling import SampleInputs
from oxijax._sampling.dcn import dcnv3, dcnv4, parse_dcnv3, parse_dcnv4
from oxijax._sampling.grid_sample import grid_sample, parse_grid_sample
from oxijax._sampling.map_coordinates import map_coordinates, parse_map_coordinates
from oxijax._sampling.ms_deform_attn import ms_deform_attn, parse_ms_deform_attn
from oxijax._sampling.packed import unpack
from oxijax._sampling.points import sizes_along, used_weights
from oxijax._sampling.positions import position
from ptx.kernels.sampling.geometry import Across

__all__ = ["Samples", "offset_statistics", "sampling_locations"]


class Samples(NamedTuple):
    """Where a call samples its images, and what the samples weigh.

    For N images, outputs or queries Q (one dimension or more), M offset groups, groups or heads,
    and T points of each:

    Attributes:
      locations: [N, Q..., M, T, 2], (y, x) in pixels of the image or level: (0, 0) is the middle of
        the first pixel. (z, y, x) of volumes, (x,) of lines.
      weights: [N, Q..., M, T], what a sample is multiplied by, besides a convolution's weights.
      levels: [T], the level that each point is in; 0 where there is one image.
    """

    locations: jax.Array
    weights: jax.Array
    levels: np.ndarray


@usual_promotion()
def sampling_locations(operator: Callable[..., jax.Array], *args: Any, **kwargs: Any) -> Samples:
    """Tells where a call of one of the operators samples, and what each sample weighs.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax
      >>> x, weight = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 2))
      >>> offset = jnp.full((1, 8, 8, 18), 0.5)
      >>> samples = oxijax.sampling_locations(oxijax.deform_conv, x, offset, weight)
      >>> samples.locations.shape
      (1, 8, 8, 1, 9, 2)
      >>> samples.locations[0, 4, 4, 0, 0].tolist()  # of the tap above and to the left
      [3.5, 3.5]

    Args:
      operator: `oxijax.deform_conv`, `oxijax.ms_deform_attn`, `oxijax.dcnv3`, `oxijax.dcnv4` or
        `oxijax.grid_sample`.
      *args: of a call of the operator.
      **kwargs: of a call of the operator.

    Returns:
      Locations in float32, or float64 where the operator computes them in it, in the order of the
      operator's taps or points. Images have the dimensions of the call's, whatever its data_format.
      With "nearest" and the paddings of `grid_sample`, the pixel or place that is read; with
      "bicubic" the 16 pixels.

    Raises:
      ValueError: what the operator raises.
      TypeError: an operator that is none of these, or what the operator raises.
    """
    reader = next((reader for known, reader in _READERS.items() if known is operator), None)
    if reader is None:
        names = ", ".join(f"oxijax.{known.__name__}" for known in _READERS)
        raise TypeError(f"operator must be one of {names}, got {checks.shown(operator)}")
    signature = inspect.signature(operator)
    if error := unknown_keywords(operator.__name__, [*signature.parameters], kwargs):
        raise error
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return reader(*bound.args, *bound.kwargs.values())


@explain_keywords
@usual_promotion()
def offset_statistics(offset: ArrayLike) -> dict[str, jax.Array]:
    """Numbers that tell, in training, whether offsets explode.

    Args:
      offset: offsets in pixels, of any shape and floating dtype, in any order of channels.

    Returns:
      Scalars in float32: "mean", "rms" and "max" of the absolute values that are finite, and
      "not_finite", the share that isn't.

    Raises:
      ValueError: there are no offsets.
      TypeError: no array of real numbers.
    """
    offset = checks.as_float_array("offset", offset)
    if not offset.size:
        raise ValueError(f"offset must not be empty, got shape {offset.shape}")
    finite = jnp.isfinite(offset)
    size = jnp.where(finite, jnp.abs(offset), 0).astype(jnp.float32)
    count = jnp.maximum(jnp.sum(finite), 1)
    largest = jnp.max(size)
    scaled = size / jnp.where(largest > 0, largest, 1)  # whose squares don't overflow
    return {
        "mean": largest * jnp.sum(scaled) / count,
        "rms": largest * jnp.sqrt(jnp.sum(scaled**2) / count),
        "max": largest,
        "not_finite": 1 - jnp.mean(finite, dtype=jnp.float32),
    }


def _of_deform_conv(*values: Any) -> Samples:
    inputs = parse_deform_conv(*values)
    if isinstance(inputs, VolumeInputs):
        return _of_volumes(inputs)
    *_, data_format, _, _ = values
    samples = _of_images(*inputs)
    if len(data_format) == 4:
        return samples
    locations, weights = samples.locations[:, 0, ..., 1:], samples.weights[:, 0]
    return samples._replace(locations=locations, weights=weights)


def _of_volumes(inputs: VolumeInputs) -> Samples:
    locations, weights = inputs.samples.locations, inputs.samples.weights
    assert locations is not None
    taps, n, _, groups, *_ = locations.shape

    def taps_last(array: jax.Array, *shape: int) -> jax.Array:
        return reshape(jnp.moveaxis(array, 0, 3), (n, *inputs.out_size, groups, taps, *shape))

    if weights is None:
        weights = jnp.ones(locations.shape[:-1], locations.dtype)
    weights = taps_last(weights.astype(accumulator(weights)))
    return Samples(taps_last(jnp.flip(locations, -1), 3), weights, np.zeros(taps, int))


def _of_images(params: ConvParams, operands: Any) -> Samples:
    _, offset, _, mask, _ = operands
    dtype = accumulator(offset)
    n, *size, channels = offset.shape
    groups = channels // (2 * params.op.taps)
    offset = reshape(offset.astype(dtype), (n, *size, groups, params.op.taps, 2))
    taps = np.indices(params.op.kernel_size).reshape(2, -1).T * params.op.dilation
    first = taps - [before for before, _ in params.op.padding]
    pixels = [
        (jnp.arange(extent) * stride).astype(dtype)
        for extent, stride in zip(size, params.op.strides, strict=True)
    ]
    grid = jnp.stack(jnp.meshgrid(*pixels, indexing="ij"), axis=-1)[:, :, None, None]
    weights = jnp.ones(offset.shape[:-1], dtype)
    if mask is not None:
        weights = reshape(mask.astype(accumulator(mask)), weights.shape)
    return Samples(grid + first.astype(dtype) + offset, weights, np.zeros(params.op.taps, int))


def _of_inputs(inputs: SampleInputs) -> Samples:
    config, heads = inputs.params.op, inputs.value.shape[2]
    locations, weights = unpack(config, heads, *inputs.points)
    n, queries, _, points, _ = locations.shape
    query = jnp.tile(jnp.arange(queries), n)
    coordinates = locations.astype(accumulator(locations))
    coordinates = jnp.moveaxis(
        reshape(coordinates, (n * queries, heads, points, config.dims)), 2, 0
    )
    found = []
    for axis in config.axes:
        size = sizes_along(config, axis)
        at = position(config.geometry, axis, coordinates[..., -1 - axis], size, query)
        found.append(at.real + at.whole)
    has_heads = isinstance(config.geometry, Across)  # in its result
    shape = *inputs.shape[: -2 if has_heads else -1], heads, points
    pairs = reshape(jnp.moveaxis(jnp.stack(found, axis=-1), 0, 2), (*shape, config.dims))
    weights = used_weights(config, weights)
    if weights is None:
        weights = jnp.ones(shape, pairs.dtype)
    weights = reshape(weights.astype(accumulator(weights)), shape)
    return Samples(pairs, weights, np.repeat(np.arange(len(config.points)), config.points))


# What makes of an operator's arguments, in their order, where it samples.
_READERS: dict[Callable[..., jax.Array], Callable[..., Samples]] = {
    deform_conv: _of_deform_conv,
    ms_deform_attn: lambda *values: _of_inputs(parse_ms_deform_attn(*values)),
    dcnv3: lambda *values: _of_inputs(parse_dcnv3(*values)),
    dcnv4: lambda *values: _of_inputs(parse_dcnv4(*values)),
    grid_sample: lambda *values: _of_inputs(parse_grid_sample(*values)),
    map_coordinates: lambda *values: _of_inputs(parse_map_coordinates(*values).samples),
}
