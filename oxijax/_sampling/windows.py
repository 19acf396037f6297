"""Windows of samples: primitives that are samples at all of a window's positions.

Of images of one channel each pixel of a window is read once instead, and its gradient is added to
once: samples of a window share the fractions of a pixel. Where there are more channels that saves
nothing.

Dimensions in comments: B windows of a block, P pixels of a window along an axis.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim

from oxijax._core import compat as _compat
from oxijax._core.arguments.checks import require_product
from oxijax._core.arguments.precision import accumulator, ptx_dtype
from oxijax._core.config import is_deterministic
from oxijax._core.launch import call
from oxijax._core.primitive.gradients import define_gradients
from oxijax._core.primitive.kernel_primitive import Fold
from oxijax._core.primitive.operation import OperationPrimitive, OpParams
from oxijax._core.xla.blocks import apart, scan_blocks
from oxijax._sampling import cuda as cuda_kernels
from oxijax._sampling import reference as kernels
from oxijax._sampling.stencils import inside
from ptx.kernels import sampling
from ptx.kernels.sampling.geometry import Grid
from ptx.kernels.sampling.windows import WindowsConfig
from ptx.kernels.sampling.windows import config as operations

__all__ = ["WindowsParams", "of_samples", "sampling_windows"]

WindowsParams = OpParams[WindowsConfig]


# The programs in pure JAX, which judge the kernels.


class _Pixels(NamedTuple):
    """The pixels of some windows.

    Attributes:
      row: the number of each pixel among those of all images, [B, P, ...]; 0 where there is none.
      pixel_ok: whether there is one.
      fractions: how far samples lie from the pixel before them along each axis, [B]; NaN where a
        coordinate is.
    """

    row: jax.Array
    pixel_ok: jax.Array
    fractions: tuple[jax.Array, ...]

    @classmethod
    def of(cls, op: WindowsConfig, centers: jax.Array, image: jax.Array) -> "_Pixels":
        """Those of centres [B, K] in images [B]."""
        centers = centers.astype(accumulator(centers))
        first = jnp.floor(centers)
        # Infinitely far it is a pixel's middle.
        fractions = jnp.where(jnp.isinf(centers), 0, centers - first)
        geometry = Grid(padding_mode=op.padding_mode, coordinates="pixel")
        # What fills a block up, with `NOWHERE` for integers, is in the first image.
        shape = (-1, *[1] * op.dims)
        row: Any = jnp.maximum(image, 0).reshape(shape)
        pixel_ok: Any = True
        for axis, (size, radius) in enumerate(zip(op.size, op.radius, strict=True)):
            steps = np.arange(-radius, radius + 2).astype(first.dtype)
            pixel = inside(
                first[:, -1 - axis, None] + steps, np.asarray(size), geometry, wrap=False
            )
            exists = (pixel >= 0) & (pixel < size)
            along = (-1, *[len(steps) if other == axis else 1 for other in range(op.dims)])
            pixel = jnp.where(exists, pixel, 0).astype(jnp.int32).reshape(along)
            row, pixel_ok = row * size + pixel, pixel_ok & exists.reshape(along)
        found = tuple(fractions[:, -1 - axis] for axis in range(op.dims))
        return cls(jnp.where(pixel_ok, row, 0), pixel_ok, found)

    def read(self, values: jax.Array) -> jax.Array:
        """The pixels [B, P, ...] of the values [R] of all images, 0 where there is none."""

        def take(row, pixel_ok):
            found = values.at[row].get(mode="promise_in_bounds", wrap_negative_indices=False)
            return jnp.where(pixel_ok, found, 0).astype(accumulator(found))

        return apart(take, self.row, self.pixel_ok, number=self.fractions[0])


def _interpolate(pixels: jax.Array, *fractions: jax.Array) -> jax.Array:
    """The samples between pixels [B, P, ...], [B, P - 1, ...]; fractions [B] of each axis."""
    for axis, fraction in enumerate(fractions, 1):
        fraction = fraction.astype(pixels.dtype).reshape(-1, *[1] * (pixels.ndim - 1))
        last = pixels.shape[axis] - 1
        low = lax.slice_in_dim(pixels, 0, last, axis=axis)
        high = lax.slice_in_dim(pixels, 1, last + 1, axis=axis)
        pixels = low * (1 - fraction) + high * fraction
    return pixels


def _scan(op: WindowsConfig, step: Any, carry: Any, centers: jax.Array, *arrays: jax.Array) -> Any:
    """`scan_blocks` over the pixels of windows, and arrays [N, Q, W, 1] as [B, P - 1, ...]."""
    n, q, _ = centers.shape
    require_product(
        (max_dim(n, 1), op.pixels),
        2**31 - 1,
        f"a batch of {n} images of size {op.size} has too many pixels: XLA indexes fewer than "
        "2**31; split the batch",
    )
    image = lax.broadcasted_iota(jnp.int32, (n, q), 0).reshape(n * q)
    flat = [array.reshape(n * q, *op.window).astype(accumulator(array)) for array in arrays]

    def block(carry: Any, items: Any) -> Any:
        image, centers, *arrays = items
        return step(carry, _Pixels.of(op, centers, image), *arrays)

    items = image, centers.reshape(n * q, op.dims), *flat
    return scan_blocks(block, carry, items, 4 * math.prod(size + 1 for size in op.window))


def forward(params: WindowsParams, value: jax.Array, centers: jax.Array) -> tuple[jax.Array]:
    """The samples [N, Q, W, D], in value's dtype."""
    if value.shape[-1] > 1:
        return of_samples(kernels.forward, params, value, centers)
    values = value.reshape(-1)  # a loop would have a copy of rows of one

    def step(_, pixels):
        return None, _interpolate(pixels.read(values), *pixels.fractions).astype(value.dtype)

    _, y = _scan(params.op, step, None, centers)
    return (y.reshape(*centers.shape[:2], math.prod(params.op.window), 1),)


