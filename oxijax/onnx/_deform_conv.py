"""DeformConv of ONNX, run by `oxijax.deform_conv`."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.typing import ArrayLike

from oxijax import _deform_conv
from oxijax._convolution import Pads, parse_pair
from oxijax._core.arguments import checks
from ptx.kernels import convolution

__all__ = ["deform_conv"]


def deform_conv(
    X: ArrayLike,  # noqa: N803
    W: ArrayLike,  # noqa: N803
    offset: ArrayLike,
    B: ArrayLike | None = None,  # noqa: N803
    mask: ArrayLike | None = None,
    *,
    dilations: int | Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: int | Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: int | Sequence[int] | None = None,
) -> jax.Array:
    """`oxijax.deform_conv` with the inputs and the attributes of ONNX's DeformConv.

    Args:
      X: images [N, C, H, W]; float16, bfloat16, float32 or float64, as all inputs.
      W: convolution kernel [oC, C/group, kH, kW].
      offset: [N, offset_group*kH*kW*2, oH, oW], in pixels: of each tap first the vertical offset.
      B: bias [oC], or None for zeros.
      mask: [N, offset_group*kH*kW, oH, oW], or None for ones.
      dilations: pixels from one tap to the next, (vertical, horizontal); None for 1. An int, as for
        all pairs, is for both.
      group: the number of groups of channels.
      kernel_shape: (kH, kW); None for what W has.
      offset_group: the number of groups of channels that share offsets and mask.
      pads: zeros (above, to the left, below, to the right); None for 0.
      strides: pixels from one output to the next, (vertical, horizontal); None for 1.

    Returns:
      Y [N, oC, oH, oW], in X's dtype. It is computed, and differentiated, as `oxijax.deform_conv`
      says; `jax.default_matmul_precision` is the precision of its products.

    Raises:
      ValueError: a shape or an attribute that does not fit, by ONNX's name.
      TypeError: an input or an attribute of the wrong type or dtype, by ONNX's name.

    Source: DeformConv of opsets 19 and 22, https://onnx.ai/onnx/operators/onnx__DeformConv.html.
    """
    x, weight, offset = (
        checks.as_array(name, value, 4) for name, value in (("X", X), ("W", W), ("offset", offset))
    )
    bias = None if B is None else checks.as_array("B", B, 1)
    mask = None if mask is None else checks.as_array("mask", mask, 4)
    for name, value in (("W", weight), ("offset", offset), ("B", bias), ("mask", mask)):
        if value is not None:
            checks.check_same_dtype(name, value, "X", x)
    group, offset_group = (
        checks.parse_int(name, value)
        for name, value in (("group", group), ("offset_group", offset_group))
    )
    for name, array in (("X", x), ("W", weight)):
        if any(size < 1 for size in array.shape[name == "X" :]):
            raise ValueError(f"{name} must have no dimension of size 0, got shape {array.shape}")
    channels, (out_channels, in_group, *kernel) = x.shape[1], weight.shape
    if channels != group * in_group or out_channels % group:
        raise ValueError(
            "W must have shape (oC, C/group, kH, kW), where group divides oC, with C and group = "
            f"{channels}, {group}, got {weight.shape}"
        )
    if channels % offset_group:
        raise ValueError(
            f"offset_group must divide the channels of X, {channels}, got {offset_group}"
        )
    kernel_size = kernel[0], kernel[1]
    kernel_shape = kernel_size if kernel_shape is None else kernel_shape
    if parse_pair("kernel_shape", kernel_shape) != kernel_size:
        raise ValueError(
            f"kernel_shape must be kH and kW of W, {kernel_size}, got {checks.shown(kernel_shape)}"
        )
    if bias is not None:
        checks.check_shape("B", bias, ("oC",), (out_channels,))
    stride = parse_pair("strides", 1 if strides is None else strides)
    dilation = parse_pair("dilations", 1 if dilations is None else dilations)
    padding = _parse_pads(pads)
    image_size = x.shape[2], x.shape[3]
    size = convolution.output_size(image_size, kernel_size, stride, padding, dilation)
    samples = offset_group * kernel[0] * kernel[1]
    names = ("N", "offset_group*kH*kW*2", "oH", "oW")
    checks.check_shape("offset", offset, names, (x.shape[0], 2 * samples, *size))
    if mask is not None:
        names = ("N", "offset_group*kH*kW", "oH", "oW")
        checks.check_shape("mask", mask, names, (x.shape[0], samples, *size))
    return _deform_conv.deform_conv(
        *(x, offset, weight, mask, bias),
        strides=stride,
        padding=padding,
        dilation=dilation,
        data_format="NCHW",
    )


def _parse_pads(value: Any) -> Pads:
    if value is None:
        return (0, 0), (0, 0)
    pads = checks.parse_sequence("pads", value)
    if len(pads) != 4 or not all(map(checks.is_int, pads)):
        raise TypeError(
            "pads must be four ints, (above, to the left, below, to the right), got "
            f"{checks.shown(value)}"
        )
    checks.check_range("pads", pads, value, 0)
    top, left, bottom, right = map(int, pads)
    return (top, bottom), (left, right)
