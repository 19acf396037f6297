"""Deformable convolution as an Equinox layer."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from oxijax._convolution import PaddingLike, Pads
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import (
    Implementation,
    ImplementationLike,
    parse_implementation,
)
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._deform_conv import deform_conv
from oxijax._layers import deform_conv as layers
from oxijax.equinox._sublayers import as_image, check_key, convolve, in_dtype

__all__ = ["DeformConv"]


@explain_keywords
class DeformConv(eqx.Module):
    """Deformable convolution that predicts its own offsets and modulation.

    `offset_conv`, a plain convolution of the same geometry, predicts from the input where each tap
    samples and, with `use_mask`, how much the sample weighs. Its channels are those of the offset
    of `oxijax.deform_conv`, then a logit for each of the mask. It starts with zeros and the mask is
    `2 * sigmoid(logit)`, so that a new layer computes what `equinox.nn.Conv2d` does with the same
    `weight` and `bias`; the paper has `sigmoid(logit)`: `mask_scale=1`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.equinox
      >>> layer = oxijax.equinox.DeformConv(8, 16, 3, stride=2, padding=1, key=jax.random.key(0))
      >>> jax.vmap(layer)(jnp.ones((2, 8, 32, 32))).shape
      (2, 16, 16, 16)

    Attributes:
      weight: [out_channels, in_channels / groups, Kh, Kw].
      bias: [out_channels, 1, 1], or None.
      offset_conv: the predictor: an `equinox.nn.Conv2d`, the module that was given, or None.

    Arguments that are not below mean what they do in `equinox.nn.Conv2d`.

    Args:
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for height and width an int or a pair
        (before, after) each.
      padding_mode: "ZEROS": deformable convolution reads 0 outside the image.
      key: random key of `weight` and `bias`, which are those of `equinox.nn.Conv2d`.
      offset_groups: number of groups of input channels that share offsets and modulation.
      use_mask: True for modulation (DCNv2), False for offsets only (DCNv1).
      offset_dtype: dtype of predicted offsets and masks, whatever that of parameters is: half
        precision misplaces samples. For float64 throughout, give float64.
      predictor: "conv", a module or function that makes the predictor's output of x, or None for a
        layer whose offsets are given with each call.
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

    weight: jax.Array
    bias: jax.Array | None
    offset_conv: Any
    in_channels: int = eqx.field(static=True)
    out_channels: int = eqx.field(static=True)
    kernel_size: tuple[int, int] = eqx.field(static=True)
    stride: tuple[int, int] = eqx.field(static=True)
    padding: str | Pads = eqx.field(static=True)
    dilation: tuple[int, int] = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)
    padding_mode: str = eqx.field(static=True)
    offset_groups: int = eqx.field(static=True)
    use_mask: bool = eqx.field(static=True)
    mask_scale: int = eqx.field(static=True)
    prediction: layers.Prediction = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)
    offset_channels: int | None = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (1, 1),
        padding: PaddingLike = (0, 0),
        dilation: int | Sequence[int] = (1, 1),
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        key: jax.Array,
        offset_groups: int = 1,
        use_mask: bool = True,
        offset_dtype: Any = jnp.float32,
        predictor: Callable[[jax.Array], jax.Array] | str | None = "conv",
        mask_scale: int = 2,
        max_residue: float | None = None,
        max_offset: float | None = None,
        implementation: ImplementationLike = None,
    ):
        geometry = layers.Geometry.parse(
            *(("in_channels", in_channels), ("out_channels", out_channels), kernel_size),
            *(("stride", stride), padding, ("dilation", dilation), ("groups", groups), use_bias),
        )
        if dtype is not None:
            dtype = checks.parse_float_dtype("dtype", dtype)
        check_key(key)
        prediction = layers.Prediction.parse(
            *(geometry, "in_channels", offset_groups, use_mask),
            *(predictor, mask_scale, max_residue, max_offset),
        )
        mode = padding_mode.upper() if isinstance(padding_mode, str) else padding_mode
        checks.check_choice("padding_mode", mode, ("ZEROS",))
        self.in_channels = geometry.in_features
        self.out_channels = geometry.features
        self.kernel_size = geometry.kernel_size
        self.stride = geometry.strides
        self.padding = geometry.padding
        self.dilation = geometry.dilation
        self.groups = geometry.groups
        self.use_bias = geometry.use_bias
        self.padding_mode = mode
        self.implementation = parse_implementation(implementation)
        self.offset_groups = prediction.offset_groups
        self.prediction = prediction
        self.use_mask, self.mask_scale = prediction.use_mask, prediction.mask_scale
        self.offset_dtype = checks.parse_float_dtype("offset_dtype", offset_dtype)

        def conv2d(channels: int, groups: int, use_bias: bool) -> eqx.nn.Conv2d:
            return eqx.nn.Conv2d(
                *(self.in_channels, channels, self.kernel_size, self.stride, self.padding),
                *(self.dilation, groups, use_bias),
                dtype=dtype,
                key=key,
            )

        conv = conv2d(self.out_channels, self.groups, self.use_bias)
        self.weight, self.bias = conv.weight, conv.bias
        self.offset_channels = self.in_channels if predictor == "conv" else None
        if predictor == "conv":
            predictor = jax.tree.map(jnp.zeros_like, conv2d(prediction.channels, 1, True))
        self.offset_conv = predictor

    def __call__(
        self,
        x: jax.Array,
        offset_inputs: jax.Array | None = None,
        *,
        flow: jax.Array | None = None,
        offset: jax.Array | None = None,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Applies the layer to one image; use `jax.vmap` for batches.

        Args:
          x: [in_channels, H, W], in the parameters' dtype.
          offset_inputs: [channels, H, W], what the predictor reads in place of x.
          flow: [2*F, Ho, Wo] in pixels, added to what is predicted: F pairs (x, y), as optical flow
            has them, each for one F-th of the offset groups.
          offset: [offset_groups * Kh * Kw * 2, Ho, Wo] in pixels, in place of what is predicted.
          mask: [offset_groups * Kh * Kw, Ho, Wo], with offset; None weighs samples with 1.
          key: ignored, as in `equinox.nn.Conv2d`.

        Returns:
          [out_channels, Ho, Wo].

        Raises:
          ValueError: an array of another shape, or x too small for the kernel; arguments that
            exclude each other, or the predictor's output, if they don't fit.
          TypeError: x of another dtype, or an argument that is no array.
        """
        del key
        x = self._as_image(x)
        offset, mask = self._samples(x, offset_inputs, flow, offset, mask)
        y = deform_conv(
            x[None],
            offset[None],
            self.weight,
            None if mask is None else mask[None],
            None if self.bias is None else self.bias.reshape(self.out_channels),
            strides=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            data_format="NCHW",
            implementation=self.implementation,
        )
        return y[0]

    def offsets(
        self,
        x: jax.Array,
        offset_inputs: jax.Array | None = None,
        *,
        flow: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Tells where a call samples and how much the samples weigh, to draw or watch both.

        Arguments and errors are those of a call.

        Returns:
          offset [offset_groups * Kh * Kw * 2, Ho, Wo] in pixels, and mask
          [offset_groups * Kh * Kw, Ho, Wo] or None: those of `oxijax.deform_conv` in NCHW.
        """
        return self._samples(self._as_image(x), offset_inputs, flow)

    def _as_image(self, x: Any) -> jax.Array:
        x = as_image("x", x, self.in_channels, "in_channels")
        checks.check_same_dtype("x", x, "weight", self.weight)
        return x

    def _samples(
        self, x: jax.Array, offset_inputs: Any, flow: Any, offset: Any = None, mask: Any = None
    ) -> tuple[jax.Array, jax.Array | None]:
        def predict() -> Any:
            source = x
            if offset_inputs is not None:
                source = as_image("offset_inputs", offset_inputs, self.offset_channels, "channels")
            # Equinox users cast whole models to half precision; this must not reach the offsets.
            predictor = in_dtype(self.offset_conv, self.offset_dtype)
            source = source.astype(self.offset_dtype)
            is_conv = self.offset_channels is not None
            prediction = convolve(predictor, source[None])[0] if is_conv else predictor(source)
            is_image = getattr(prediction, "ndim", 0) == 3
            return jnp.moveaxis(prediction, 0, -1) if is_image else prediction

        def channels_last(name: str, array: Any) -> jax.Array | None:
            if array is None:
                return None
            return jnp.moveaxis(as_image(name, array, None, "channels"), 0, -1)

        offset, mask = self.prediction.samples(
            *(None if self.offset_conv is None else predict, offset_inputs),
            *(channels_last("flow", flow), channels_last("offset", offset)),
            *(channels_last("mask", mask), self.offset_dtype),
        )
        return jnp.moveaxis(offset, -1, 0), None if mask is None else jnp.moveaxis(mask, -1, 0)