def backward_value(
    params: WindowsParams, centers: jax.Array, grad_y: jax.Array
) -> tuple[jax.Array]:
    """Gradient with respect to value [N, S, D]."""
    if grad_y.shape[-1] > 1:
        return _backward_value(kernels.backward_value, params, centers, grad_y)

    def step(values, pixels, grad):
        def interpolate(read):
            return _interpolate(read, *pixels.fractions)

        read = jnp.zeros(pixels.row.shape, grad.dtype)
        read = _compat.match_varying(read, grad, *pixels.fractions)[0]
        (grad_read,) = jax.vjp(interpolate, read)[1](grad)
        row = jnp.where(pixels.pixel_ok, pixels.row, values.shape[0])
        return values.at[row].add(grad_read, mode="drop", wrap_negative_indices=False), None

    n = centers.shape[0]
    values = jnp.zeros(n * params.op.pixels, accumulator(grad_y))
    values = _compat.match_varying(values, grad_y, centers)[0]
    values, _ = _scan(params.op, step, values, centers, grad_y)
    return (values.reshape(n, params.op.pixels, 1).astype(grad_y.dtype),)


def backward_centers(
    params: WindowsParams, value: jax.Array, centers: jax.Array, grad_y: jax.Array
) -> tuple[jax.Array]:
    """Gradient with respect to centers [N, Q, K]."""
    if value.shape[-1] > 1:
        return _backward_centers(kernels.backward_points, params, value, centers, grad_y)
    values = value.reshape(-1)

    def step(_, pixels, grad):
        read = pixels.read(values)
        y, vjp = jax.vjp(functools.partial(_interpolate, read), *pixels.fractions)
        found = jnp.stack(vjp(grad.astype(y.dtype))[::-1], -1)
        # One NaN coordinate makes all gradients NaN.
        return None, found + 0 * jnp.stack(pixels.fractions, -1).sum(-1, keepdims=True)

    _, found = _scan(params.op, step, None, centers, grad_y)
    return (found.reshape(centers.shape).astype(centers.dtype),)


# By samples at all positions of a window, which kernels make, or programs in pure JAX.


