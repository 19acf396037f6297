"""Convolution with a fused bias: the public function and its primitives."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from oxijax._conv import cuda as cuda_kernels
from oxijax._conv import reference as kernels
from oxijax._conv.reference import ConvParams
from oxijax._core import arguments as arguments
from oxijax._core import compat as _compat
from oxijax._core.primitive import Fold, KernelPrimitive, Product, Result
from oxijax._core.twin import reference_twin

__all__ = ["conv", "conv_nhwc", "conv_reference"]


def conv(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: int | tuple[int, ...] = 1,
    padding: arguments.PaddingLike = "SAME",
    dilation: int | tuple[int, ...] = 1,
    data_format: str = "NHWC",
    precision: lax.PrecisionLike = None,
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
      precision: of the products, as in `jax.lax`; None is JAX's `default_matmul_precision`.

    Returns:
      The convolved images in x's dtype. Products are summed in float32, for float64 x in
      float64.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape, a padding or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.
    """
    config, operands = _read_arguments(
        x, weight, bias, strides, padding, dilation, data_format, precision
    )
    return _from_nhwc(conv_nhwc(config, *operands), data_format)


def _reference(*values) -> jax.Array:
    config, operands = _read_arguments(*values)
    (y,) = kernels.forward(config, *operands)
    *_, data_format, _ = values
    return _from_nhwc(y, data_format)


conv_reference = reference_twin(
    conv,
    _reference,
    """`oxijax.conv` in pure JAX: XLA's own convolution, and a bias.

    Same arguments, meaning, result and errors. It knows no kernels.
    """,
)


