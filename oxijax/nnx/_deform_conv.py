"""Deformable convolution as a Flax NNX layer."""

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
from oxijax._layers.convolution import conv_general_dilated, over_batches
from oxijax.nnx._parts import check_rngs

__all__ = ["DeformConv"]

_LECUN, _ZEROS = nnx.initializers.lecun_normal(), nnx.initializers.zeros_init()


@explain_keywords
class DeformConv(nnx.Module):
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
        kernel_init: Initializer = _LECUN,
        bias_init: Initializer = _ZEROS,
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
        feature_group_count, in_features, out_features = layers.read_divisor(
            "feature_group_count",
            feature_group_count,
            in_features=in_features,
            out_features=out_features,
        )
        offset_groups, _ = layers.read_divisor(
            "offset_groups", offset_groups, in_features=in_features
        )
        use_bias = arguments.read_bool("use_bias", use_bias)
        if dtype is not None:
            dtype = arguments.read_float_dtype("dtype", dtype)
        param_dtype = arguments.read_float_dtype("param_dtype", param_dtype)
        arguments.read_precision(precision)
        arguments.check_callable("kernel_init", kernel_init)
        arguments.check_callable("bias_init", bias_init)
        arguments.check_callable("promote_dtype", promote_dtype)
        arguments.check_keywords("kernel_metadata", kernel_metadata)
        arguments.check_keywords("bias_metadata", bias_metadata)
        check_rngs(rngs)
        layers.check_predictor(predictor)
        self.in_features = in_features
        self.out_features = out_features
        self.kernel_size: tuple[int, int] = arguments.read_pair("kernel_size", kernel_size)
        self.strides: tuple[int, int] = arguments.read_pair(
            "strides", 1 if strides is None else strides
        )
        self.padding: str | arguments.Pads = layers.read_padding(padding)
        self.kernel_dilation: tuple[int, int] = arguments.read_pair(
            "kernel_dilation", 1 if kernel_dilation is None else kernel_dilation
        )
        self.feature_group_count = feature_group_count
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.implementation: Implementation = read_implementation(implementation)
        self.promote_dtype = promote_dtype
        self.offset_groups = offset_groups
        self.prediction: layers.Prediction = layers.Prediction.read(
            *(self.kernel_size, offset_groups, use_mask, mask_scale, max_residue, max_offset)
        )
        self.use_mask: bool = self.prediction.use_mask
        self.mask_scale: int = self.prediction.mask_scale
        self.offset_dtype: jnp.dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)

        kernel_shape = (*self.kernel_size, in_features // feature_group_count, out_features)
        self.kernel: nnx.Param[jax.Array] = nnx.Param(
            kernel_init(rngs.params(), kernel_shape, param_dtype), **kernel_metadata
        )
        self.bias: nnx.Param[jax.Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(
                bias_init(rngs.params(), (out_features,), param_dtype), **bias_metadata
            )
        self.offset_features: int | None = in_features if predictor == "conv" else None
        if predictor == "conv":
            predictor = nnx.Conv(
                in_features,
                self.prediction.channels,
                self.kernel_size,
                self.strides,
                padding=self.padding,
                kernel_dilation=self.kernel_dilation,
                dtype=self.offset_dtype,
                param_dtype=param_dtype,
                precision=precision,
                kernel_init=_ZEROS,
                bias_init=_ZEROS,
                conv_general_dilated=conv_general_dilated,
                # Zeros need no keys: all other layers start as they do with `nnx.Conv` here.
                rngs=nnx.Rngs(0),
            )
        self.offset_conv: Any = nnx.data(None) if predictor is None else predictor

    def __call__(
        self,
        inputs: jax.Array,
        offset_inputs: jax.Array | None = None,
        *,
        flow: jax.Array | None = None,
        offset: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: [..., H, W, in_features]: any number of batch dimensions, also none.
          offset_inputs: [..., H, W, features], what the predictor reads in place of inputs.
          flow: [..., Ho, Wo, 2*F] in pixels, added to what is predicted: F pairs (x, y), as optical
            flow has them, each for one F-th of the offset groups.
          offset: [..., Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, in place of what is
            predicted.
          mask: [..., Ho, Wo, offset_groups * Kh * Kw], with offset; None weighs samples with 1.

        Returns:
          [..., Ho, Wo, out_features].

        Raises:
          ValueError: an array of another shape, or inputs too small for the kernel; arguments that
            exclude each other, or the predictor's output, if they don't fit.
          TypeError: an argument that is no array, or not real.
        """
        inputs = layers.read_inputs(inputs, self.in_features)
        offset, mask = self._samples(inputs, offset_inputs, flow, offset, mask)
        bias = None if self.bias is None else self.bias[...]
        inputs, kernel, bias = self.promote_dtype(
            (inputs, self.kernel[...], bias), dtype=self.dtype
        )
        return layers.deform_conv_nhwc(
            *(inputs, offset, kernel, mask, bias),
            strides=self.strides,
            padding=self.padding,
            dilation=self.kernel_dilation,
            precision=self.precision,
            implementation=self.implementation,
        )

    def offsets(
        self,
        inputs: jax.Array,
        offset_inputs: jax.Array | None = None,
        *,
        flow: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Tells where the layer samples and how much the samples weigh, to draw or watch both.

        Args:
          inputs: of a call.
          offset_inputs: of a call.
          flow: of a call.

        Returns:
          offset [..., Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, and mask
          [..., Ho, Wo, offset_groups * Kh * Kw] or None: those of `oxijax.deform_conv`.

        Raises:
          ValueError: an array of another shape, or a layer without a predictor.
          TypeError: an argument that is no array, or not real.
        """
        inputs = layers.read_inputs(inputs, self.in_features)
        return self._samples(inputs, offset_inputs, flow)

    def _samples(
        self, inputs: jax.Array, offset_inputs: Any, flow: Any, offset: Any = None, mask: Any = None
    ) -> tuple[jax.Array, jax.Array | None]:
        def predict() -> jax.Array:
            features, source = self.offset_features, inputs
            if offset_inputs is not None:
                source = layers.read_inputs(offset_inputs, features, name="offset_inputs")
            predictor = self.offset_conv
            return predictor(source) if features is None else over_batches(predictor)(source)

        predictor = None if self.offset_conv is None else predict
        return self.prediction.samples(
            *(predictor, offset_inputs, flow, offset, mask, self.offset_dtype)
        )
