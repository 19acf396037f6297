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

from oxijax._core import arguments as arguments
from oxijax._core.implementation import (
    Implementation,
    ImplementationLike,
    read_implementation,
)
from oxijax._core.keywords import explain_keywords
from oxijax._layers import deform_conv as layers
from oxijax._layers.arguments import as_images
from oxijax._layers.flax import (
    LECUN,
    ZEROS,
    DeformConvCalls,
    Options,
    make_offset_conv,
    make_samples,
)
from oxijax.nnx._sublayers import check_rngs

__all__ = ["DeformConv"]


@explain_keywords
class DeformConv(DeformConvCalls, nnx.Module):
    """A deformable convolution that predicts its own offsets and modulation.

    A plain convolution of the same geometry, `offset_conv`, predicts from the inputs where
    each tap samples and, with `use_mask`, how much the sample weighs: see
    `oxijax.deform_conv`. `offset_conv` starts with zeros, so that a new layer computes what
    `nnx.Conv` does with the same `kernel` and `bias`. For that the modulation is
    `2 * sigmoid(logit)`, 1 at the start, where the paper has `sigmoid(logit)`: `mask_scale=1`.

    The predictor's channels are, for K = Kh*Kw taps and OG offset groups: (g*K + i*Kw + j)*2
    the vertical offset of tap (i, j) in group g, the next one the horizontal offset, and
    OG*K*2 + g*K + i*Kw + j the logit. With `use_mask=False` there are no logits.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.nnx
      >>> from flax import nnx
      >>> layer = oxijax.nnx.DeformConv(8, 16, kernel_size=(3, 3), strides=2, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 32, 32, 8))).shape
      (2, 16, 16, 16)

    Attributes:
      kernel: `nnx.Param`, [Kh, Kw, in_features / feature_group_count, out_features].
      bias: `nnx.Param`, [out_features], or None.
      offset_conv: the predictor: an `nnx.Conv`, the module that was given, or None.

    Args:
      in_features: number of input channels.
      out_features: number of output channels.
      kernel_size: height and width of the kernel; an int is a square (in `nnx.Conv` it
        is a convolution over one dimension).
      strides: an int, or one for height and one for width.
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for height and width an int or a
        pair (before, after) each.
      kernel_dilation: an int, or one for height and one for width.
      feature_group_count: number of groups; it divides in_features and out_features.
      use_bias: whether to add a bias.
      dtype: of the computation; None infers it from inputs, kernel and bias.
      param_dtype: of all parameters.
      precision: of the matrix products, as in `jax.lax`.
      kernel_init: initializer of `kernel`.
      bias_init: initializer of `bias`.
      promote_dtype: as in `nnx.Conv`, brings (inputs, kernel, bias) to one dtype.
      rngs: random keys. As many are used as by `nnx.Conv`.
      kernel_metadata: metadata of `kernel`.
      bias_metadata: metadata of `bias`.
      offset_groups: in how many groups input channels share offsets and modulation.
      use_mask: True for modulation (DCNv2), False for offsets only (DCNv1).
      offset_dtype: in which offsets and modulation are predicted, whatever `dtype` is. Half
        precision misplaces samples; for float64 throughout, give float64.
      predictor: "conv", a module or function that makes the predictor's output of the inputs, or
        None for a layer whose offsets are given with each call.
      mask_scale: 1 or 2, which the sigmoid of a logit is multiplied by.
      max_residue: offsets are this times the tanh of what is predicted, in pixels; None for
        what is predicted. With `flow` it bounds how far from there a sample is.
      max_offset: offsets, with `flow`, are clamped to plus and minus this, in pixels; None
        for no bound.
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
        padding: arguments.PaddingLike = "SAME",
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
        arguments.check_callable("bias_init", bias_init)
        arguments.check_callable("promote_dtype", promote_dtype)
        arguments.check_keywords("kernel_metadata", kernel_metadata)
        arguments.check_keywords("bias_metadata", bias_metadata)
        check_rngs(rngs)
        prediction = layers.Prediction.parse(
            *(geometry, "in_features", offset_groups, use_mask),
            *(predictor, mask_scale, max_residue, max_offset),
        )
        self.in_features: int = geometry.in_features
        self.out_features: int = geometry.features
        self.kernel_size: tuple[int, int] = geometry.kernel_size
        self.strides: tuple[int, int] = geometry.strides
        self.padding: str | arguments.Pads = geometry.padding
        self.kernel_dilation: tuple[int, int] = geometry.dilation
        self.feature_group_count: int = geometry.groups
        self.use_bias: bool = geometry.use_bias
        self.dtype: Dtype | None = options.dtype
        self.param_dtype: Dtype = options.param_dtype
        self.precision = precision
        self.implementation: Implementation = read_implementation(implementation)
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
            predictor = make_offset_conv(conv, geometry, prediction, options)
        self.offset_conv: Any = nnx.data(None) if predictor is None else predictor

    def _run(
        self, inputs: Any, offset_inputs: Any, flow: Any, offset: Any, mask: Any,
        only_samples: bool = False,
    ) -> Any:  # fmt: skip
        inputs = as_images("inputs", inputs, self.in_features)
        samples = make_samples(
            *(self.prediction, self.offset_conv, self.offset_features, inputs),
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
