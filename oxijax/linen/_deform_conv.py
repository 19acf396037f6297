"""Deformable convolution as a Flax Linen layer."""

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
from oxijax._layers.convolution import conv_general_dilated, over_batches

__all__ = ["DeformConv"]

_ZEROS = nn.initializers.zeros_init()


@explain_keywords
class DeformConv(nn.Module):
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
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = _ZEROS
    promote_dtype: Callable[..., list[jax.Array]] = promote_dtype
    offset_groups: int = 1
    use_mask: bool = True
    offset_dtype: Dtype = jnp.float32
    predictor: Callable[[jax.Array], jax.Array] | str | None = "conv"
    mask_scale: int = 2
    max_residue: float | None = None
    max_offset: float | None = None
    implementation: ImplementationLike = None

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
          inputs: [..., H, W, C]: any number of batch dimensions, also none.
          offset_inputs: [..., H, W, features], what the predictor reads in place of inputs.
          flow: [..., Ho, Wo, 2*F] in pixels, added to what is predicted: F pairs (x, y), as optical
            flow has them, each for one F-th of the offset groups.
          offset: [..., Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, in place of what is
            predicted.
          mask: [..., Ho, Wo, offset_groups * Kh * Kw], with offset; None weighs samples with 1.

        Returns:
          [..., Ho, Wo, features].

        Raises:
          ValueError: a value of an argument that does not fit, by name, an array of another shape,
            or inputs too small for the kernel; arguments that exclude each other, or the
            predictor's output, if they don't fit.
          TypeError: an argument of the wrong type or dtype, by name.
        """
        return self._run(inputs, offset_inputs, flow, offset, mask)

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
          TypeError: an argument of the wrong type or dtype, by name.
        """
        return self._run(inputs, offset_inputs, flow, None, None, only_offsets=True)

    @nn.compact  # one method for both, since a module has one
    def _run(
        self,
        inputs: Any,
        offset_inputs: Any,
        flow: Any,
        offset: Any,
        mask: Any,
        only_offsets: bool = False,
    ) -> Any:
        inputs = layers.read_inputs(inputs)
        groups, in_features, features = layers.read_divisor(
            "feature_group_count",
            self.feature_group_count,
            in_features=inputs.shape[-1],
            features=self.features,
        )
        offset_groups, _ = layers.read_divisor(
            "offset_groups", self.offset_groups, in_features=in_features
        )
        use_bias = arguments.read_bool("use_bias", self.use_bias)
        if self.dtype is not None:
            arguments.read_float_dtype("dtype", self.dtype)
        param_dtype = arguments.read_float_dtype("param_dtype", self.param_dtype)
        arguments.read_precision(self.precision)
        arguments.check_callable("kernel_init", self.kernel_init)
        arguments.check_callable("bias_init", self.bias_init)
        arguments.check_callable("promote_dtype", self.promote_dtype)
        layers.check_predictor(self.predictor)
        kernel_size = arguments.read_pair("kernel_size", self.kernel_size)
        strides = arguments.read_pair("strides", 1 if self.strides is None else self.strides)
        padding = layers.read_padding(self.padding)
        dilation = arguments.read_pair(
            "kernel_dilation", 1 if self.kernel_dilation is None else self.kernel_dilation
        )
        offset_dtype = arguments.read_float_dtype("offset_dtype", self.offset_dtype)
        prediction = layers.Prediction.read(
            *(kernel_size, offset_groups, self.use_mask),
            *(self.mask_scale, self.max_residue, self.max_offset),
        )

        def predict() -> Any:
            predictor: Any = self.predictor
            source, wanted = inputs, None
            if predictor == "conv":
                wanted = in_features
                predictor = nn.Conv(
                    prediction.channels,
                    kernel_size,
                    strides,
                    padding,
                    kernel_dilation=dilation,
                    dtype=offset_dtype,
                    param_dtype=param_dtype,
                    precision=self.precision,
                    kernel_init=_ZEROS,
                    bias_init=_ZEROS,
                    conv_general_dilated=conv_general_dilated,
                    name="offset_conv",
                )
            if offset_inputs is not None:
                source = layers.read_inputs(offset_inputs, wanted, name="offset_inputs")
            return predictor(source) if wanted is None else over_batches(predictor)(source)

        kernel = bias = None
        if not only_offsets:
            kernel_shape = (*kernel_size, in_features // groups, features)
            kernel = self.param("kernel", self.kernel_init, kernel_shape, param_dtype)
            if use_bias:
                bias = self.param("bias", self.bias_init, (features,), param_dtype)
        offset, mask = prediction.samples(
            None if self.predictor is None else predict,
            *(offset_inputs, flow, offset, mask, offset_dtype),
        )
        if only_offsets:
            return offset, mask
        inputs, kernel, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return layers.deform_conv_nhwc(
            *(inputs, offset, kernel, mask, bias),
            strides=strides,
            padding=padding,
            dilation=dilation,
            precision=self.precision,
            implementation=self.implementation,
        )
