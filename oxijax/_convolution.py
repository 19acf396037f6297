"""Arguments, layouts and folds that the convolution operators share."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import Implementation, parse_implementation
from oxijax._core.arguments.precision import is_exact, parse_precision, ptx_dtype
from oxijax._core.primitive.fold import Fold, Shapes
from oxijax._core.primitive.operation import OpParams
from ptx.kernels import convolution
from ptx.kernels.convolution import ConvolutionConfig

__all__ = [
    "ConvParams",
    "PaddingLike",
    "Pads",
    "Window",
    "conv_params",
    "from_nhwc",
    "more_channels",
    "more_groups",
    "output_size",
    "parallel_dimensions",
    "parse_arguments",
    "parse_extents",
    "parse_padding",
    "parse_pair",
    "parse_window",
    "to_nhwc",
    "window_params",
]

Pads = tuple[tuple[int, int], ...]
PaddingLike = str | int | Sequence[int | Sequence[int]]

_MOST_PIXELS = 2**40  # of an output

ConvParams = OpParams[Any]  # of a `ConvolutionConfig`
Config = TypeVar("Config", bound=ConvolutionConfig)


def conv_params(
    kind: type[Config],
    x: jax.Array | jax.ShapeDtypeStruct,
    weight: jax.Array,
    *,
    strides: tuple[int, ...],
    padding: Pads,
    dilation: tuple[int, ...],
    output_size: tuple[Any, ...],
    precision: lax.Precision,
    groups: int | None = None,
    implementation: Implementation = None,
) -> OpParams[Config]:
    """The parameters of a convolution, of arguments that were checked.

    Args:
      kind: the class of the description.
      x: [N, H, W, C].
      weight: [Kh, Kw, C/G, Co].
      strides: the strides of height and width; all pairs are in this order.
      padding: zeros around the image.
      dilation: pixels from one tap to the next.
      output_size: height and width of the output.
      precision: the precision of the products.
      groups: None is what the shapes say.
      implementation: which programs may run.
    """
    (*kernel_size, in_group, outputs), channels = weight.shape, x.shape[-1]
    (top, bottom), (left, right) = padding
    op = kind(
        channels, outputs, *(*kernel_size, *strides, top, left, *dilation),
        groups=channels // in_group if groups is None else groups,
        float_type=ptx_dtype(x.dtype),
        exact=is_exact(precision, x.dtype),
        pad_below=None if bottom == top else bottom,
        pad_right=None if right == left else right,
    )  # fmt: skip
    sizes = tuple(zip("hwpq", (*x.shape[1:3], *output_size), strict=True))
    return OpParams(op, precision, sizes, implementation)


def parse_arguments(
    kind: type[Config],
    x, weight, bias, strides, padding, dilation, data_format, precision, implementation,
    *, data_formats,
) -> tuple[OpParams[Config], jax.Array, jax.Array, jax.Array | None]:  # fmt: skip
    """Checks the arguments that all convolutions of one or two dimensions have.

    Returns:
      The parameters, with a description of class `kind`, then x and weight in NHWC, with a height
      of 1 for one dimension, and bias.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.
    """
    window = parse_window(
        x, weight, bias, strides, padding, dilation, data_format, data_formats=data_formats
    )
    params = window_params(
        kind, window, parse_precision(precision), parse_implementation(implementation)
    )
    return params, window.x, window.weight, window.bias


def window_params(
    kind: type[Config],
    window: "Window",
    precision: lax.Precision,
    implementation: Implementation,
) -> OpParams[Config]:
    """The parameters of a convolution of one or two dimensions."""
    return conv_params(
        kind, window.x, window.weight, strides=window.strides, padding=window.padding,
        dilation=window.dilation, output_size=window.output_size, precision=precision,
        implementation=implementation,
    )  # fmt: skip


class Window(NamedTuple):
    """Operands of a convolution with channels last, and how its window moves.

    Images of one dimension have a height of 1. Sizes are in the order of the images' dimensions.
    """

    x: jax.Array
    weight: jax.Array
    bias: jax.Array | None
    strides: tuple[int, ...]
    padding: Pads
    dilation: tuple[int, ...]
    output_size: tuple[Any, ...]


def parse_window(
    x, weight, bias, strides, padding, dilation, data_format, *, data_formats
) -> Window:
    """Checks what all convolutions have: `data_format` is one of `data_formats`."""
    checks.check_choice("data_format", data_format, data_formats)
    ndim, rank = len(data_format), len(data_format) - 2
    why = f" with data_format {data_format!r}"
    x = checks.as_array("x", x, ndim, why)
    weight = checks.as_array("weight", weight, ndim, why)
    bias = None if bias is None else checks.as_array("bias", bias, 1)
    checks.check_same_dtype("weight", weight, "x", x)
    if bias is not None:
        checks.check_same_dtype("bias", bias, "x", x)

    # Shapes are checked in the user's layout, so that errors speak of it.
    if data_format[1] == "C":
        channels, *size = x.shape[1:]
        out_channels, in_group, *kernel = weight.shape
    else:
        *size, channels = x.shape[1:]
        *kernel, in_group, out_channels = weight.shape
    if any(extent < 1 for extent in (channels, *size)):
        extents = f"channels{' and' if rank == 1 else ','} {sizes_of(rank)}"
        raise ValueError(f"x must have {extents}, got shape {x.shape}")
    if min(weight.shape) < 1:
        raise ValueError(f"weight must have no dimension of size 0, got shape {weight.shape}")
    parse_groups(channels, in_group, out_channels, weight.shape, why)
    if bias is not None:
        checks.check_shape("bias", bias, ("Co",), (out_channels,))

    image_size, kernel_size = ((1,) * (2 - rank) + tuple(sizes) for sizes in (size, kernel))
    strides = parse_extents("strides", strides, rank)
    dilation = parse_extents("dilation", dilation, rank)
    pads = parse_padding(padding, image_size, kernel_size, strides, dilation, rank)
    size = output_size(image_size, kernel_size, strides, pads, dilation, rank)
    if data_format[1] == "C":
        weight = weight.transpose(*range(2, ndim), 1, 0)
    if rank == 1:
        weight = jnp.expand_dims(weight, 0)
    return Window(to_nhwc(x, data_format), weight, bias, strides, pads, dilation, size)


def parse_groups(
    channels: int, in_group: int, out_channels: int, shape: tuple[int, ...], why: str = ""
) -> int:
    """Groups, from x's channels and those of a weight of this shape: inputs of a group, outputs."""
    if channels % in_group:
        raise ValueError(
            f"weight must have a number of input channels that divides those of x, "
            f"{channels}, got {in_group} in shape {shape}{why}"
        )
    groups = channels // in_group
    if out_channels % groups:
        raise ValueError(
            f"weight must have a number of output channels that is a multiple of the groups, "
            f"{groups} (C = {channels} over C/G = {in_group}), got {out_channels} in shape "
            f"{shape}{why}"
        )
    return groups


