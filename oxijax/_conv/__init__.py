"""Convolution with a fused bias: the public function and its primitives."""

from typing import Any

import jax
from jax import lax
from jax.typing import ArrayLike

from oxijax._conv import cuda as cuda_kernels
from oxijax._conv import reference as kernels
from oxijax._convolution import (
    ConvParams,
    PaddingLike,
    from_nhwc,
    more_channels,
    more_groups,
    parallel_dimensions,
    parse_arguments,
)
from oxijax._core import compat as _compat
from oxijax._core.arguments.checks import ImplementationLike
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.kernel_primitive import Fold, Product, map_present
from oxijax._core.primitive.operation import OperationPrimitive
from ptx.kernels.conv import BACKWARD_INPUT, FORWARD, ConvConfig, operations

__all__ = ["conv", "conv_nhwc", "conv_nhwc_reference", "conv_reference"]

_DATA_FORMATS = ("NHWC", "NCHW", "NWC", "NCW")


@explain_keywords
def conv(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: int | tuple[int, ...] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | tuple[int, ...] = 1,
    data_format: str = "NHWC",
    precision: lax.PrecisionLike = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Convolution over one or two dimensions, with the bias added before rounding.

        y[n, p, o] = bias[o] + sum over taps k and channels c of o's group of
            weight[k, c, o] * x[n, p * strides - padding + k * dilation, c]

    where pixels outside the image are 0. As everywhere in machine learning, the kernel is not
    turned: a cross-correlation.

    Shapes, for each `data_format`:

    | argument | NHWC              | NCHW              | NWC           | NCW           |
    |----------|-------------------|-------------------|---------------|---------------|
    | x        | [N, H, W, C]      | [N, C, H, W]      | [N, W, C]     | [N, C, W]     |
    | weight   | [Kh, Kw, C/G, Co] | [Co, C/G, Kh, Kw] | [K, C/G, Co]  | [Co, C/G, K]  |
    | bias     | [Co]              | [Co]              | [Co]          | [Co]          |
    | result   | [N, Ho, Wo, Co]   | [N, Co, Ho, Wo]   | [N, Wo, Co]   | [N, Co, Wo]   |

    The number of groups G is read off the shapes: C for a depthwise convolution.

    Args:
      x: images; float16, bfloat16, float32 or float64.
      weight: convolution kernel, in x's dtype.
      bias: added to each output channel, in x's dtype.
      strides: pixels from one output to the next; an int, or one for each dimension.
      padding: zeros around the image: "SAME", "SAME_LOWER", "VALID", an int, or for each
        dimension an int or a pair (before, after).
      dilation: pixels from one tap to the next; an int, or one for each dimension.
      data_format: "NHWC" or "NCHW" for two dimensions, "NWC" or "NCW" for one.
      precision: the precision of the products, as in `jax.lax`; None is JAX's
        `default_matmul_precision`.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      The convolved images in x's dtype. Products are summed in float32, for float64 x in
      float64.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape, a padding or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.
    """
    params, x, weight, bias = parse_arguments(
        ConvConfig,
        *(x, weight, bias, strides, padding, dilation, data_format, precision, implementation),
        data_formats=_DATA_FORMATS,
    )
    return from_nhwc(conv_nhwc(params, x, weight, bias), data_format)


def _reference(*values) -> jax.Array:
    *_, data_format, _, _ = values
    operands = parse_arguments(ConvConfig, *values, data_formats=_DATA_FORMATS)
    return from_nhwc(conv_nhwc_reference(*operands), data_format)


conv_reference = reference_twin(
    conv,
    _reference,
    """`oxijax.conv` in pure JAX: XLA's own convolution, and a bias.

    Same arguments, meaning, result and errors. It knows no kernels.
    """,
)


def conv_nhwc(
    params: ConvParams, x: jax.Array, weight: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """Convolution by the primitives: operands in NHWC, and their parameters."""
    (y,) = conv_forward(params, *map_present(_compat.match_varying, x, weight, bias))
    assert y is not None
    return y


def conv_nhwc_reference(
    params: ConvParams, x: jax.Array, weight: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """`conv_nhwc` in pure JAX."""
    (y,) = conv_forward.call_reference(params, x, weight, bias)
    assert y is not None
    return y


# The primitives.
#
# All three are linear in each operand (but for the bias), and the transpose of each is another
# one of them. That makes every derivative, in either mode and of any order, a few calls of them.

_FOLDS = (
    # Weights that are shared: more images.
    Fold("n"),
    # All but weights (or their gradients) shared: more output channels; or, where it is the
    # images' gradient or the images themselves that come in many, more input channels.
    Fold("o", fits=lambda params: params.op.groups == 1),
    more_channels("c e", vmapped=True),
    # Everything else: more groups, each with its own weights.
    more_groups("c o"),
)
_RULES: Any = {"folds": _FOLDS, "parallel": parallel_dimensions}

conv_forward = OperationPrimitive(
    operations.FORWARD,
    kernels.forward,
    FORWARD,
    product=Product(
        {
            "x": lambda params, x, weight, bias, y: conv_backward_input(params, weight, y),
            "weight": lambda params, x, weight, bias, y: conv_backward_weight(params, x, y),
        },
        term="bias",
    ),
    **_RULES,
)
conv_backward_input = OperationPrimitive(
    operations.BACKWARD_INPUT,
    kernels.backward_input,
    BACKWARD_INPUT,
    product=Product(
        {
            "weight": lambda params, weight, grad_y, x: conv_backward_weight(params, x, grad_y),
            "grad_y": lambda params, weight, grad_y, x: conv_forward(params, x, weight, None),
        }
    ),
    **_RULES,
)
conv_backward_weight = OperationPrimitive(
    operations.BACKWARD_WEIGHT,
    kernels.backward_weight,
    cuda_kernels.backward_weight,
    product=Product(
        {
            "x": lambda params, x, grad_y, weight: conv_backward_input(params, weight, grad_y),
            "grad_y": lambda params, x, grad_y, weight: conv_forward(params, x, weight, None),
        }
    ),
    **_RULES,
)
