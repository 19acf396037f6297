"""Layers of sampling operators for Keras."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import keras
from keras import ops

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike
from oxijax._layers.attention import Attention, Names
from oxijax._layers.window import WindowV3, WindowV4, exact_gelu
from oxijax.keras._sublayers import Layer, Sublayers

__all__ = ["DCNv3", "DCNv4", "MSDeformAttn"]

_NAMES = Names("features", "query", "value")
Shape = Sequence[int | None]


@keras.saving.register_keras_serializable(package="oxijax")
class MSDeformAttn(Layer):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights of
    samples there, of which the softmax over all levels and points is taken: see
    `oxijax.ms_deform_attn`. A new layer's heads look in directions of their own, point after point
    a pixel farther away, and weigh all points alike. Locations and weights are predicted in float32
    where the dtype policy has half precision, which would misplace samples.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.keras
      >>> layer = oxijax.keras.MSDeformAttn(64, num_levels=2)
      >>> queries, values = jnp.ones((1, 10, 64)), jnp.ones((1, 8 * 8 + 4 * 4, 64))
      >>> reference_points = jnp.full((1, 10, 2, 2), 0.5)
      >>> layer(queries, reference_points, values, spatial_shapes=((8, 8), (4, 4))).shape
      (1, 10, 64)

    Attributes:
      sampling_offsets: `keras.layers.Dense` to num_heads * points * dims features.
      attention_weights: `keras.layers.Dense` to num_heads * points features.
      value_proj: `keras.layers.Dense`, or None.
      output_proj: `keras.layers.Dense`, or None.

    Args:
      features: number of features of queries, of values and of the result.
      num_heads: number of heads, which divides features.
      num_levels: number of feature maps.
      num_points: number of points of a head in each level; an int, or one for each level.
      dims: number of dimensions of the feature maps: 1, 2 or 3.
      offset_scale: offsets from the middle of a reference box count in so many of its sizes,
        divided by the number of points.
      project: whether values and the result are projected; D-FINE and DEIMv2 do without.
      method: as in `oxijax.ms_deform_attn`.
      kernel_initializer: initializer of the kernels of projections.
      implementation: as in `oxijax.ms_deform_attn`.
      **kwargs: those of `keras.layers.Layer`.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
    2021.
    """

    def __init__(
        self,
        features: int,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int | Sequence[int] = 4,
        offset_scale: float = 0.5,
        project: bool = True,
        method: str = "bilinear",
        kernel_initializer: Any = "glorot_uniform",
        implementation: ImplementationLike = None,
        dims: int = 2,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.attention: Attention = Attention.parse(
            *(_NAMES, features, num_heads, num_levels, num_points),
            *(offset_scale, project, method, implementation, dims),
        )
        self.features, self.num_heads = self.attention.features, self.attention.heads
        self.num_levels = len(self.attention.points)
        self.num_points: int | tuple[int, ...] = (
            num_points if isinstance(num_points, int) else self.attention.points
        )
        self.offset_scale, self.project = self.attention.offset_scale, self.attention.project
        self.method, self.implementation = method, self.attention.implementation
        self.dims = self.attention.dims
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape: Shape | None = None) -> None:
        make = Sublayers(self, self.features)
        self.sampling_offsets: Any = make.predictor(
            *("sampling_offsets", self.attention.offset_features, self._init_offset_bias)
        )
        self.attention_weights: Any = make.predictor(
            "attention_weights", self.attention.weight_features
        )
        self.value_proj: Any = make.projection("value_proj") if self.project else None
        self.output_proj: Any = make.projection("output_proj") if self.project else None

    def call(
        self,
        query: Any,
        reference_points: Any,
        value: Any,
        spatial_shapes: Sequence[Sequence[int]] = (),
        padding_mask: Any = None,
    ) -> jax.Array:
        """Applies the layer.

        Args:
          query: [B, Q, features].
          reference_points: [B, Q, num_levels, 2], (x, y) from 0 to 1 in each level, or
            [B, Q, num_levels, 4], boxes (x, y, width, height) with (x, y) in the middle; a 1 in
            place of num_levels is for all. Offsets count in pixels of the level, or in offset_scale
            times a box divided by the number of points.
          value: [B, S, features], the pixels of all levels, row by row and level after level.
          spatial_shapes: height and width of each level, ints; (width,) or (depth, height, width)
            with dims 1 or 3, for which coordinates are (x) and (x, y, z), and boxes accordingly.
          padding_mask: [B, S], True where values count as zeros: the inverse of Hugging Face's
            attention_mask.

        Returns:
          [B, Q, features].
        """
        value, dtype = ops.convert_to_tensor(value), self.compute_dtype
        y = self.attention(
            *(query, reference_points, ops.cast(value, dtype), padding_mask, spatial_shapes),
            sublayers=self,
        )
        return ops.cast(y, dtype)

    def sampling_points(
        self, query: Any, reference_points: Any, spatial_shapes: Sequence[Sequence[int]]
    ) -> tuple[jax.Array, jax.Array]:
        """Tells where a call looks and how much it weighs what it sees, to draw both.

        Arguments and errors are those of a call.

        Returns:
          locations [B, Q, num_heads, points of all levels, dims] as (x, y) from 0 to 1, and weights
          [B, Q, num_heads, points of all levels], whose sums are 1.
        """
        return self.attention.sampling_points(query, reference_points, spatial_shapes, self)

    def compute_output_shape(self, query_shape: Shape) -> tuple[int | None, ...]:
        return (*query_shape[:-1], self.features)

    def _init_offset_bias(self, shape: Any, dtype: Any = None) -> jax.Array:
        return self.attention.init_offset_bias(None, tuple(shape), dtype)