# Images with one spatial dimension are two-dimensional ones of height 1, here and everywhere
# else: `rank` is the number of dimensions that the caller sees.


def sizes_of(rank: int) -> str:
    """The names of the sizes of images."""
    return {1: "width", 2: "height and width", 3: "depth, height and width"}[rank]


def parse_pair(name: str, value: Any, rank: int = 2) -> tuple[int, int]:
    """An int for one or two spatial dimensions, or one each; all >= 1, as (height, width)."""
    height, width = parse_extents(name, value, rank)
    return height, width


def parse_extents(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """`parse_pair` for up to three dimensions, as (depth, height, width)."""
    values = [value] * rank if checks.is_int(value) else value
    if not checks.is_sequence(values) or len(values) != rank or not all(map(checks.is_int, values)):
        form = {1: "a sequence of one int", 2: "a pair of ints"}.get(rank, f"{rank} ints")
        raise TypeError(f"{name} must be an int or {form}, got {checks.shown(value)}")
    checks.check_range(name, values, value, 1)
    return (1,) * (2 - rank) + tuple(map(int, values))


def parse_padding(
    value: Any,
    image_size: tuple[int, ...],
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    rank: int = 2,
    negative: bool = False,
) -> Pads:
    """Zeros before and after each dimension, from any form that `padding` may have.

    With `negative` they may be negative: so many pixels fewer.
    """
    if isinstance(value, str):
        checks.check_choice("padding", value.upper(), ("SAME", "SAME_LOWER", "VALID"))
        window = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
        pads = lax.padtype_to_pads(image_size, window, strides, value.upper())
        if not checks.is_known(*(size for pair in pads for size in pair)):
            raise ValueError(
                f"padding {value!r} depends on x's {sizes_of(rank)}, of which only {image_size} is "
                f"known: with strides {strides} give padding as numbers, or sizes that are "
                "multiples of the strides, such as 2*h"
            )
        if max(map(max, pads)) > checks.MOST:
            raise ValueError(
                f"padding {value!r} must be at most {checks.MOST}, got {pads} with kernel size "
                f"{kernel_size} and dilation {dilation}"
            )
        return tuple((int(before), int(after)) for before, after in pads)
    values = [value] * rank if checks.is_int(value) else value
    if checks.is_sequence(values) and len(values) == rank:
        pairs = [[v, v] if checks.is_int(v) else v for v in values]
        if all(checks.is_sequence(p) and len(p) == 2 and all(map(checks.is_int, p)) for p in pairs):
            pads = tuple((int(before), int(after)) for before, after in pairs)
            checks.check_range("padding", sum(pads, ()), value, -checks.MOST if negative else 0)
            pads = ((0, 0),) * (2 - rank) + pads
            size = convolution.output_size(image_size, kernel_size, strides, pads, dilation)
            # XLA ends the process where the size of an array does not fit 64 bits.
            if (
                checks.is_known(*size)
                and math.prod(max(extent, 0) for extent in size) > _MOST_PIXELS
            ):
                raise ValueError(
                    f"padding must leave {_MOST_PIXELS} pixels of an output at most, got "
                    f"{checks.shown(value)}"
                )
            return pads
    form = f"for {sizes_of(rank)} an int or a pair (before, after) each"
    if rank == 1:
        form = "a sequence of one int or one pair (before, after)"
    raise TypeError(
        f"padding must be 'SAME', 'SAME_LOWER', 'VALID', an int, or {form}, got "
        f"{checks.shown(value)}"
    )


def output_size(
    image_size: tuple[Any, ...],
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: Pads,
    dilation: tuple[int, ...],
    rank: int = 2,
) -> tuple[Any, ...]:
    """The sizes of a convolution's output; raises where one would be empty."""
    facts = (image_size, padding, kernel_size, dilation)
    image, pads, kernel, gaps = facts if rank > 1 else [fact[1] for fact in facts]
    message = (
        f"the output would have no extent: x with {sizes_of(rank)} {image}, padding {pads}, "
        f"weight with kernel size {kernel} and dilation {gaps}"
    )
    size = convolution.output_size(image_size, kernel_size, strides, padding, dilation)
    for extent in size:
        checks.require_at_least(extent, 1, message)
    return size


def to_nhwc(images: jax.Array, data_format: str) -> jax.Array:
    """Images of any `data_format` with channels last; with a height of 1 for one dimension."""
    if data_format[1] == "C":
        images = jnp.moveaxis(images, 1, -1)
    return jnp.expand_dims(images, 1) if len(data_format) == 3 else images


def from_nhwc(y: jax.Array, data_format: str) -> jax.Array:
    """Images with channels last, and a height of 1 for one dimension, as those of `data_format`."""
    if len(data_format) == 3:
        y = y.squeeze(1)
    return jnp.moveaxis(y, -1, 1) if data_format[1] == "C" else y


def parallel_dimensions(params: ConvParams, operands: Sequence[str]) -> str:
    """Along which dimensions a primitive's call may be split: images, and output channels."""
    return "n o" if params.op.groups == 1 else "n"  # groups have channels of their own


def more_groups(dims: str) -> Fold:
    """The fold that makes more groups, each with its own weights: a part of it has some of them.

    Args:
      dims: the names of all dimensions that groups divide.
    """

    def part(params: ConvParams, shapes: Shapes, parts: int) -> tuple[str, ConvParams] | None:
        together = _with_offset_groups("c o", params, shapes, parts)
        if params.op.groups % parts or together is None:
            return None
        return together, params.with_op(groups=params.op.groups // parts)

    return Fold(
        dims,
        update=lambda params, size: params.with_op(groups=params.op.groups * size),
        part=part,
    )


def more_channels(dims: str, *, vmapped: bool) -> Fold:
    """The fold that makes more input channels of one group: results are sums over its parts.

    Args:
      dims: the names of all dimensions that input channels, or offset groups, divide.
      vmapped: whether it absorbs a vmapped axis.
    """

    def part(params: ConvParams, shapes: Shapes, parts: int) -> tuple[str, ConvParams] | None:
        together = _with_offset_groups("c e", params, shapes, parts)
        if params.op.groups > 1 or "bias" in shapes or together is None:
            return None  # a bias would be added by each part
        return together, params

    return Fold(dims, fits=lambda params: vmapped and params.op.groups == 1, part=part)


def _with_offset_groups(dims: str, params: ConvParams, shapes: Shapes, parts: int) -> str | None:
    """The dimensions that are split together, or None where parts would share an offset group."""
    offset_groups = shapes["offset"][-1] // (2 * params.op.taps) if "offset" in shapes else 1
    if offset_groups == 1:  # all parts have it
        return dims
    return None if offset_groups % parts else f"{dims} d m"
