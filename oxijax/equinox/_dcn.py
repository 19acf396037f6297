"""Deformable convolution v3 and v4 as Equinox layers."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from oxijax._core import arguments as arguments
from oxijax._core.implementation import ImplementationLike
from oxijax._core.keywords import explain_keywords
from oxijax._layers.window import WindowV3, WindowV4, exact_gelu
from oxijax.equinox._sublayers import Sublayers, channels_last

__all__ = ["DCNv3", "DCNv4"]


class _DCN(eqx.Module):
    window: Any = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Applies the layer to one image; use `jax.vmap` for batches.

        Args:
          x: [C, H, W], in the parameters' dtype.
          key: ignored, as in `equinox.nn.Conv2d`.

        Returns:
          [C, H, W].

        Raises:
          ValueError: x of another shape.
          TypeError: x of another dtype.
        """
        del key
        x, channels = arguments.to_array("x", x), self.window.features
        if x.ndim != 3 or x.shape[0] != channels:
            raise ValueError(
                f"x must have shape (channels = {channels}, height, width), got {x.shape}"
            )
        arguments.check_same_dtype("x", x, "the parameters", jax.tree.leaves(self)[0])
        sublayers = channels_last(self, self.offset_dtype, dtype=x.dtype)
        return self.window(x.transpose(1, 2, 0), sublayers).transpose(2, 0, 1)


@explain_keywords
class DCNv3(_DCN):
    """Deformable convolution v3 between two linear layers, as InternImage has it.

    A depthwise convolution, a normalization and an activation make features, from which a linear
    layer predicts where each tap of each group samples and another how much the sample weighs, of
    which the softmax over the taps is taken: see `oxijax.dcnv3`. Both start with zeros. Height and
    width stay as they are.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.equinox
      >>> layer = oxijax.equinox.DCNv3(32, groups=4, key=jax.random.key(0))
      >>> layer(jnp.ones((32, 16, 16))).shape
      (32, 16, 16)

    Attributes:
      dw_conv: `equinox.nn.Conv2d`, depthwise.
      dw_norm: `equinox.nn.LayerNorm`.
      offset: `equinox.nn.Linear` to groups * K * 2 features for K taps.
      mask: `equinox.nn.Linear` to groups * K features.
      input_proj: `equinox.nn.Linear`.
      output_proj: `equinox.nn.Linear`.
      center_scale: `equinox.nn.Linear` to a feature a group, or None.
    """

    dw_conv: eqx.nn.Conv2d
    dw_norm: eqx.nn.LayerNorm
    offset: eqx.nn.Linear
    mask: eqx.nn.Linear
    input_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    center_scale: eqx.nn.Linear | None
    activation: Callable[[jax.Array], jax.Array]

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int] = 3,
        dilation: int | Sequence[int] = 1,
        *,
        groups: int = 4,
        dw_kernel_size: int | Sequence[int] | None = None,
        offset_scale: float = 1.0,
        activation: Callable[[jax.Array], jax.Array] = exact_gelu,
        center_feature_scale: bool = False,
        remove_center: bool = False,
        dtype: Any = None,
        key: jax.Array,
        offset_dtype: Any = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        """Makes the layer.

        Args:
          channels: number of input and output channels, C.
          kernel_size: an int, or one for height and one for width.
          dilation: an int, or one for height and one for width.
          groups: divides channels.
          dw_kernel_size: of the depthwise convolution; None is kernel_size.
          offset_scale: of offsets and the window itself.
          activation: of the predictor's features; GELU by default.
          center_feature_scale: blend each group with the input's projection, by a predicted share.
          remove_center: leave out the tap in the middle.
          dtype: of all parameters; None is JAX's default floating dtype.
          key: random key.
          offset_dtype: in which offsets and masks are predicted, whatever the dtype of the input
            and the parameters is. Half precision misplaces samples; for float64 throughout, give
            float64.
          implementation: as in `oxijax.dcnv3`.

        Raises:
          ValueError: a value that does not fit, by name.
          TypeError: an argument of the wrong type or dtype, by name.

        Source: Wang et al., "InternImage: Exploring Large-Scale Vision Foundation Models with
        Deformable Convolutions", 2023.
        """
        self.window = window = WindowV3.parse(
            *(("channels", channels), kernel_size, ("dilation", dilation), groups, dw_kernel_size),
            *(offset_scale, center_feature_scale, remove_center, implementation),
        )
        make = Sublayers.parse(window.features, dtype, key)
        self.offset_dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)
        arguments.check_callable("activation", activation)
        dw_key, input_key, output_key = jax.random.split(key, 3)
        self.activation = activation
        self.dw_conv = make.depthwise(window.depthwise_size, dw_key)
        self.dw_norm = make.normalization()
        self.offset = make.predictor(window.offset_features)
        self.mask = make.predictor(window.mask_features)
        self.input_proj = make.projection(input_key)
        self.output_proj = make.projection(output_key)
        self.center_scale = make.predictor(window.groups) if window.has_center_scale else None


