"""Weighted sums of samples: the primitives of all sampling operators, and their wiring.

    y[n, q, m] = sum over points t of weight[n, q, m, t] * value_of_level(t)[n, m] at
        location[n, q, m, t]

A `ptx.kernels.sampling.geometry` says where points lie, which is all that the operators differ in.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from oxijax._core import compat as _compat
from oxijax._core.arguments.checks import Implementation
from oxijax._core.primitive.explicit import reshape
from oxijax._core.primitive.gradients import define_gradients, define_parts
from oxijax._core.primitive.kernel_primitive import Fold, map_present
from oxijax._core.primitive.operation import OperationPrimitive, OpParams
from oxijax._sampling import cuda as cuda_kernels
from oxijax._sampling import reference as kernels
from oxijax._sampling.points import SampleParams
from ptx.kernels.sampling import FORWARD, SamplingConfig, operations
from ptx.kernels.sampling.geometry import Geometry, Window

__all__ = [
    "SampleInputs",
    "SampleParams",
    "add_samples",
    "add_samples_reference",
    "sample",
    "sample_inputs",
    "sample_params",
    "sample_reference",
]


class SampleInputs(NamedTuple):
    """The inputs of a weighted sum of samples, which an operator has made of its arguments.

    Attributes:
      params: what is static.
      value: images [N, S, M, D], the pixels of all levels after each other.
      locations: the locations of points, [N, Q, M, T, 2] as (x, y); None where they are packed.
      weights: the weights of points, [N, Q, M, T]; None for 1, or where they are packed.
      shape: the shape of the operator's result, which is the sums [N, Q, M, D].
      packed: locations and weights in one array [N, Q, P], see `oxijax._sampling.packed`.
    """

    params: SampleParams
    value: jax.Array
    locations: jax.Array | None
    weights: jax.Array | None
    shape: tuple[int, ...]
    packed: jax.Array | None = None

    @property
    def points(self) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
        """The operands that say where points are and what they weigh, as primitives have them."""
        return self.locations, self.weights, self.packed


def sample_inputs(
    value: jax.Array,
    levels: tuple[tuple[int, ...], ...],
    points: tuple[int, ...],
    geometry: Geometry,
    shape: tuple[int, ...],
    *,
    locations: jax.Array | None = None,
    weights: jax.Array | None = None,
    packed: jax.Array | None = None,
    normalize: bool = False,
    implementation: Implementation = None,
) -> SampleInputs:
    """Inputs of images [N, S, M, D]; arguments as the fields of `SampleInputs` and its params."""
    heads, channels = value.shape[2:]
    params = sample_params(
        heads, channels, levels, points, geometry,
        normalize=normalize, implementation=implementation,
    )  # fmt: skip
    return SampleInputs(params, value, locations, weights, shape, packed)


def sample_params(
    heads: int,
    channels: int,
    levels: tuple[tuple[int, ...], ...],
    points: tuple[int, ...],
    geometry: Geometry,
    *,
    normalize: bool = False,
    implementation: Implementation = None,
) -> SampleParams:
    """What is static in a weighted sum of samples."""
    op = SamplingConfig(heads, channels, levels, points, geometry, normalize)
    return OpParams(op, implementation=implementation)


def sample(inputs: SampleInputs) -> jax.Array:
    """The result of an operator."""
    # The casts are outside of what has rules of its own: theirs see the operands.
    operands = map_present(_compat.match_varying, inputs.value, *inputs.points)
    (y,) = sampling_forward(inputs.params, *operands)
    assert y is not None
    return reshape(y, inputs.shape)


def sample_reference(inputs: SampleInputs) -> jax.Array:
    """The result of an operator, in pure JAX."""
    (y,) = sampling_forward.call_reference(inputs.params, inputs.value, *inputs.points)
    assert y is not None
    return reshape(y, inputs.shape)


def add_samples(
    params: SampleParams, locations: jax.Array, weights: jax.Array | None, values: jax.Array
) -> jax.Array:
    """The images [N, S, M, D] that values [N, Q, M, D] are added into at some points."""
    operands = map_present(_compat.match_varying, locations, weights, None, values)
    (images,) = sampling_backward_value(params, *operands)
    assert images is not None
    return images


def add_samples_reference(
    params: SampleParams, locations: jax.Array, weights: jax.Array | None, values: jax.Array
) -> jax.Array:
    """`add_samples` in pure JAX."""
    (images,) = sampling_backward_value.call_reference(params, locations, weights, None, values)
    assert images is not None
    return images


def _parallel(params: SampleParams, operands: Sequence[str]) -> str:
    """Along which dimensions a call may be split; the number of a query says where a window is.

    What is packed has the points of all heads.
    """
    heads = "" if "packed" in operands else "m "
    return f"n {heads}d" if isinstance(params.op.geometry, Window) else f"n q {heads}d"


_FOLDS = (
    # Everything mapped: more images.
    Fold("n"),
    # Images shared: more queries.
    Fold("q"),
    # Points shared: more channels.
    Fold("d"),
)

_RULES: Any = {"folds": _FOLDS, "batch": "n", "parallel": _parallel}

sampling_forward = OperationPrimitive(operations.FORWARD, kernels.forward, FORWARD, **_RULES)
sampling_backward_value = OperationPrimitive(
    operations.BACKWARD_VALUE, kernels.backward_value, cuda_kernels.backward_value, **_RULES
)
sampling_backward_points = OperationPrimitive(
    operations.BACKWARD_POINTS, kernels.backward_points, cuda_kernels.backward_points, **_RULES
)
sampling_backward_samples = OperationPrimitive(
    operations.BACKWARD_SAMPLES, kernels.backward_samples, cuda_kernels.backward_samples, **_RULES
)


def _gradients(params: SampleParams, operands, wanted: Sequence[bool], grad_y: jax.Array):
    """The gradients that are wanted, None for the others."""
    value, *points = operands
    wants_value, *wants_points = wanted
    grad_value, grad_points = None, (None,) * len(points)
    if wants_value and any(wants_points):
        return sampling_backward_samples(params, value, *points, grad_y)
    if wants_value:
        (grad_value,) = sampling_backward_value(params, *points, grad_y)
    elif any(wants_points):
        grad_points = sampling_backward_points(params, value, *points, grad_y)
    return grad_value, *grad_points


def _linear(params: SampleParams, operands: Sequence[str]) -> tuple[str, ...]:
    return ("value",) if params.op.normalize else ("value", "weights")


define_gradients(sampling_forward, _gradients, _linear)
define_parts(sampling_backward_samples, (sampling_backward_value, sampling_backward_points))


def _gradients_of_sums(params: SampleParams, operands, wanted: Sequence[bool], grad_images):
    """Those of images that values are added into: samples of the gradient to the images."""
    *points, values = operands
    *wants_points, wants_values = wanted
    grad_values, grad_points = None, (None,) * len(points)
    if wants_values:
        (grad_values,) = sampling_forward(params, grad_images, *points)
    if any(wants_points):
        grad_points = sampling_backward_points(params, grad_images, *points, values)
    return *grad_points, grad_values


def _linear_of_sums(params: SampleParams, operands: Sequence[str]) -> tuple[str, ...]:
    return ("grad_y",) if params.op.normalize else ("grad_y", "weights")


define_gradients(sampling_backward_value, _gradients_of_sums, _linear_of_sums)
