"""Deformable convolution of volumes, one tap after the other.

A tap's samples are those of the sampling operators, with the mask for their weights, and are
multiplied with its weights by the convolution of one tap: no more than the samples of one tap is
ever held. Both have primitives and kernels of their own, and all of their rules.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from oxijax._conv import conv_nhwc, conv_nhwc_reference
from oxijax._convolution import ConvParams, Window, conv_params
from oxijax._core.arguments.checks import Implementation
from oxijax._core.arguments.precision import accumulator
from oxijax._core.primitive.explicit import (
    explicit_axes,
    mesh_of,
    reshape,
    reshard,
    reshard_like,
    spec_of,
)
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.points import check_image
from ptx.kernels.conv import ConvConfig
from ptx.kernels.sampling.geometry import Grid

__all__ = ["VolumeInputs", "convolve_volumes", "convolve_volumes_reference", "volume_inputs"]


class VolumeInputs(NamedTuple):
    """The inputs of a deformable convolution of volumes, which have been checked.

    Dimensions: N volumes of D * H * W = S voxels, P output voxels, K taps, OG offset groups, C and
    Co channels, G groups.

    Attributes:
      samples: the inputs of the samples of all taps: value [N, S, OG, C/OG], locations
        [K, N, P, OG, 1, 3] as (x, y, z) in voxels, and perhaps weights [K, N, P, OG, 1].
      products: what is static in a tap's product.
      weight: [K, 1, 1, C/G, Co].
      bias: [Co], or None.
      out_size: the sizes of the output.
    """

    samples: SampleInputs
    products: ConvParams
    weight: jax.Array
    bias: jax.Array | None
    out_size: tuple[int, ...]


def volume_inputs(
    window: Window,
    offset: jax.Array,
    mask: jax.Array | None,
    precision: lax.Precision,
    implementation: Implementation,
) -> VolumeInputs:
    """The inputs of checked arguments.

    Args:
      window: x [N, D, H, W, C] and weight [Kd, Kh, Kw, C/G, Co], and how the window moves.
      offset: [N, Do, Ho, Wo, OG*K*3] as (z, y, x).
      mask: [N, Do, Ho, Wo, OG*K], or None.
      precision: the precision of the products.
      implementation: which programs may run.
    """
    x, weight, bias = window.x, window.weight, window.bias
    check_image("x", x)
    n, *size, channels = x.shape
    taps, pixels = int(np.prod(weight.shape[:3])), int(np.prod(window.output_size))
    groups = offset.shape[-1] // (3 * taps)
    dtype = accumulator(offset)

    along = [
        np.arange(extent) * stride - before
        for extent, stride, (before, _) in zip(
            window.output_size, window.strides, window.padding, strict=True
        )
    ]
    corner = np.stack(np.meshgrid(*along, indexing="ij"), -1).reshape(pixels, 1, 3)
    tap = np.indices(weight.shape[:3]).reshape(3, taps).T * window.dilation
    grid = (corner + tap)[None, :, None].astype(dtype)  # [1, P, 1, K, 3]
    locations = reshape(offset.astype(dtype), (n, pixels, groups, taps, 3)) + grid
    weights = None
    if mask is not None:
        weights = _by_tap(reshape(mask, (n, pixels, groups, taps, 1)), 3)
    samples = sample_inputs(
        reshape(x, (n, int(np.prod(size)), groups, channels // groups)),
        *((tuple(size),), (1,), Grid(coordinates="pixel"), (n, 1, pixels, channels)),
        locations=_by_tap(jnp.flip(locations, -1), 3)[..., None, :],
        weights=weights,
        implementation=implementation,
    )
    weight = _by_tap(reshape(weight, (taps, 1, 1, *weight.shape[3:])), 0)
    one, none = (1, 1), ((0, 0), (0, 0))
    products = conv_params(
        ConvConfig, jax.ShapeDtypeStruct((n, 1, pixels, channels), x.dtype), weight[0],
        strides=one, padding=none, dilation=one, output_size=(1, pixels),
        precision=precision, implementation=implementation,
    )  # fmt: skip
    return VolumeInputs(samples, products, weight, bias, window.output_size)


def _by_tap(array: jax.Array, axis: int) -> jax.Array:
    """An array with its axis of taps in front, whole on each device: a loop goes along it."""
    array = jnp.moveaxis(array, axis, 0)
    if not explicit_axes([array]):
        return array
    return reshard(array, PartitionSpec(None, *spec_of(array)[1:]), mesh_of([array]))


def convolve_volumes(inputs: VolumeInputs) -> jax.Array:
    """The result [N, Do, Ho, Wo, Co]."""
    return _convolve(inputs, sample, conv_nhwc)


def convolve_volumes_reference(inputs: VolumeInputs) -> jax.Array:
    """The result [N, Do, Ho, Wo, Co], in pure JAX."""
    return _convolve(inputs, sample_reference, conv_nhwc_reference)


def _convolve(
    inputs: VolumeInputs,
    sample: Callable[[SampleInputs], jax.Array],
    multiply: Callable[..., jax.Array],
) -> jax.Array:
    value, dtype = inputs.samples.value, accumulator(inputs.samples.value)

    # Differentiated, a tap's samples are found again: those of all taps are never stored.
    @jax.checkpoint
    def product(value: jax.Array, tap: Any, bias: jax.Array | None) -> jax.Array:
        locations, weights, weight = tap
        found = inputs.samples._replace(value=value, locations=locations, weights=weights)
        return multiply(inputs.products, sample(found), weight, bias).astype(dtype)

    def add(total: jax.Array, tap: Any) -> tuple[jax.Array, None]:
        return total + reshard_like(product(value, tap, None), total), None

    taps = inputs.samples.locations, inputs.samples.weights, inputs.weight
    first, others = (jax.tree.map(operator.itemgetter(i), taps) for i in (0, slice(1, None)))
    total, _ = lax.scan(add, product(value, first, inputs.bias), others)
    n, channels = total.shape[0], total.shape[-1]
    return reshape(total.astype(value.dtype), (n, *inputs.out_size, channels))
