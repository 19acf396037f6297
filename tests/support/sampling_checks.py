"""Shared parts of the tests of the sampling operators: recorded calls in some dtype, compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import oxijax
from support.helpers import assert_close, values_and_gradients
from support.places import PRECISIONS, Place
from support.sampling_data import Recorded

__all__ = [
    "INTERNIMAGE_CHANNELS",
    "KERNELS",
    "TOLERANCES",
    "check",
    "compare",
    "float64_results",
    "in_dtype",
    "internimage",
    "results",
    "smooth",
]

# Of kernels; there is nothing that TF32 would multiply.
TOLERANCES = {
    dtype: bound for dtype, _, bound in (PRECISIONS[n] for n in PRECISIONS if n != "tf32")
}
KERNELS = ("sampling_forward", "sampling_backward_value", "sampling_backward_points")
# Of a group, in InternImage's own test of the gradients of its DCNv3.
INTERNIMAGE_CHANNELS = (1, 16, 30, 32, 64, 71, 1025)


def internimage(channels: int) -> Recorded:
    """A call of `dcnv3` as InternImage's own test of gradients has it; nobody has recorded it.

    Offsets go up to 20 pixels after they are scaled, in images of 8 x 8.
    """
    generator, groups, taps = np.random.default_rng(channels), 4, 9
    pixels = 2, 8, 8
    mask = generator.random((*pixels, groups, taps)) + 1e-5
    arrays = {
        "x": 0.01 * generator.random((*pixels, groups * channels)),
        "offset": 10 * generator.random((*pixels, groups * taps * 2)),
        "mask": (mask / mask.sum(-1, keepdims=True)).reshape(*pixels, -1),
    }
    options = {
        "kernel_size": (3, 3),
        "strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
        "groups": groups,
        "offset_scale": 2.0,
        "remove_center": False,
    }
    grad_y = generator.standard_normal((*pixels, groups * channels))
    return Recorded(oxijax.dcnv3, arrays, options, grad_y, {})


def in_dtype(call: Recorded, dtype: Any) -> Recorded:
    """The call of what a dtype has of its operands, so that only what is done with them is judged.

    It has no recorded results.
    """
    with np.errstate(over="ignore"):  # what is far becomes infinite
        rounded = {k: np.asarray(v).astype(dtype) for k, v in call.arrays.items()}
    grad_y = call.grad_y.astype(dtype)
    return dataclasses.replace(call, arrays=rounded, grad_y=grad_y, results={})


def results(call: Recorded, dtype: Any, coordinates: Any = None) -> dict[str, jax.Array]:
    """The result of a call, and its gradients, of operands in a dtype.

    Args:
      call: the call.
      dtype: of all operands.
      coordinates: dtype of the places, where it is another one.
    """
    function = functools.partial(call.function, **call.options)
    arrays = [
        jnp.asarray(array, coordinates if coordinates and name in _PLACES else dtype)
        for name, array in call.arrays.items()
    ]
    return values_and_gradients(function, arrays, jnp.asarray(call.grad_y, dtype), [*call.arrays])


_PLACES = ("sampling_locations", "offset", "grid")


def float64_results(call: Recorded, coordinates: Any) -> dict[str, jax.Array]:
    """What the operator's twin makes of a call in float64, with positions in another dtype.

    Positions in float32 are as documented: what is made of them is compared.
    """
    twin = getattr(oxijax.reference, call.function.__name__)
    with jax.enable_x64(True):
        return results(dataclasses.replace(call, function=twin), jnp.float64, coordinates)


def check(call: Recorded, dtype: str, place: Place) -> None:
    """Compares the kernels' result and gradients of a call with those of its twin in float64."""
    call = in_dtype(call, dtype)
    function = functools.partial(call.function, **call.options)
    operands = list(call.arrays.values())
    kernels = KERNELS if len(operands) > 1 else KERNELS[:2]  # without a gradient to points
    y, gradients = place.values_and_gradients(function, operands, call.grad_y, kernels)
    found = {"y": y, **{f"d{n}": g for n, g in zip(call.arrays, gradients, strict=True)}}
    coordinates = jnp.float64 if dtype == "float64" else jnp.float32
    compare(call, found, float64_results(call, coordinates), TOLERANCES[dtype])
    for name, value in found.items():
        assert value.dtype == dtype, name


def compare(
    call: Recorded, found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float
) -> None:
    """Asserts that results are close, but for gradients that are not defined."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        actual, wanted = np.asarray(found[name], np.float64), np.asarray(value, np.float64)
        if name == "doffset":
            kept = smooth(call)
            actual, wanted = actual[kept], wanted[kept]
        assert_close(actual, wanted, tolerance, name)


def smooth(call: Recorded) -> np.ndarray:
    """Where the gradient to an offset is defined: not between pixels.

    Where a position is a whole number the sample has two derivatives, and which one PyTorch takes
    depends on how it rounds the position.
    """
    kernel, strides, dilation, padding = (
        call.options[name] for name in ("kernel_size", "strides", "dilation", "padding")
    )
    n, height, width, _ = (offset := call.arrays["offset"].astype(np.float64)).shape
    taps = [(i, j) for j in range(kernel[1]) for i in range(kernel[0])]
    if call.options["remove_center"]:
        taps.remove((kernel[0] // 2, kernel[1] // 2))
    offset = offset.reshape(n, height, width, call.options["groups"], len(taps), 2)
    near = np.zeros(offset.shape, bool)
    for axis, last in ((0, 1), (1, 0)):
        middle = dilation[axis] * (kernel[axis] - 1) // 2
        tap = np.array([tap[axis] * dilation[axis] - middle for tap in taps])
        pixel = np.arange((height, width)[axis]) * strides[axis] + middle - padding[axis][0]
        pixel = pixel.reshape((-1, 1, 1, 1) if axis == 0 else (-1, 1, 1))
        position = pixel + call.options["offset_scale"] * (offset[..., last] + tap)
        near[..., last] = np.abs(position - np.round(position)) < 1e-6
    return ~near.reshape(call.arrays["offset"].shape)
