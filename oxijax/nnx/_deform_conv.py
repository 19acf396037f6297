"""Deformable convolution as a Flax NNX layer."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from flax.typing import Dtype, Initializer, PrecisionLike, PromoteDtypeFn

from oxijax._convolution import PaddingLike, Pads
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import (
    Implementation,
    ImplementationLike,
    parse_implementation,
)
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._layers import deform_conv as layers
from oxijax._layers.arguments import as_images
from oxijax._layers.flax import LECUN, ZEROS, DeformConvCalls, Options
from oxijax.nnx._sublayers import check_rngs

__all__ = ["DeformConv"]


@explain_keywords
class DeformConv(DeformConvCalls, nnx.Module):
    """Deformable convolution that predicts its own offsets and modulation.

    `offset_conv`, a plain convolution of the same geometry, predicts from the inputs where each tap
    samples and, with `use_mask`, how much the sample weighs. Its channels are those of the offset
    of `oxijax.deform_conv`, then a logit for each of the mask. It starts with zeros and the mask is
    `2 * sigmoid(logit)`, so that a new layer computes what `nnx.Conv` does with the same `kernel`
    and `bias`; the paper has `sigmoid(logit)`: `mask_scale=1`.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.nnx
      >>> from flax import nnx
      >>> layer = oxijax.nnx.DeformConv(8, 16, kernel_size=(3, 3), strides=2, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 32, 32, 8))).shape
      (2, 16, 16, 16)

    Attributes:
      kernel: `nnx.Param` [Kh, Kw, in_features / feature_group_count, out_features].
      bias: `nnx.Param` [out_features], or None.
      offset_conv: the predictor: an `nnx.Conv`, the module that was given, or None.

    Arguments that are not below mean what they do in `nnx.Conv`.

    Args:
      kernel_size: height and width of the kernel; an int is a square (in `nnx.Conv` it is a
        convolution over one dimension).
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for height and width an int or a pair
        (before, after) each.
      rngs: random keys, of which as many are used as by `nnx.Conv`.
      offset_groups: number of groups of input channels that share offsets and modulation.
      use_mask: True for modulation (DCNv2), False for offsets only (DCNv1).
      offset_dtype: dtype of predicted offsets and masks, whatever `dtype` is: half precision
        misplaces samples. For float64 throughout, give float64.
      predictor: "conv", a module or function that makes the predictor's output of inputs, or None
        for a layer whose offsets are given with each call.
      mask_scale: factor of the sigmoid of a logit, 1 or 2.
      max_residue: offsets are this times the tanh of what is predicted, in pixels, before `flow` is
        added; None for what is predicted.
      max_offset: bound of the absolute values of offsets, with `flow`, in pixels, or None.
      implementation: as in `oxijax.deform_conv`.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results", 2019.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = 1,
        *,
        padding: PaddingLike = "SAME",
        kernel_dilation: int | Sequence[int] | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = LECUN,
        bias_init: Initializer = ZEROS,
        promote_dtype: PromoteDtypeFn = dtypes.promote_dtype,
        rngs: nnx.Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        offset_groups: int = 1,
        use_mask: bool = True,
        offset_dtype: Dtype = jnp.float32,
        predictor: Callable[[jax.Array], jax.Array] | str | None = "conv",
        mask_scale: int = 2,
        max_residue: float | None = None,
        max_offset: float | None = None,
        implementation: ImplementationLike = None,
    ):
        geometry = layers.Geometry.parse(
            *(("in_features", in_features), ("out_features", out_features), kernel_size),
            *(("strides", 1 if strides is None else strides), padding),
            ("kernel_dilation", 1 if kernel_dilation is None else kernel_dilation),
            *(("feature_group_count", feature_group_count), use_bias),
        )
        options = Options.parse(dtype, param_dtype, precision, kernel_init, offset_dtype)
        checks.check_callable("bias_init", bias_init)
        checks.check_callable("promote_dtype", promote_dtype)
        checks.check_keywords("kernel_metadata", kernel_metadata)
        checks.check_keywords("bias_metadata", bias_metadata)
        check_rngs(rngs)
        prediction = layers.Prediction.parse(
            *(geometry, "in_features", offset_groups, use_mask),
            *(predictor, mask_scale, max_residue, max_offset),
        )
        self.in_features: int = geometry.in_features
        self.out_features: int = geometry.features
        self.kernel_size: tuple[int, int] = geometry.kernel_size
        self.strides: tuple[int, int] = geometry.strides
        self.padding: str | Pads = geometry.padding
        self.kernel_dilation: tuple[int, int] = geometry.dilation
        self.feature_group_count: int = geometry.groups
        self.use_bias: bool = geometry.use_bias
        self.dtype: Dtype | None = options.dtype
        self.param_dtype: Dtype = options.param_dtype
        self.precision = precision
        self.implementation: Implementation = parse_implementation(implementation)
        self.promote_dtype = promote_dtype
        self.offset_groups: int = prediction.offset_groups
        self.prediction: layers.Prediction = prediction
        self.use_mask: bool = prediction.use_mask
        self.mask_scale: int = prediction.mask_scale
        self.offset_dtype: Dtype = options.offset_dtype

        in_group = self.in_features // self.feature_group_count
        shape = (*self.kernel_size, in_group, self.out_features)
        self.kernel: nnx.Param[jax.Array] = nnx.Param(
            kernel_init(rngs.params(), shape, self.param_dtype), **kernel_metadata
        )
        self.bias: nnx.Param[jax.Array] | None = nnx.data(None)
        if self.use_bias:
            self.bias = nnx.Param(
                bias_init(rngs.params(), shape[-1:], self.param_dtype), **bias_metadata
            )
        self.offset_features: int | None = self.in_features if predictor == "conv" else None
        if predictor == "conv":
            # Zeros need no keys: all other layers start as they do with `nnx.Conv` here.
            conv = functools.partial(nnx.Conv, self.in_features, rngs=nnx.Rngs(0))
            predictor = options.offset_conv(conv, geometry, prediction)
        self.offset_conv: Any = nnx.data(None) if predictor is None else predictor

    def _run(
        self, inputs: Any, offset_inputs: Any, flow: Any, offset: Any, mask: Any,
        only_samples: bool = False,
    ) -> Any:  # fmt: skip
        inputs = as_images("inputs", inputs, self.in_features)
        samples = self.prediction.samples_of_images(
            *(self.offset_conv, self.offset_features, inputs),
            *(offset_inputs, flow, offset, mask, self.offset_dtype),
        )
        if only_samples:
            return samples
        bias = None if self.bias is None else self.bias[...]
        inputs, kernel, bias = self.promote_dtype(
            (inputs, self.kernel[...], bias), dtype=self.dtype
        )
        return layers.deform_conv_nhwc(
            *(inputs, samples, kernel, bias),
            strides=self.strides,
            padding=self.padding,
            dilation=self.kernel_dilation,
            precision=self.precision,
            implementation=self.implementation,
        )
