"""The result of a layer of convolution, and its gradients, in numpy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from oxijax.testing import ConvCase
from ptx.kernels.conv import ConvConfig
from support.conv_kernels import KERNELS, ConvCall

__all__ = ["float64_results"]


@dataclasses.dataclass(frozen=True, eq=False)
class _GivenCall(ConvCall):
    """A call on given operands instead of drawn ones."""

    given: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        return self.given


def float64_results(case: ConvCase, operands, grad_y) -> dict[str, np.ndarray]:
    """The output "y", and the gradient "dx", "dweight", "dbias" of each operand there is.

    Args:
      case: the layer, over one or two dimensions.
      operands: x, weight, and bias or None, of any dtype, in the layer's data format.
      grad_y: the gradient to the output.
    """
    x, weight, bias, gradient = (
        None if v is None else np.asarray(v, np.float64) for v in (*operands, grad_y)
    )
    assert x is not None
    assert weight is not None
    assert gradient is not None
    spatial = len(case.kernel_size)
    if case.channels_first:
        x, gradient = np.moveaxis(x, 1, -1), np.moveaxis(gradient, 1, -1)
        weight = weight.transpose(*range(2, 2 + spatial), 1, 0)
    inputs = x.shape, weight.shape
    x, gradient = (v.reshape(v.shape[0], -1, *v.shape[-2:]) for v in (x, gradient))

    strides, dilation = ((1, *pair)[-2:] for pair in (case.strides, case.dilation))
    pads = (0, *(before for before, _ in case.pads))[-2:]
    taps = (1, *case.kernel_size)[-2:]
    config = ConvConfig(
        x.shape[3], case.out_channels, *taps, *strides, *pads, *dilation, groups=case.groups,
        use_bias=bias is not None,
    )  # fmt: skip
    products = weight.reshape(config.taps, -1, case.groups, config.out_channels_per_group)
    given = {"x": x, "weight": products.transpose(2, 3, 0, 1), "bias": bias, "grad_y": gradient}
    sizes = {"images": x.shape[0], "height": x.shape[1], "width": x.shape[2]}
    y, grad_x, grad_weight = (
        _GivenCall(kernel, config, **sizes, out_size=gradient.shape[1:3], given=given).expected
        for kernel in KERNELS
    )
    y = y.reshape(y.shape[0], *case.out_size, -1)
    grad_x, grad_weight = grad_x.reshape(inputs[0]), grad_weight.reshape(inputs[1])
    if case.channels_first:
        y, grad_x = np.moveaxis(y, -1, 1), np.moveaxis(grad_x, -1, 1)
        grad_weight = grad_weight.transpose(spatial + 1, spatial, *range(spatial))
    results = {"y": y, "dx": grad_x, "dweight": grad_weight}
    return results if bias is None else {**results, "dbias": gradient.sum((0, 1, 2))}
