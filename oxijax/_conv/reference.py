"""Convolution and its gradients as XLA's own convolutions, NHWC.

These three functions are the lowering of the primitives wherever no kernel is, and what every
kernel is judged by. A gradient of a convolution is another convolution: with respect to the
images, of grad_y with strides as its dilation and turned weights; with respect to the weights,
of the images with grad_y as the kernel, channels in the batch's place.

Sums are in float32, float64 for float64; so is the bias, before the result is rounded.
"""

import jax
from jax import lax

from oxijax._convolution import ConvParams
from oxijax._core.arguments.checks import is_known
from oxijax._core.arguments.precision import accumulator

__all__ = ["backward_input", "backward_weight", "forward"]


def forward(
    params: ConvParams, x: jax.Array, weight: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array]:
    """The output [N, Ho, Wo, Co], in x's dtype."""
    y = lax.conv_general_dilated(
        x,
        weight,
        params.op.strides,
        params.op.padding,
        rhs_dilation=params.op.dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=params.op.groups,
        precision=params.precision,
        preferred_element_type=accumulator(x),
    )
    if bias is not None:
        y = y + bias.astype(y.dtype)
    return (y.astype(x.dtype),)


def backward_input(params: ConvParams, weight: jax.Array, grad_y: jax.Array) -> tuple[jax.Array]:
    """Gradient with respect to x [N, H, W, C], in weight's dtype."""
    kh, kw, in_group, out_channels = weight.shape
    split = weight.reshape(kh, kw, in_group, params.op.groups, out_channels // params.op.groups)
    turned = lax.rev(split, (0, 1)).transpose(0, 1, 3, 2, 4)
    pads = []
    for axis, (before, _) in enumerate(params.op.padding):
        window, reach = _window(params, axis), _reach(params, axis)
        first = window - 1 - before
        last = params.size("h", "w")[axis] + window - 1 - reach - first
        if not is_known(last):  # some rows more, which are cut off below
            last = window - 1 - params.op.padding[axis][1] + params.op.strides[axis] - 1
        if first == last == 0 and window == params.op.strides[axis] == 2:
            # XLA's compiler ends the process here, where the other dimension has more taps than
            # grad_y has pixels: it takes this dimension for one of groups, also jax.lax's own.
            last = 1  # a row more, which is cut off below
        pads.append((first, last))
    grad_x = lax.conv_general_dilated(
        grad_y,
        turned.reshape(kh, kw, params.op.groups * in_group, out_channels // params.op.groups),
        (1, 1),
        pads,
        lhs_dilation=params.op.strides,
        rhs_dilation=params.op.dilation,
        dimension_numbers=("NHWC", "HWOI", "NHWC"),
        feature_group_count=params.op.groups,
        precision=params.precision,
        preferred_element_type=accumulator(weight),
    )
    height, width = params.size("h", "w")
    return (grad_x[:, :height, :width].astype(weight.dtype),)


def backward_weight(params: ConvParams, x: jax.Array, grad_y: jax.Array) -> tuple[jax.Array]:
    """Gradient with respect to weight [Kh, Kw, C/G, Co], in x's dtype."""
    pads = []
    for axis, (before, end) in enumerate(params.op.padding):
        after = _reach(params, axis) + _window(params, axis) - 1
        after -= params.size("h", "w")[axis] + before
        pads.append((before, after if is_known(after) else end))  # perhaps more taps than there are
    grad_weight = lax.conv_general_dilated(
        x,
        grad_y,
        params.op.dilation,
        pads,
        rhs_dilation=params.op.strides,
        dimension_numbers=("CHWN", "IHWO", "HWNC"),
        batch_group_count=params.op.groups,
        precision=params.precision,
        preferred_element_type=accumulator(x),
    )
    height, width = params.op.kernel_size
    return (grad_weight[:height, :width].astype(x.dtype),)


def _window(params: ConvParams, axis: int) -> int:
    """Pixels from the first tap to the last, both included."""
    return params.op.dilation[axis] * (params.op.kernel_size[axis] - 1) + 1


def _reach(params: ConvParams, axis: int) -> int:
    """Pixels from the first output's first tap to the last output's, both included."""
    return params.op.strides[axis] * (params.size("p", "q")[axis] - 1) + 1