@explain_keywords
class DCNv4(_DCN):
    """Deformable convolution v4 between two linear layers, as FlashInternImage has it.

    A linear layer, after a depthwise convolution or not, predicts where each tap of each group
    samples and how much the sample weighs, which has no bounds: see `oxijax.dcnv4`. It starts with
    zeros, and so does the layer's result. Height and width stay as they are.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.equinox
      >>> layer = oxijax.equinox.DCNv4(32, groups=2, dw_kernel_size=3, key=jax.random.key(0))
      >>> layer(jnp.ones((32, 16, 16))).shape
      (32, 16, 16)

    Attributes:
      offset_mask_dw: `equinox.nn.Conv2d`, depthwise, or None.
      offset_mask: `equinox.nn.Linear` to 3 * groups * K features for K taps, filled up to a
        multiple of 8.
      value_proj: `equinox.nn.Linear`, or None.
      output_proj: `equinox.nn.Linear`, or None.
      center_scale: `equinox.nn.Linear` to a feature a group, or None.
    """

    offset_mask_dw: eqx.nn.Conv2d | None
    offset_mask: eqx.nn.Linear
    value_proj: eqx.nn.Linear | None
    output_proj: eqx.nn.Linear | None
    center_scale: eqx.nn.Linear | None

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int] = 3,
        dilation: int | Sequence[int] = 1,
        *,
        groups: int = 4,
        dw_kernel_size: int | Sequence[int] | None = None,
        offset_scale: float = 1.0,
        center_feature_scale: bool = False,
        remove_center: bool = False,
        output_bias: bool = True,
        without_pointwise: bool = False,
        dtype: Any = None,
        key: jax.Array,
        offset_dtype: Any = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        """Makes the layer.

        Args:
          channels: number of input and output channels, C.
          kernel_size: an int, or one for height and one for width.
          dilation: an int, or one for height and one for width.
          groups: divides channels.
          dw_kernel_size: of the depthwise convolution; None for none.
          offset_scale: of offsets and the window itself.
          center_feature_scale: blend each group with the values, by a share predicted from the
            sums.
          remove_center: leave out the tap in the middle.
          output_bias: whether output_proj has a bias.
          without_pointwise: leave out value_proj and output_proj.
          dtype: of all parameters; None is JAX's default floating dtype.
          key: random key.
          offset_dtype: in which offsets and masks are predicted, whatever the dtype of the input
            and the parameters is. Half precision misplaces samples; for float64 throughout, give
            float64.
          implementation: as in `oxijax.dcnv4`.

        Raises:
          ValueError: a value that does not fit, by name.
          TypeError: an argument of the wrong type or dtype, by name.

        Source: Xiong et al., "Efficient Deformable ConvNets: Rethinking Dynamic and Sparse Operator
        for Vision Applications", 2024.
        """
        self.window = window = WindowV4.parse(
            *(("channels", channels), kernel_size, ("dilation", dilation), groups, dw_kernel_size),
            *(offset_scale, center_feature_scale, remove_center, implementation),
        )
        make = Sublayers.parse(window.features, dtype, key)
        self.offset_dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)
        output_bias = arguments.read_bool("output_bias", output_bias)
        without_pointwise = arguments.read_bool("without_pointwise", without_pointwise)
        dw_key, value_key, output_key = jax.random.split(key, 3)
        size = window.dw_kernel_size
        self.offset_mask_dw = make.depthwise(size, dw_key) if size else None
        self.offset_mask = make.predictor(window.packed_features)
        self.value_proj = None if without_pointwise else make.projection(value_key)
        self.output_proj = None if without_pointwise else make.projection(output_key, output_bias)
        self.center_scale = make.predictor(window.groups) if window.has_center_scale else None
