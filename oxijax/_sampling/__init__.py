"""Weighted sums of samples: the primitives of all sampling operators, and their wiring.

    y[n, q, m] = sum over points t of weight[n, q, m, t] * value_of_level(t)[n, m] at
        location[n, q, m, t]

`places` says where points lie, which is all that the operators differ in.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from oxijax._core import compat as _compat
from oxijax._core.explicit import reshape
from oxijax._core.gradients import define_gradients
from oxijax._core.primitive import Fold, KernelPrimitive, Result, map_present
from oxijax._sampling import cuda as cuda_kernels
from oxijax._sampling import reference as kernels
from oxijax._sampling.places import Window
from oxijax._sampling.points import SampleParams

__all__ = ["Call", "sample", "sample_reference"]


class Call(NamedTuple):
    """A weighted sum of samples, as an operator has read it from its arguments.

    Attributes:
      config: what is static.
      value: images [N, S, M, D], the pixels of all levels after each other.
      locations: of points, [N, Q, M, T, 2] as (x, y); None where they are packed.
      weights: of points, [N, Q, M, T]; None for 1, or where they are packed.
      shape: of the operator's result, which is the sums [N, Q, M, D].
      packed: locations and weights in one array [N, Q, P], see `oxijax._sampling.packed`.
    """

    config: SampleParams
    value: jax.Array
    locations: jax.Array | None
    weights: jax.Array | None
    shape: tuple[int, ...]
    packed: jax.Array | None = None

    @property
    def points(self) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
        """The operands that say where points are and what they weigh, as primitives have them."""
        return self.locations, self.weights, self.packed


def sample(call: Call) -> jax.Array:
    """The result of a call."""
    # The casts are outside of what has rules of its own: theirs see the operands.
    operands = map_present(_compat.match_varying, call.value, *call.points)
    (y,) = sampling_forward(call.config, *operands)
    assert y is not None
    return reshape(y, call.shape)


def sample_reference(call: Call) -> jax.Array:
    """The result of a call, in pure JAX."""
    (y,) = sampling_forward.call_reference(call.config, call.value, *call.points)
    assert y is not None
    return reshape(y, call.shape)


def _sizes(config: SampleParams, sizes: dict[str, int]) -> dict[str, int]:
    """Completes the sizes of dimensions.

    They are called: images n with s pixels, of m heads with d channels; queries q; points t, with k
    coordinates; p elements of a query that is packed.
    """
    return {**sizes, "s": config.pixels}


def _parallel(config: SampleParams, operands: Sequence[str]) -> str:
    """Along which dimensions a call may be split; the number of a query says where a window is.

    What is packed has the points of all heads.
    """
    heads = "" if "packed" in operands else "m "
    return f"n {heads}d" if isinstance(config.place, Window) else f"n q {heads}d"


_FOLDS = (
    # Everything mapped: more images.
    Fold("n"),
    # Images shared: more queries.
    Fold("q"),
    # Points shared: more channels.
    Fold("d"),
)

_VALUE, _Y = "n s m d", "n q m d"
# Either locations, and perhaps weights, or what has both.
_POINTS = {"locations": "n q m t k", "weights": "n q m t", "packed": "n q p"}

_primitive: Any = functools.partial(
    KernelPrimitive, sizes=_sizes, folds=_FOLDS, batch="n", parallel=_parallel
)

sampling_forward: KernelPrimitive = _primitive(
    "sampling_forward",
    operands={"value": _VALUE, **_POINTS},
    results={"y": Result(_Y, like="value")},
    reference=kernels.forward,
    cuda=cuda_kernels.forward,
)
sampling_backward_value: KernelPrimitive = _primitive(
    "sampling_backward_value",
    operands={**_POINTS, "grad_y": _Y},
    results={"grad_value": Result(_VALUE, like="grad_y")},
    reference=kernels.backward_value,
    cuda=cuda_kernels.backward_value,
)
sampling_backward_points: KernelPrimitive = _primitive(
    "sampling_backward_points",
    operands={"value": _VALUE, **_POINTS, "grad_y": _Y},
    results={f"grad_{name}": Result(dims, like=name) for name, dims in _POINTS.items()},
    reference=kernels.backward_points,
    cuda=cuda_kernels.backward_points,
)


def _gradients(config: SampleParams, operands, wanted: Sequence[bool], grad_y: jax.Array):
    """Binds one backward primitive for images and one for points, if they are wanted."""
    value, *points = operands
    wants_value, *wants_points = wanted
    grad_value, grad_points = None, (None,) * len(points)
    if wants_value:
        (grad_value,) = sampling_backward_value(config, *points, grad_y)
    if any(wants_points):
        grad_points = sampling_backward_points(config, value, *points, grad_y)
    return grad_value, *grad_points


def _linear(config: SampleParams, operands: Sequence[str]) -> tuple[str, ...]:
    return ("value",) if config.normalize else ("value", "weights")


define_gradients(sampling_forward, _gradients, _linear)