def conv_nhwc(
    config: ConvParams, x: jax.Array, weight: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """Convolution by the primitives: operands NHWC, of which a configuration was read."""
    here = [operand for operand in (x, weight, bias) if operand is not None]
    x, weight, *rest = _compat.match_varying(*here)
    (y,) = conv_forward(config, x, weight, rest[0] if rest else None)
    assert y is not None
    return y


class _Operands(NamedTuple):
    """The operands in NHWC; of one-dimensional images, with height 1."""

    x: jax.Array
    weight: jax.Array
    bias: jax.Array | None


def _read_arguments(
    x, weight, bias, strides, padding, dilation, data_format, precision
) -> tuple[ConvParams, _Operands]:
    """Checks all arguments, and makes them a configuration and operands in NHWC."""
    arguments.check_choice("data_format", data_format, ("NHWC", "NCHW", "NWC", "NCW"))
    ndim, rank = len(data_format), len(data_format) - 2
    why = f" with data_format {data_format!r}"
    x = arguments.as_array("x", x, ndim, why)
    weight = arguments.as_array("weight", weight, ndim, why)
    bias = None if bias is None else arguments.as_array("bias", bias, 1)
    arguments.check_same_dtype("weight", weight, "x", x)
    if bias is not None:
        arguments.check_same_dtype("bias", bias, "x", x)

    # Shapes are checked in the user's layout, so that errors speak of it.
    if data_format[1] == "C":
        channels, *size = x.shape[1:]
        out_channels, in_group, *kernel = weight.shape
    else:
        *size, channels = x.shape[1:]
        *kernel, in_group, out_channels = weight.shape
    if min(channels, *size) < 1:
        extents = "channels, height and width" if rank == 2 else "channels and width"
        raise ValueError(f"x must have {extents}, got shape {x.shape}")
    if min(weight.shape) < 1:
        raise ValueError(f"weight must have no dimension of size 0, got shape {weight.shape}")
    groups = arguments.read_groups(channels, in_group, out_channels, weight.shape)
    if bias is not None:
        arguments.check_shape("bias", bias, ("Co",), (out_channels,))

    height, width = [1, *size][-2:]
    kernel_height, kernel_width = [1, *kernel][-2:]
    image_size, kernel_size = (height, width), (kernel_height, kernel_width)
    strides = arguments.read_pair("strides", strides, rank)
    dilation = arguments.read_pair("dilation", dilation, rank)
    pads = arguments.read_padding(padding, image_size, kernel_size, strides, dilation, rank)
    arguments.output_size(image_size, kernel_size, strides, pads, dilation, rank)
    config = ConvParams(
        image_size=image_size,
        kernel_size=kernel_size,
        strides=strides,
        padding=pads,
        dilation=dilation,
        groups=groups,
        precision=arguments.read_precision(precision),
    )
    if data_format[1] == "C":
        spatial = range(2, ndim)
        x, weight = x.transpose(0, *spatial, 1), weight.transpose(*spatial, 1, 0)
    if rank == 1:
        x, weight = jnp.expand_dims(x, 1), jnp.expand_dims(weight, 0)
    return config, _Operands(x, weight, bias)


def _from_nhwc(y: jax.Array, data_format: str) -> jax.Array:
    if len(data_format) == 3:
        y = y.squeeze(1)
    return jnp.moveaxis(y, -1, 1) if data_format[1] == "C" else y


# The primitives. Names of dimensions: images n of size h, w with c channels; output pixels
# p, q; taps i, j; input channels a group e; output channels o.
#
# All three are linear in each operand (but for the bias), and the transpose of each is another
# one of them. That makes every derivative, in either mode and of any order, a few calls of them.


def _sizes(config: ConvParams, sizes: dict[str, int]) -> dict[str, int]:
    (h, w), (p, q), (i, j) = config.image_size, config.out_size, config.kernel_size
    c = sizes["c"] if "c" in sizes else config.groups * sizes["e"]
    e = c // config.groups
    return {**sizes, "h": h, "w": w, "p": p, "q": q, "i": i, "j": j, "c": c, "e": e}


_FOLDS = (
    # Weights that are shared: more images.
    Fold("n"),
    # All but weights (or their gradients) shared: more output channels; or, where it is the
    # images' gradient or the images themselves that come in many, more input channels.
    Fold("o", fits=lambda config: config.groups == 1),
    Fold("c e", fits=lambda config: config.groups == 1),
    # Everything else: more groups, each with its own weights.
    Fold(
        "c o",
        update=lambda config, size: dataclasses.replace(config, groups=config.groups * size),
    ),
)

_X, _WEIGHT, _Y = "n h w c", "i j e o", "n p q o"


conv_forward = KernelPrimitive(
    "conv_forward",
    operands={"x": _X, "weight": _WEIGHT, "bias": "o"},
    results={"y": Result(_Y, like="x")},
    sizes=_sizes,
    folds=_FOLDS,
    reference=kernels.forward,
    cuda=cuda_kernels.forward,
    product=Product(
        {
            "x": lambda config, x, weight, bias, y: conv_backward_input(config, weight, y),
            "weight": lambda config, x, weight, bias, y: conv_backward_weight(config, x, y),
        },
        term="bias",
    ),
)
conv_backward_input = KernelPrimitive(
    "conv_backward_input",
    operands={"weight": _WEIGHT, "grad_y": _Y},
    results={"grad_x": Result(_X, like="weight")},
    sizes=_sizes,
    folds=_FOLDS,
    reference=kernels.backward_input,
    cuda=cuda_kernels.backward_input,
    product=Product(
        {
            "weight": lambda config, weight, grad_y, x: conv_backward_weight(config, x, grad_y),
            "grad_y": lambda config, weight, grad_y, x: conv_forward(config, x, weight, None),
        }
    ),
)
conv_backward_weight = KernelPrimitive(
    "conv_backward_weight",
    operands={"x": _X, "grad_y": _Y},
    results={"grad_weight": Result(_WEIGHT, like="x")},
    sizes=_sizes,
    folds=_FOLDS,
    reference=kernels.backward_weight,
    cuda=cuda_kernels.backward_weight,
    product=Product(
        {
            "x": lambda config, x, grad_y, weight: conv_backward_input(config, weight, grad_y),
            "grad_y": lambda config, x, grad_y, weight: conv_forward(config, x, weight, None),
        }
    ),
)
