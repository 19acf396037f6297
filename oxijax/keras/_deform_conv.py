"""Deformable convolution as a Keras layer."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras import ops

from oxijax._convolution import PaddingLike, parse_padding, parse_pair
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import Implementation, ImplementationLike, parse_implementation
from oxijax._core.arguments.precision import parse_precision
from oxijax._layers import deform_conv as layers
from oxijax._layers.arguments import as_images
from oxijax._layers.convolution import conv_general_dilated
from oxijax.keras._sublayers import ExplainedKeywords, offset_policy

__all__ = ["DeformConv2D"]


@keras.saving.register_keras_serializable(package="oxijax")
class DeformConv2D(ExplainedKeywords, keras.layers.Conv2D):
    """Deformable convolution that predicts its own offsets and modulation.

    `offset_conv`, a plain convolution of the same geometry, predicts from the inputs where each tap
    samples and, with `use_mask`, how much the sample weighs. Its channels are those of the offset
    of `oxijax.deform_conv`, then a logit for each of the mask. It starts with zeros and the mask is
    `2 * sigmoid(logit)`, so that a new layer computes what `keras.layers.Conv2D` does with the same
    `kernel` and `bias`; the paper has `sigmoid(logit)`: `mask_scale=1`.

    Offsets and masks are predicted in float32 where the dtype policy has half precision, which
    would misplace samples.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.keras
      >>> layer = oxijax.keras.DeformConv2D(16, 3, strides=2, padding="same")
      >>> layer(jnp.ones((2, 32, 32, 8))).shape
      (2, 16, 16, 16)

    Attributes:
      kernel: variable [Kh, Kw, channels / groups, filters].
      bias: variable [filters], or None.
      offset_conv: the predictor, a `keras.layers.Conv2D`, or None.

    Arguments that are not below mean what they do in `keras.layers.Conv2D`, from which this class
    derives.

    Args:
      padding: "valid", "same", an int, or for height and width an int or a pair (before, after)
        each.
      offset_groups: number of groups of input channels that share offsets and modulation.
      use_mask: True for modulation (DCNv2), False for offsets only (DCNv1).
      predictor: "conv", or None for a layer whose offsets are given with each call.
      mask_scale: factor of the sigmoid of a logit, 1 or 2.
      max_residue: offsets are this times the tanh of what is predicted, in pixels, before `flow` is
        added; None for what is predicted.
      max_offset: bound of the absolute values of offsets, with `flow`, in pixels, or None.
      precision: as in `jax.lax`.
      implementation: as in `oxijax.deform_conv`.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results", 2019.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: PaddingLike = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = (1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        offset_groups: int = 1,
        use_mask: bool = True,
        predictor: str | None = "conv",
        mask_scale: int = 2,
        max_residue: float | None = None,
        max_offset: float | None = None,
        precision: str | None = None,
        implementation: ImplementationLike = None,
        **kwargs: Any,
    ):
        self.offset_groups: int = checks.parse_int("offset_groups", offset_groups)
        self.use_mask: bool = use_mask
        self.predictor: str | None = predictor
        self.mask_scale: int = mask_scale
        self.max_residue: float | None = max_residue
        self.max_offset: float | None = max_offset
        parse_precision(precision)
        self.precision = precision
        self.implementation: Implementation = parse_implementation(implementation)
        super().__init__(
            *(filters, kernel_size, strides, "valid", data_format),
            1,  # Keras has either strides or a dilation
            *(checks.parse_int("groups", groups), activation, use_bias),
            *(kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer),
            *(activity_regularizer, kernel_constraint, bias_constraint),
            **kwargs,
        )
        self.dilation_rate = parse_pair("dilation_rate", dilation_rate)
        self.padding: PaddingLike = padding
        geometry, _ = self._parse(self.groups * self.offset_groups)
        self.padding = padding.lower() if isinstance(padding, str) else geometry.padding
        self.offset_conv: keras.layers.Conv2D | None = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        channels = input_shape[-1 if self.data_format == "channels_last" else 1]
        geometry, prediction = self._parse(checks.parse_int("inputs' number of channels", channels))
        super().build(input_shape)
        if self.predictor is not None:
            self._tracker.unlock()
            self.offset_conv = _OffsetConv(geometry, prediction, offset_policy(self))
            self.offset_conv.build((None, None, None, geometry.in_features))
            self._tracker.lock()
        self.prediction: layers.Prediction = prediction

    def call(
        self,
        inputs: Any,
        offset_inputs: Any = None,
        flow: Any = None,
        offset: Any = None,
        modulation: Any = None,
    ) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: images [N, H, W, C]; [N, C, H, W] with data_format="channels_first", which holds
            for the dimensions of all arguments.
          offset_inputs: [N, H, W, C], what the predictor reads in place of inputs.
          flow: [N, Ho, Wo, 2*F] in pixels, added to what is predicted: F pairs (x, y), as optical
            flow has them, each for one F-th of the offset groups.
          offset: [N, Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, in place of what is predicted.
          modulation: [N, Ho, Wo, offset_groups * Kh * Kw], with offset: the mask of
            `oxijax.deform_conv`; None weighs samples with 1.

        Returns:
          Images [N, Ho, Wo, filters].
        """
        arrays = (inputs, offset_inputs, flow, offset, modulation)
        inputs, *others = (None if a is None else self._channels_last(a) for a in arrays)
        samples = self._samples(inputs, *others)
        cast, dtype = keras.ops.cast, self.compute_dtype
        y = layers.deform_conv_nhwc(
            cast(inputs, dtype),
            samples,
            cast(self.kernel, dtype),
            None if self.bias is None else cast(self.bias, dtype),
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation_rate,
            precision=self.precision,
            implementation=self.implementation,
        )
        if self.activation is not None:
            y = self.activation(y)
        return y if self.data_format == "channels_last" else jnp.moveaxis(y, -1, 1)

    def offsets(
        self, inputs: Any, offset_inputs: Any = None, flow: Any = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Tells where a call samples and how much the samples weigh, to draw or watch both.

        Arguments and errors are those of a call.

        Returns:
          offset [N, Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, and mask
          [N, Ho, Wo, offset_groups * Kh * Kw] or None: those of `oxijax.deform_conv`, channels
          last.
        """
        arrays = (inputs, offset_inputs, flow)
        arrays = (None if a is None else self._channels_last(a) for a in arrays)
        return self._samples(*arrays, None, None)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        first = self.data_format == "channels_first"
        batch, *sizes = (input_shape[i] for i in ((0, 2, 3) if first else (0, 1, 2)))
        known = [1 if size is None else size for size in sizes]
        geometry = (self.kernel_size, self.strides, self.dilation_rate)
        pads = parse_padding(self.padding, (known[0], known[1]), *geometry)
        y = [
            None if size is None else (size + sum(pad) - d * (k - 1) - 1) // s + 1
            for size, pad, k, s, d in zip(sizes, pads, *geometry, strict=True)
        ]
        if any(size is not None and size < 1 for size in y):
            raise ValueError(
                f"inputs must have pixels for a kernel of {self.kernel_size}, got {input_shape}"
            )
        return (batch, self.filters, *y) if first else (batch, *y, self.filters)

    def get_config(self) -> dict[str, Any]:
        own = (
            "padding", "offset_groups", "use_mask", "predictor", "mask_scale", "max_residue",
            "max_offset", "precision", "implementation",
        )  # fmt: skip
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}

    def _parse(self, channels: int) -> tuple[layers.Geometry, layers.Prediction]:
        geometry = layers.Geometry.parse(
            *(("inputs' channels", channels), ("filters", self.filters), self.kernel_size),
            *(("strides", self.strides), self.padding, ("dilation_rate", self.dilation_rate)),
            *(("groups", self.groups), self.use_bias),
        )
        if self.predictor not in ("conv", None):
            raise ValueError(
                f"predictor must be 'conv' or None, got {checks.shown(self.predictor)}"
            )
        prediction = layers.Prediction.parse(
            *(geometry, "inputs' channels", self.offset_groups, self.use_mask),
            *(self.predictor, self.mask_scale, self.max_residue, self.max_offset),
        )
        return geometry, prediction

    def _channels_last(self, array: Any) -> jax.Array:
        array = ops.convert_to_tensor(array)
        if self.data_format == "channels_first" and array.ndim == 4:
            return jnp.moveaxis(array, 1, -1)
        return array

    def _samples(self, inputs: Any, *others: Any) -> tuple[jax.Array, jax.Array | None]:
        channels = self.kernel.shape[2] * self.groups
        inputs = as_images("inputs", inputs, channels, "channels")
        return self.prediction.samples_of_images(
            *(self.offset_conv, channels, inputs, *others, offset_policy(self).compute_dtype)
        )


class _OffsetConv(keras.layers.Conv2D):
    """The predictor of a deformable convolution, with any padding that this has."""

    def __init__(self, geometry: layers.Geometry, prediction: layers.Prediction, dtype: Any):
        super().__init__(
            *(prediction.channels, geometry.kernel_size),
            data_format="channels_last",
            kernel_initializer="zeros",
            dtype=dtype,
            name="offset_conv",
        )
        self._geometry = geometry

    def convolution_op(self, inputs: Any, kernel: Any) -> jax.Array:
        geometry = self._geometry
        return conv_general_dilated(
            *(inputs, ops.convert_to_tensor(kernel), geometry.strides, geometry.padding),
            rhs_dilation=geometry.dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def compute_output_shape(self, input_shape: Any) -> Any:  # of the valid padding it has not
        return (*input_shape[:3], self.filters)
