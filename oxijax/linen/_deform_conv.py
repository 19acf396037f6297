"""Deformable convolution as a Flax Linen layer."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._convolution import PaddingLike
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._layers import deform_conv as layers
from oxijax._layers.arguments import as_images
from oxijax._layers.flax import LECUN, ZEROS, DeformConvCalls, Options
from oxijax.linen._sublayers import Layer

__all__ = ["DeformConv"]


@explain_keywords
class DeformConv(DeformConvCalls, Layer):
    """Deformable convolution that predicts its own offsets and modulation.

    `offset_conv`, a plain convolution of the same geometry, predicts from the inputs where each tap
    samples and, with `use_mask`, how much the sample weighs. Its channels are those of the offset
    of `oxijax.deform_conv`, then a logit for each of the mask. It starts with zeros and the mask is
    `2 * sigmoid(logit)`, so that a new layer computes what `nn.Conv` does with the same `kernel`
    and `bias`; the paper has `sigmoid(logit)`: `mask_scale=1`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.linen
      >>> layer = oxijax.linen.DeformConv(16, kernel_size=(3, 3), strides=2)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 32, 32, 8)))
      >>> y.shape
      (2, 16, 16, 16)

    Variables:
      kernel: [Kh, Kw, C / feature_group_count, features].
      bias: [features].
      offset_conv: `nn.Conv`; or there are those of the module `predictor`.

    Arguments that are not below mean what they do in `nn.Conv`. All are checked when the layer is
    called.

    Attributes:
      kernel_size: height and width of the kernel; an int is a square (in `nn.Conv` it is a
        convolution over one dimension).
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for height and width an int or a pair
        (before, after) each.
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

    Source: Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results", 2019.
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = 1
    padding: PaddingLike = "SAME"
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
        checks.check_callable("bias_init", self.bias_init)
        checks.check_callable("promote_dtype", self.promote_dtype)
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
            predictor = options.offset_conv(conv, geometry, prediction)
            predictor_features = geometry.in_features
        samples = prediction.samples_of_images(
            *(predictor, predictor_features, inputs),
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
