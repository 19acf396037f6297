"""Deformable convolution as an Equinox layer."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from oxijax._core import arguments as arguments
from oxijax._deform_conv import deform_conv
from oxijax._layers import deform_conv as layers
from oxijax.equinox._parts import check_key

__all__ = ["DeformConv"]


class DeformConv(eqx.Module):
    """A deformable convolution that predicts its own offsets and modulation.

    A plain convolution of the same geometry, `offset_conv`, predicts from the input where
    each tap samples and, with `use_mask`, how much the sample weighs: see
    `oxijax.deform_conv`. `offset_conv` starts with zeros, so that a new layer computes what
    `equinox.nn.Conv2d` does with the same `weight` and `bias`, which it has for the same
    `key`. For that the modulation is `2 * sigmoid(logit)`, 1 at the start, where the paper
    has `sigmoid(logit)`: halve a `weight` that was trained with the latter.

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
      offset_conv: `equinox.nn.Conv2d` to offset_groups * Kh * Kw * 3 channels, with
        `use_mask=False` to offset_groups * Kh * Kw * 2.
    """

    weight: jax.Array
    bias: jax.Array | None
    offset_conv: eqx.nn.Conv2d
    in_channels: int = eqx.field(static=True)
    out_channels: int = eqx.field(static=True)
    kernel_size: tuple[int, int] = eqx.field(static=True)
    stride: tuple[int, int] = eqx.field(static=True)
    padding: str | arguments.Pads = eqx.field(static=True)
    dilation: tuple[int, int] = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)
    padding_mode: str = eqx.field(static=True)
    offset_groups: int = eqx.field(static=True)
    use_mask: bool = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (1, 1),
        padding: arguments.PaddingLike = (0, 0),
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
    ):
        """Makes the layer.

        Args:
          in_channels: number of input channels.
          out_channels: number of output channels.
          kernel_size: an int, or one for height and one for width.
          stride: an int, or one for height and one for width.
          padding: "SAME", "SAME_LOWER", "VALID", an int, or for height and width an int or a
            pair (before, after) each.
          dilation: an int, or one for height and one for width.
          groups: number of groups; it divides in_channels and out_channels.
          use_bias: whether to add a bias.
          padding_mode: "ZEROS": deformable convolution reads 0 outside the image.
          dtype: of all parameters; None is JAX's default floating dtype.
          key: random key for `weight` and `bias`.
          offset_groups: in how many groups input channels share offsets and modulation.
          use_mask: True for modulation (DCNv2), False for offsets only (DCNv1).
          offset_dtype: in which offsets and modulation are predicted, whatever the dtype of
            the input and the parameters is. Half precision misplaces samples; for float64
            throughout, give float64.

        Raises:
          ValueError: a value that does not fit, by name.
          TypeError: an argument of the wrong type or dtype, by name.

        Source: Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results", 2019.
        """
        groups, in_channels, out_channels = layers.read_divisor(
            "groups", groups, in_channels=in_channels, out_channels=out_channels
        )
        offset_groups, _ = layers.read_divisor(
            "offset_groups", offset_groups, in_channels=in_channels
        )
        use_bias = arguments.read_bool("use_bias", use_bias)
        use_mask = arguments.read_bool("use_mask", use_mask)
        if dtype is not None:
            dtype = arguments.read_float_dtype("dtype", dtype)
        check_key(key)
        mode = padding_mode.upper() if isinstance(padding_mode, str) else padding_mode
        arguments.check_choice("padding_mode", mode, ("ZEROS",))
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = arguments.read_pair("kernel_size", kernel_size)
        self.stride = arguments.read_pair("stride", stride)
        self.padding = layers.read_padding(padding)
        self.dilation = arguments.read_pair("dilation", dilation)
        self.groups = groups
        self.use_bias = use_bias
        self.padding_mode = mode
        self.offset_groups = offset_groups
        self.use_mask = use_mask
        self.offset_dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)

        def conv2d(channels: int, groups: int, use_bias: bool) -> eqx.nn.Conv2d:
            return eqx.nn.Conv2d(
                in_channels,
                channels,
                self.kernel_size,
                self.stride,
                self.padding,
                self.dilation,
                groups,
                use_bias,
                dtype=dtype,
                key=key,
            )

        conv = conv2d(out_channels, groups, use_bias)
        self.weight, self.bias = conv.weight, conv.bias
        channels = layers.predictor_channels(self.kernel_size, offset_groups, use_mask)
        self.offset_conv = jax.tree.map(jnp.zeros_like, conv2d(channels, 1, True))

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Applies the layer to one image; use `jax.vmap` for batches.

        Args:
          x: [in_channels, H, W], in the parameters' dtype.
          key: ignored, as in `equinox.nn.Conv2d`.

        Returns:
          [out_channels, Ho, Wo].

        Raises:
          ValueError: x of another shape, or too small for the kernel.
          TypeError: x of another dtype.
        """
        del key
        x = arguments.to_array("x", x)
        if x.ndim != 3 or x.shape[0] != self.in_channels:
            raise ValueError(
                f"x must have shape (in_channels = {self.in_channels}, height, width), "
                f"got {x.shape}"
            )
        arguments.check_same_dtype("x", x, "weight", self.weight)
        # Equinox users cast whole models to half precision; this must not reach the offsets.
        offset_conv = jax.tree.map(lambda p: p.astype(self.offset_dtype), self.offset_conv)
        prediction = offset_conv(x.astype(self.offset_dtype))[None]
        offset, mask = layers.split_prediction(prediction, self.use_mask, axis=1)
        y = deform_conv(
            x[None],
            offset,
            self.weight,
            mask,
            None if self.bias is None else self.bias.reshape(self.out_channels),
            strides=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            data_format="NCHW",
        )
        return y[0]