class _Window(Layer):
    """What `DCNv3` and `DCNv4` have in common."""

    window: Any
    data_format: str

    def call(self, inputs: Any) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: images [N, H, W, features]; [N, features, H, W] with
            data_format="channels_first".

        Returns:
          An array of the same shape.
        """
        first = self.data_format == "channels_first"
        inputs = ops.convert_to_tensor(inputs)
        y = self.window(ops.moveaxis(inputs, 1, -1) if first else inputs, self._sublayers())
        y = ops.cast(y, self.compute_dtype)
        return ops.moveaxis(y, -1, 1) if first else y

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def _sublayers(self) -> Any:
        return self

    def _keep(self, window: WindowV3 | WindowV4, data_format: Any, initializer: Any) -> None:
        """Has the arguments that both layers have as attributes."""
        self.window = window
        self.features, self.groups = window.features, window.groups
        self.kernel_size, self.dilation_rate = window.kernel_size, window.dilation
        self.dw_kernel_size, self.offset_scale = window.dw_kernel_size, window.offset_scale
        self.center_feature_scale = window.has_center_scale
        self.remove_center, self.implementation = window.remove_center, window.implementation
        self.data_format = keras.config.image_data_format() if data_format is None else data_format
        checks.check_choice("data_format", self.data_format, ("channels_last", "channels_first"))
        self.kernel_initializer = keras.initializers.get(initializer)


@keras.saving.register_keras_serializable(package="oxijax")
class DCNv3(_Window):
    """Deformable convolution v3 between two linear layers, as InternImage has it.

    A depthwise convolution, a normalization and an activation make features, from which linear
    layers, which start with zeros, predict where each tap of each group samples and how much the
    sample weighs, of which the softmax over the taps is taken: see `oxijax.dcnv3`. Height and width
    stay as they are. All of the prediction is in float32 where the dtype policy has half precision.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.keras
      >>> oxijax.keras.DCNv3(32, groups=4)(jnp.ones((2, 16, 16, 32))).shape
      (2, 16, 16, 32)

    Attributes:
      dw_conv: depthwise `keras.layers.Conv2D`.
      dw_norm: `keras.layers.LayerNormalization`.
      offset: `keras.layers.Dense` to groups * K * 2 features for K taps.
      mask: `keras.layers.Dense` to groups * K features.
      input_proj: `keras.layers.Dense`.
      output_proj: `keras.layers.Dense`.
      center_scale: `keras.layers.Dense` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.dcnv3`.

    Args:
      features: number of input and output channels.
      dw_kernel_size: kernel size of the depthwise convolution; None is kernel_size.
      activation: activation of the predictor's features; exact GELU by default.
      center_feature_scale: whether to blend each group with the input's projection, by a predicted
        share.
      kernel_initializer: initializer of the kernels of projections.
      data_format: "channels_last", "channels_first", or None for Keras's setting.
      **kwargs: those of `keras.layers.Layer`.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Wang et al., "InternImage: Exploring Large-Scale Vision Foundation Models with
    Deformable Convolutions", 2023.
    """

    def __init__(
        self,
        features: int,
        kernel_size: int | Sequence[int] = 3,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 4,
        dw_kernel_size: int | Sequence[int] | None = None,
        offset_scale: float = 1.0,
        activation: Any = None,
        center_feature_scale: bool = False,
        remove_center: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        data_format: str | None = None,
        implementation: ImplementationLike = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        window = WindowV3.parse(
            *(("features", features), kernel_size, ("dilation_rate", dilation_rate), groups),
            *(dw_kernel_size, offset_scale, center_feature_scale, remove_center, implementation),
        )
        self._keep(window, data_format, kernel_initializer)
        self.activation = exact_gelu if activation is None else keras.activations.get(activation)

    def build(self, input_shape: Shape | None = None) -> None:
        make = Sublayers(self, self.features)
        self.dw_conv: Any = make.depthwise("dw_conv", self.window.depthwise_size)
        self.dw_norm: Any = make.normalization("dw_norm")
        self.offset: Any = make.predictor("offset", self.window.offset_features)
        self.mask: Any = make.predictor("mask", self.window.mask_features)
        self.input_proj: Any = make.projection("input_proj")
        self.output_proj: Any = make.projection("output_proj")
        self.center_scale: Any = (
            make.predictor("center_scale", self.groups) if self.center_feature_scale else None
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return config if self.activation is not exact_gelu else {**config, "activation": None}


@keras.saving.register_keras_serializable(package="oxijax")
class DCNv4(_Window):
    """Deformable convolution v4 between two linear layers, as FlashInternImage has it.

    A linear layer, after a depthwise convolution or not, predicts where each tap of each group
    samples and how much the sample weighs, which has no bounds: see `oxijax.dcnv4`. It starts with
    zeros, and so does the layer's result. Height and width stay as they are.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.keras
      >>> layer = oxijax.keras.DCNv4(32, groups=2, dw_kernel_size=3)
      >>> layer(jnp.ones((2, 16, 16, 32))).shape
      (2, 16, 16, 32)

    Attributes:
      offset_mask_dw: depthwise `keras.layers.Conv2D`, or None.
      offset_mask: `keras.layers.Dense` to 3 * groups * K features for K taps, filled up to a
        multiple of 8.
      value_proj: `keras.layers.Dense`, or None.
      output_proj: `keras.layers.Dense`, or None.
      center_scale: `keras.layers.Dense` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.keras.DCNv3`.

    Args:
      dw_kernel_size: kernel size of the depthwise convolution; None for none.
      center_feature_scale: whether to blend each group with the values, by a share predicted from
        the sums.
      output_bias: whether output_proj has a bias.
      without_pointwise: whether to leave out value_proj and output_proj.

    Source: Xiong et al., "Efficient Deformable ConvNets: Rethinking Dynamic and Sparse Operator for
    Vision Applications", 2024.
    """

    def __init__(
        self,
        features: int,
        kernel_size: int | Sequence[int] = 3,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 4,
        dw_kernel_size: int | Sequence[int] | None = None,
        offset_scale: float = 1.0,
        center_feature_scale: bool = False,
        remove_center: bool = False,
        output_bias: bool = True,
        without_pointwise: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        data_format: str | None = None,
        implementation: ImplementationLike = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        window = WindowV4.parse(
            *(("features", features), kernel_size, ("dilation_rate", dilation_rate), groups),
            *(dw_kernel_size, offset_scale, center_feature_scale, remove_center, implementation),
        )
        self._keep(window, data_format, kernel_initializer)
        self.output_bias = checks.parse_bool("output_bias", output_bias)
        self.without_pointwise = checks.parse_bool("without_pointwise", without_pointwise)

    def build(self, input_shape: Shape | None = None) -> None:
        make, size, bare = Sublayers(self, self.features), self.dw_kernel_size, None
        self.offset_mask_dw: Any = make.depthwise("offset_mask_dw", size) if size else bare
        self.offset_mask: Any = make.predictor("offset_mask", self.window.packed_features)
        project = not self.without_pointwise
        self.value_proj: Any = make.projection("value_proj") if project else bare
        self.output_proj: Any = (
            make.projection("output_proj", self.output_bias) if project else bare
        )
        self.center_scale: Any = (
            make.predictor("center_scale", self.groups) if self.center_feature_scale else bare
        )

    def _sublayers(self) -> Any:
        names = ("offset_mask_dw", "offset_mask", "value_proj", "output_proj", "center_scale")
        parts = {name: getattr(self, name) for name in names}
        return SimpleNamespace(**parts, dtype=self.compute_dtype)
