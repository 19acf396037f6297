"""The result of a layer of deformable convolution, and its gradients, in numpy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from ptx.kernels.deform_conv import DeformConvConfig
from support.deform_conv_kernels import DeformConvCall

__all__ = ["config_of", "float64_results", "to_nchw", "to_nhwc"]

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class _GivenCall(DeformConvCall):
    """A call on given operands instead of drawn ones.

    Attributes:
      given: what `operands` is, in float64.
    """

    given: Arrays = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def operands(self) -> Arrays:
        return self.given


def config_of(arrays: Arrays, strides, pads, dilation) -> DeformConvConfig:
    """The configuration of a layer, from the shapes of its NHWC operands.

    Args:
      arrays: "x" [N, H, W, C], "offset", "weight" [Kh, Kw, C/G, Co], and "mask" and "bias" where
        the layer has them.
      strides: of the output's pixels, (vertical, horizontal).
      pads: ((above, below), (left, right)).
      dilation: of the taps, (vertical, horizontal).
    """
    kernel_h, kernel_w, in_group, out_channels = arrays["weight"].shape
    (stride_h, stride_w), (dilation_h, dilation_w) = strides, dilation
    (pad_h, _), (pad_w, _) = pads
    channels = arrays["x"].shape[3]
    return DeformConvConfig(
        channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,
        dilation_h, dilation_w, groups=channels // in_group,
        offset_groups=arrays["offset"].shape[3] // (2 * kernel_h * kernel_w),
        use_modulation="mask" in arrays, use_bias="bias" in arrays,
    )  # fmt: skip


def float64_results(config: DeformConvConfig, arrays: Arrays) -> dict[str, np.ndarray]:
    """The output "y", and the gradient "dx", "doffset", ... of each operand there is, NHWC."""

    def expected(kernel: str) -> list[np.ndarray]:
        with np.errstate(invalid="ignore"):
            return _call_on(kernel, config, arrays).expected

    results = {"y": expected("forward")[0], "dx": expected("backward_input")[0]}
    for name, gradient in zip(("doffset", "dmask"), expected("backward_offset"), strict=False):
        results[name] = gradient
    results["dweight"] = expected("backward_weight")[0].reshape(arrays["weight"].shape)
    if "bias" in arrays:
        results["dbias"] = np.asarray(arrays["grad_y"], np.float64).sum((0, 1, 2))
    return results


def to_nhwc(arrays: Arrays) -> dict[str, np.ndarray]:
    """Operands or results by name, NCHW and weights OIHW, as NHWC and HWIO."""
    return _transposed(arrays, (0, 2, 3, 1), (2, 3, 1, 0))


def to_nchw(arrays: Arrays) -> dict[str, np.ndarray]:
    """Operands or results by name, NHWC and weights HWIO, as NCHW and OIHW."""
    return _transposed(arrays, (0, 3, 1, 2), (3, 2, 0, 1))


def _transposed(arrays: Arrays, images: tuple, weights: tuple) -> dict[str, np.ndarray]:
    axes = {"weight": weights, "dweight": weights, "bias": (0,), "dbias": (0,)}
    return {name: value.transpose(axes.get(name, images)) for name, value in arrays.items()}


def _call_on(kernel: str, config: DeformConvConfig, arrays: Arrays) -> _GivenCall:
    """A call of a kernel on NHWC operands and "grad_y" [N, Ho, Wo, Co]."""
    c, images, height, width = config, *arrays["x"].shape[:3]
    given = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    weight = given["weight"].reshape(c.taps, -1, c.groups, c.out_channels_per_group)
    given["weight"] = weight.transpose(2, 3, 0, 1)
    if not c.use_modulation:
        given["mask"] = np.ones((*given["offset"].shape[:3], c.mask_channels))
    return _GivenCall(kernel, config, images, height, width, given=given)
