"""Deformable convolution: the public function, its primitives and their wiring."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from oxijax._convolution import (
    ConvParams,
    PaddingLike,
    Window,
    from_nhwc,
    more_channels,
    more_groups,
    parallel_dimensions,
    parse_window,
    to_nhwc,
    window_params,
)
from oxijax._core import compat as _compat
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import accumulator, parse_precision
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._core.primitive.gradients import define_gradients, define_parts
from oxijax._core.primitive.kernel_primitive import Fold, map_present
from oxijax._core.primitive.operation import OperationPrimitive
from oxijax._deform_conv import cuda as cuda_kernels
from oxijax._deform_conv import reference as kernels
from oxijax._deform_conv.volumes import (
    VolumeInputs,
    convolve_volumes,
    convolve_volumes_reference,
    volume_inputs,
)
from ptx.kernels.deform_conv import BACKWARD_OFFSET, FORWARD, DeformConvConfig, operations

__all__ = ["deform_conv", "deform_conv_reference", "parse_deform_conv"]


@explain_keywords
def deform_conv(
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    strides: int | tuple[int, ...] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | tuple[int, ...] = 1,
    data_format: str = "NHWC",
    precision: lax.PrecisionLike = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Deformable convolution, v1 without `mask` and v2 with it.

    Every tap of the convolution kernel reads the image not at its place in the grid but at
    that place plus a learned offset, by bilinear interpolation; v2 also weighs each sample:

        y[n, p, o] = bias[o] + sum over taps k and channels c of
            weight[k, c, o] * mask[n, p, g(c), k]
            * x(n, p * strides - padding + k * dilation + offset[n, p, g(c), k], c)

    where g(c) is the offset group of channel c, and pixels outside the image are 0.

    Shapes, for data_format "NHWC" and "NCHW" (the latter as in torchvision):

    | argument | NHWC                     | NCHW                     |
    |----------|--------------------------|--------------------------|
    | x        | [N, H, W, C]             | [N, C, H, W]             |
    | offset   | [N, Ho, Wo, OG*Kh*Kw*2]  | [N, OG*Kh*Kw*2, Ho, Wo]  |
    | weight   | [Kh, Kw, C/G, Co]        | [Co, C/G, Kh, Kw]        |
    | mask     | [N, Ho, Wo, OG*Kh*Kw]    | [N, OG*Kh*Kw, Ho, Wo]    |
    | bias     | [Co]                     | [Co]                     |
    | result   | [N, Ho, Wo, Co]          | [N, Co, Ho, Wo]          |

    Of lines and of volumes, for "NWC" and "NDHWC" (or "NCW" and "NCDHW", likewise):

    | argument | NWC             | NDHWC                            |
    |----------|-----------------|----------------------------------|
    | x        | [N, W, C]       | [N, D, H, W, C]                  |
    | offset   | [N, Wo, OG*K]   | [N, Do, Ho, Wo, OG*Kd*Kh*Kw*3]   |
    | weight   | [K, C/G, Co]    | [Kd, Kh, Kw, C/G, Co]            |
    | mask     | [N, Wo, OG*K]   | [N, Do, Ho, Wo, OG*Kd*Kh*Kw]     |
    | bias     | [Co]            | [Co]                             |
    | result   | [N, Wo, Co]     | [N, Do, Ho, Wo, Co]              |

    The numbers of groups G and of offset groups OG are read off the shapes.

    Args:
      x: images; float16, bfloat16, float32 or float64.
      offset: offsets in pixels, any of these dtypes; channel (g*K + i*Kw + j)*2 is the
        vertical offset of tap (i, j) for offset group g and the next one the horizontal
        offset, with K = Kh*Kw. Those of volumes are triples (depth, vertical, horizontal), those
        of lines single numbers.
      weight: convolution kernel, in x's dtype.
      mask: modulation of each sample, any of these dtypes; channel g*K + i*Kw + j.
      bias: added to each output channel, in x's dtype.
      strides: pixels from one output to the next; an int, or (vertical, horizontal), one for each
        dimension.
      padding: zeros around the image: "SAME", "SAME_LOWER", "VALID", an int, or for each dimension
        an int or a pair (before, after).
      dilation: pixels from one tap to the next; an int, or (vertical, horizontal), one for each
        dimension.
      data_format: "NHWC" or "NCHW", "NWC" or "NCW" for lines, "NDHWC" or "NCDHW" for volumes.
      precision: the precision of the matrix products, as in `jax.lax`; None is JAX's
        `default_matmul_precision`.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      The convolved images in x's dtype. Products are summed in float32, for float64 x in
      float64; coordinates are in float32, for float64 offsets in float64.

      A NaN offset makes its output pixel NaN, and the gradients of its tap with respect to
      weight, offset and mask, but adds nothing to the gradient with respect to x. An
      infinite or huge offset reads zeros and has finite gradients.

      In 16 bits the products of each tap of a volume are rounded before their sum. Volumes have
      sizes that are known when a program is traced, and positions in float32 as a whole.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape, a padding or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Dai et al., "Deformable Convolutional Networks", 2017; Zhu et al., "Deformable
    ConvNets v2: More Deformable, Better Results", 2019.
    """
    inputs = parse_deform_conv(
        *(x, offset, weight, mask, bias),
        *(strides, padding, dilation, data_format, precision, implementation),
    )
    if isinstance(inputs, VolumeInputs):
        return from_nhwc(convolve_volumes(inputs), data_format)
    params, operands = inputs
    # The casts are outside of what has rules of its own: theirs see the operands.
    operands = map_present(_compat.match_varying, *operands)
    return from_nhwc(_forward(params, *operands), data_format)