def _samples(params: WindowsParams, centers: jax.Array) -> tuple[OpParams[Any], jax.Array]:
    """Every sample as one of a query of its own: what is static, and locations [N, QW, 1, 1, K]."""
    op = params.op
    steps = np.meshgrid(*(np.arange(-r, r + 1) for r in op.radius), indexing="ij")
    centers = centers.astype(accumulator(centers))
    steps = np.stack(steps[::-1], -1).reshape(1, 1, -1, op.dims).astype(centers.dtype)
    locations = centers[:, :, None] + steps
    n, q, w, k = locations.shape
    config = sampling.SamplingConfig(
        1, op.channels, (op.size,), (1,),
        Grid(padding_mode=op.padding_mode, coordinates="pixel"),
        float_type=op.float_type, location_type=ptx_dtype(centers.dtype), use_weights=False,
    )  # fmt: skip
    return OpParams(config), locations.reshape(n, q * w, 1, 1, k)


def of_samples(
    run: Callable[..., Any], params: WindowsParams, value: jax.Array, centers: jax.Array
) -> tuple[jax.Array]:
    """The same by `run`, a forward operation of samples."""
    samples, locations = _samples(params, centers)
    (y,) = run(samples, value[:, :, None], locations, None, None)
    samples_of_window = math.prod(params.op.window)
    return (y.reshape(*centers.shape[:2], samples_of_window, value.shape[-1]),)


def _backward_value(run: Callable[..., Any], params: WindowsParams, centers, grad_y):
    samples, locations = _samples(params, centers)
    grad_y = grad_y.reshape(*locations.shape[:3], grad_y.shape[-1])
    (found,) = run(samples, locations, None, None, grad_y)
    return (found[:, :, 0].astype(grad_y.dtype),)


def _backward_centers(run: Callable[..., Any], params: WindowsParams, value, centers, grad_y):
    samples, locations = _samples(params, centers)
    grad_y = grad_y.reshape(*locations.shape[:3], grad_y.shape[-1])
    found, *_ = run(samples, value[:, :, None], locations, None, None, grad_y)
    found = found.reshape(*centers.shape[:2], math.prod(params.op.window), centers.shape[-1])
    return (found.sum(2).astype(centers.dtype),)


# On a GPU.


def _cuda_forward(params: WindowsParams, value, centers):
    if value.shape[-1] == 1:
        return call(sampling.WINDOWS_FORWARD, params.op, batch="n", value=value, centers=centers)

    def run(params, value, locations, weights, packed):
        return call(sampling.FORWARD, params.op, batch="n", value=value, locations=locations)

    return of_samples(run, params, value, centers)


def _cuda_backward_value(params: WindowsParams, centers, grad_y):
    if grad_y.shape[-1] > 1 or is_deterministic():
        return _backward_value(cuda_kernels.backward_value, params, centers, grad_y)
    n, _, _, channels = grad_y.shape
    (total,) = call(
        sampling.WINDOWS_BACKWARD_VALUE, params.op, batch="n", centers=centers, grad_y=grad_y,
        zeros=jnp.zeros((n, params.op.pixels, channels), accumulator(grad_y)),
    )  # fmt: skip
    assert total is not None
    return (total.astype(grad_y.dtype),)


# The primitives, whose rules are those of samples.

_RULES: Any = {
    "folds": (Fold("n"), Fold("q"), Fold("d")),
    "batch": "n",
    "parallel": lambda params, operands: "n q d",
}
sampling_windows = OperationPrimitive(operations.FORWARD, forward, _cuda_forward, **_RULES)
sampling_windows_backward_value = OperationPrimitive(
    operations.BACKWARD_VALUE, backward_value, _cuda_backward_value, **_RULES
)
sampling_windows_backward_centers = OperationPrimitive(
    operations.BACKWARD_CENTERS,
    backward_centers,
    functools.partial(_backward_centers, cuda_kernels.backward_points),
    **_RULES,
)


def _gradients(params: WindowsParams, operands, wanted: Sequence[bool], grad_y: jax.Array):
    (value, centers), (wants_value, wants_centers) = operands, wanted
    grad_value = grad_centers = None
    if wants_value:
        (grad_value,) = sampling_windows_backward_value(params, centers, grad_y)
    if wants_centers:
        (grad_centers,) = sampling_windows_backward_centers(params, value, centers, grad_y)
    return grad_value, grad_centers


define_gradients(sampling_windows, _gradients, lambda params, operands: ("value",))
