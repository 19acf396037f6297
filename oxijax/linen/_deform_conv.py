"""Deformable convolution as a Flax Linen layer."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core import arguments as arguments
from oxijax._core.implementation import ImplementationLike
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
from oxijax.linen._sublayers import Layer

__all__ = ["DeformConv"]


@explain_keywords
class DeformConv(DeformConvCalls, Layer):
    """A deformable convolution that predicts its own offsets and modulation.

    A plain convolution of the same geometry, `offset_conv`, predicts from the inputs where
    each tap samples and, with `use_mask`, how much the sample weighs: see
    `oxijax.deform_conv`. `offset_conv` starts with zeros, so that a new layer computes what
    `nn.Conv` does with the same `kernel` and `bias`. For that the modulation is
    `2 * sigmoid(logit)`, 1 at the start, where the paper has `sigmoid(logit)`: `mask_scale=1`.

    The predictor's channels are, for K = Kh*Kw taps and OG offset groups: (g*K + i*Kw + j)*2
    the vertical offset of tap (i, j) in group g, the next one the horizontal offset, and
    OG*K*2 + g*K + i*Kw + j the logit. With `use_mask=False` there are no logits.

    Parameters: `kernel` [Kh, Kw, C / feature_group_count, features], `bias` [features], and
    those of the `nn.Conv` `offset_conv` or of the module `predictor`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.linen
      >>> layer = oxijax.linen.DeformConv(16, kernel_size=(3, 3), strides=2)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 32, 32, 8)))
      >>> y.shape
      (2, 16, 16, 16)

    Attributes:
      features: number of output channels.
      kernel_size: height and width of the kernel; an int is a square (in `nn.Conv` it is a
        convolution over one dimension).
      strides: an int, or one for height and one for width.
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for height and width an int or a
        pair (before, after) each.
      kernel_dilation: an int, or one for height and one for width.
      feature_group_count: number of groups; it divides the input channels and features.
      use_bias: whether to add a bias.
      dtype: of the computation; None infers it from inputs, kernel and bias.
      param_dtype: of all parameters.
      precision: of the matrix products, as in `jax.lax`.
      kernel_init: initializer of `kernel`.
      bias_init: initializer of `bias`.
      promote_dtype: as in `nn.Conv`, brings inputs, kernel and bias to one dtype.
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

    Arguments are checked when the layer is called.

    Source: Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results", 2019.
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = 1
    padding: arguments.PaddingLike = "SAME"
    kernel_dilation: int | Sequence[int] | None = 1
    feature_group_count: int = 1
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = LECUN
    bias_init: Initializer = ZEROS
    promote_dtype: Callable[..., list[jax.Array]] = promote_dtype
    offset_groups: int = 1
    use_mask: bool = True
    offset_dtype: Dtype = jnp.float32
    predictor: Callable[[jax.Array], jax.Array] | str | None = "conv"
    mask_scale: int = 2
    max_residue: float | None = None
    max_offset: float | None = None
    implementation: ImplementationLike = None

    @nn.compact  # one method for both, since a module has one
    def _run(
        self, inputs: Any, offset_inputs: Any, flow: Any, offset: Any, mask: Any,
        only_samples: bool = False,
    ) -> Any:  # fmt: skip
        inputs = as_images("inputs", inputs)
        geometry = layers.Geometry.parse(
            *(("in_features", inputs.shape[-1]), ("features", self.features), self.kernel_size),
            *(("strides", 1 if self.strides is None else self.strides), self.padding),
            ("kernel_dilation", 1 if self.kernel_dilation is None else self.kernel_dilation),
            *(("feature_group_count", self.feature_group_count), self.use_bias),
        )
        options = Options.of(self)
        arguments.check_callable("bias_init", self.bias_init)
        arguments.check_callable("promote_dtype", self.promote_dtype)
        prediction = layers.Prediction.parse(
            *(geometry, "in_features", self.offset_groups, self.use_mask),
            *(self.predictor, self.mask_scale, self.max_residue, self.max_offset),
        )
        kernel = bias = None
        if not only_samples:
            in_group = geometry.in_features // geometry.groups
            shape = (*geometry.kernel_size, in_group, geometry.features)
            kernel = self.param("kernel", self.kernel_init, shape, options.param_dtype)
            if geometry.use_bias:
                bias = self.param("bias", self.bias_init, shape[-1:], options.param_dtype)
        predictor, predictor_features = self.predictor, None
        if predictor == "conv":
            conv = functools.partial(nn.Conv, name="offset_conv")
            predictor = make_offset_conv(conv, geometry, prediction, options)
            predictor_features = geometry.in_features
        samples = make_samples(
            *(prediction, predictor, predictor_features, inputs),
            *(offset_inputs, flow, offset, mask, options.offset_dtype),
        )
        if only_samples:
            return samples
        inputs, kernel, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return layers.deform_conv_nhwc(
            *(inputs, samples, kernel, bias),
            strides=geometry.strides,
            padding=geometry.padding,
            dilation=geometry.dilation,
            precision=self.precision,
            implementation=self.implementation,
        )