def _reference(*values) -> jax.Array:
    *_, data_format, _, _ = values
    inputs = parse_deform_conv(*values)
    if isinstance(inputs, VolumeInputs):
        return from_nhwc(convolve_volumes_reference(inputs), data_format)
    params, operands = inputs
    (y,) = deform_conv_forward.call_reference(params, *operands)
    assert y is not None
    return from_nhwc(y, data_format)


deform_conv_reference = reference_twin(
    deform_conv,
    _reference,
    """`oxijax.deform_conv` in pure JAX: for any order and mode of differentiation.

    Same arguments, meaning, result and errors. It needs more memory and time for gradients
    than `oxijax.deform_conv`, and knows no kernels.
    """,
)


_DATA_FORMATS = ("NHWC", "NCHW", "NWC", "NCW", "NDHWC", "NCDHW")

# x, offset, weight, mask and bias, in NHWC.
_Operands = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array | None]


def parse_deform_conv(
    x, offset, weight, mask, bias,
    strides, padding, dilation, data_format, precision, implementation,
) -> tuple[ConvParams, _Operands] | VolumeInputs:  # fmt: skip
    """Checks all arguments, and makes them parameters and operands in NHWC, or those of volumes."""
    window = parse_window(
        *(x, weight, bias, strides, padding, dilation, data_format), data_formats=_DATA_FORMATS
    )
    offset, mask = _parse_samples(offset, mask, window, data_format)
    precision, implementation = parse_precision(precision), parse_implementation(implementation)
    if len(data_format) == 5:
        return volume_inputs(window, offset, mask, precision, implementation)
    if len(data_format) == 3:  # of two dimensions, the first stays as it is
        pairs = jnp.stack([jnp.zeros_like(offset), offset], -1)
        offset = reshape(pairs, (*offset.shape[:3], 2 * offset.shape[3]))
    params = window_params(DeformConvConfig, window, precision, implementation)
    return params, (window.x, offset, window.weight, mask, window.bias)


def _parse_samples(
    offset: Any, mask: Any, window: Window, data_format: str
) -> tuple[jax.Array, jax.Array | None]:
    """Offset and mask with channels last; as images, those of one dimension have a height of 1."""
    rank = len(data_format) - 2
    offset = checks.as_array("offset", offset, rank + 2)
    mask = None if mask is None else checks.as_array("mask", mask, rank + 2)

    # Shapes are checked in the user's layout, so that errors speak of it.
    def arranged(channels: Any, n: Any, *size: Any) -> tuple[Any, ...]:
        return (n, channels, *size) if data_format[1] == "C" else (n, *size, channels)

    taps = math.prod(window.weight.shape[:-2])
    kernel = {1: "K", 2: "Kh*Kw", 3: "Kd*Kh*Kw"}[rank]
    pair = "" if rank == 1 else f"*{rank}"
    names = "N", *("Do", "Ho", "Wo")[-rank:]
    sizes = window.x.shape[0], *window.output_size[-rank:]
    checks.check_shape(
        "offset",
        offset,
        arranged(f"OG*{kernel}{pair}", *names),
        arranged(f"OG*{taps}{pair}", *sizes),
    )
    channels, offset_channels = window.x.shape[-1], offset.shape[data_format.index("C")]
    offset_groups, rest = divmod(offset_channels, rank * taps)
    if rest or offset_groups < 1 or channels % offset_groups:
        raise ValueError(
            f"offset must have OG*{kernel}{pair} = OG*{rank * taps} channels for a number of "
            f"offset groups OG that divides the channels of x, {channels}; got {offset_channels} "
            f"in shape {offset.shape}"
        )
    if mask is not None:
        expected = arranged(offset_groups * taps, *sizes)
        checks.check_shape("mask", mask, arranged(f"OG*{kernel}", *names), expected)
        mask = to_nhwc(mask, data_format)
    return to_nhwc(offset, data_format), mask


_FOLDS = (
    # Weights that are shared: more images.
    Fold("n"),
    # Everything but weights (or their gradients) shared: more output channels.
    Fold("o", fits=lambda params: params.op.groups == 1),
    # Everything else: more groups, each with its own weights.
    more_groups("c d m o"),
    # No vmapped axis: offsets may point elsewhere for each. Over devices, input channels.
    more_channels("c d m e", vmapped=False),
)
_RULES: Any = {"folds": _FOLDS, "batch": "n", "parallel": parallel_dimensions}

deform_conv_forward = OperationPrimitive(operations.FORWARD, kernels.forward, FORWARD, **_RULES)
deform_conv_backward_input = OperationPrimitive(
    operations.BACKWARD_INPUT, kernels.backward_input, cuda_kernels.backward_input, **_RULES
)
deform_conv_backward_offset = OperationPrimitive(
    operations.BACKWARD_OFFSET, kernels.backward_offset, BACKWARD_OFFSET, **_RULES
)
deform_conv_backward_samples = OperationPrimitive(
    operations.BACKWARD_SAMPLES, kernels.backward_samples, cuda_kernels.backward_samples, **_RULES
)
deform_conv_backward_weight = OperationPrimitive(
    operations.BACKWARD_WEIGHT, kernels.backward_weight, cuda_kernels.backward_weight, **_RULES
)


def _forward(params: ConvParams, *operands: jax.Array | None) -> jax.Array:
    (y,) = deform_conv_forward(params, *operands)
    assert y is not None
    return y


def _gradients(params: ConvParams, operands, wanted: Sequence[bool], grad_y: jax.Array):
    """The gradients that are wanted, None for the others."""
    x, offset, weight, mask, bias = operands
    wants_x, wants_offset, wants_weight, wants_mask, wants_bias = wanted
    grad_x = grad_offset = grad_weight = grad_mask = grad_bias = None
    factors = x, offset, weight, mask, grad_y
    if wants_x and (wants_offset or wants_mask):
        grad_x, grad_offset, grad_mask = deform_conv_backward_samples(params, *factors)
    elif wants_x:
        (grad_x,) = deform_conv_backward_input(params, *factors[1:])
    elif wants_offset or wants_mask:
        grad_offset, grad_mask = deform_conv_backward_offset(params, *factors)
    if wants_weight:
        (grad_weight,) = deform_conv_backward_weight(params, x, offset, mask, grad_y)
    if wants_bias:
        wide = jnp.sum(grad_y, axis=(0, 1, 2), dtype=accumulator(grad_y))
        grad_bias = wide.astype(bias.dtype)
    return grad_x, grad_offset, grad_weight, grad_mask, grad_bias


def _linear(params: ConvParams, operands: Sequence[str]) -> tuple[str, ...]:
    return () if "bias" in operands else ("x", "weight", "mask")


define_gradients(deform_conv_forward, _gradients, _linear)
define_parts(
    deform_conv_backward_samples, (deform_conv_backward_input, deform_conv_backward_offset)
)
