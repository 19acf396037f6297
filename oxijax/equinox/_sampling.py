"""Layers of sampling operators for Equinox."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._layers.attention import Attention, Names
from oxijax._layers.window import WindowV3, WindowV4, exact_gelu
from oxijax.equinox._sublayers import Sublayers, as_image, channels_last

__all__ = ["DCNv3", "DCNv4", "MSDeformAttn"]

_NAMES = Names("query_size", "query", "value")


@explain_keywords
class MSDeformAttn(eqx.Module):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights of
    samples there, of which the softmax over all levels and points is taken: see
    `oxijax.ms_deform_attn`. A new layer's heads look in directions of their own, point after point
    a pixel farther away, and weigh all points alike.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.equinox
      >>> layer = oxijax.equinox.MSDeformAttn(64, num_levels=2, key=jax.random.key(0))
      >>> queries, values = jnp.ones((10, 64)), jnp.ones((8 * 8 + 4 * 4, 64))
      >>> reference_points = jnp.full((10, 2, 2), 0.5)
      >>> layer(queries, reference_points, values, spatial_shapes=((8, 8), (4, 4))).shape
      (10, 64)

    Attributes:
      sampling_offsets: `equinox.nn.Linear` to num_heads * points * dims features.
      attention_weights: `equinox.nn.Linear` to num_heads * points features.
      value_proj: `equinox.nn.Linear`, or None.
      output_proj: `equinox.nn.Linear`, or None.

    Arguments that are not below mean what they do in `oxijax.ms_deform_attn`.

    Args:
      query_size: number of features of queries, of values and of the result.
      num_heads: number of heads, which divides query_size.
      num_levels: number of feature maps.
      num_points: number of points of a head in each level; an int, or one for each level.
      dims: number of dimensions of the feature maps: 1, 2 or 3.
      offset_scale: offsets from the middle of a reference box count in so many of its sizes,
        divided by the number of points.
      project: whether values and the result are projected; D-FINE and DEIMv2 do without.
      dtype: dtype of all parameters; None is JAX's default floating dtype.
      key: random key.
      offset_dtype: dtype of predicted locations and weights, whatever that of parameters is: half
        precision misplaces samples. For float64 throughout, give float64.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
    2021.
    """

    sampling_offsets: eqx.nn.Linear
    attention_weights: eqx.nn.Linear
    value_proj: eqx.nn.Linear | None
    output_proj: eqx.nn.Linear | None
    attention: Attention = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)

    def __init__(
        self,
        query_size: int,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int | Sequence[int] = 4,
        *,
        offset_scale: float = 0.5,
        project: bool = True,
        method: str = "bilinear",
        dims: int = 2,
        dtype: Any = None,
        key: jax.Array,
        offset_dtype: Any = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        self.attention = attention = Attention.parse(
            *(_NAMES, query_size, num_heads, num_levels, num_points),
            *(offset_scale, project, method, implementation, dims),
        )
        make = Sublayers.parse(attention.features, dtype, key)
        self.offset_dtype = checks.parse_float_dtype("offset_dtype", offset_dtype)
        value_key, output_key = jax.random.split(key)
        self.sampling_offsets = make.predictor(
            attention.offset_features, attention.init_offset_bias
        )
        self.attention_weights = make.predictor(attention.weight_features)
        self.value_proj = make.projection(value_key) if project else None
        self.output_proj = make.projection(output_key) if project else None

    @explain_keywords
    def __call__(
        self,
        query: jax.Array,
        reference_points: jax.Array,
        value: jax.Array,
        *,
        spatial_shapes: tuple[tuple[int, ...], ...],
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Applies the layer to the queries of one image; use `jax.vmap` for batches.

        Args:
          query: [Q, query_size], in the parameters' dtype.
          reference_points: [Q, num_levels, 2], (x, y) from 0 to 1 in each level, or
            [Q, num_levels, 4], boxes (x, y, width, height) with (x, y) in the middle; a 1 in place
            of num_levels is for all. Offsets count in pixels of the level, or in offset_scale times
            a box divided by the number of points.
          value: [S, query_size], the pixels of all levels, row by row and level after level, in
            the parameters' dtype.
          spatial_shapes: height and width of each level, ints; (width,) or (depth, height, width)
            with dims 1 or 3, for which coordinates are (x) and (x, y, z), and boxes accordingly.
          padding_mask: [S], True where values count as zeros: the inverse of Hugging Face's
            attention_mask.
          key: ignored, as in `equinox.nn.Linear`.

        Returns:
          [Q, query_size].

        Raises:
          ValueError: an array of another shape, by name.
          TypeError: an argument of the wrong type or dtype, by name.
        """
        del key
        self._check("query", query)
        self._check("value", value)
        points = (query, reference_points, value, padding_mask, spatial_shapes)
        return self.attention(*points, channels_last(self, self.offset_dtype))

    def sampling_points(
        self,
        query: jax.Array,
        reference_points: jax.Array,
        *,
        spatial_shapes: tuple[tuple[int, ...], ...],
    ) -> tuple[jax.Array, jax.Array]:
        """Tells where a call looks and how much it weighs what it sees, to draw both.

        Arguments and errors are those of a call.

        Returns:
          locations [Q, num_heads, points of all levels, dims] as (x, y) from 0 to 1, and weights
          [Q, num_heads, points of all levels], whose sums are 1.
        """
        self._check("query", query)
        sublayers = channels_last(self, self.offset_dtype)
        return self.attention.sampling_points(query, reference_points, spatial_shapes, sublayers)

    def _check(self, name: str, value: Any) -> None:
        """Checks what Flax has otherwise: batches, and dtypes that differ."""
        array = checks.to_array(name, value)
        if array.ndim != 2:
            raise ValueError(f"{name} must have two dimensions, got shape {array.shape}")
        weight = self.sampling_offsets.weight
        checks.check_same_dtype(name, array, "sampling_offsets.weight", weight)


class _DCN(eqx.Module):
    """Base of the layers of deformable convolution v3 and v4."""

    window: eqx.AbstractVar[Any]
    offset_dtype: eqx.AbstractVar[jnp.dtype]

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
        x = as_image("x", x, self.window.features, "channels")
        checks.check_same_dtype("x", x, "the parameters", jax.tree.leaves(self)[0])
        sublayers = channels_last(self, self.offset_dtype, dtype=x.dtype)
        return self.window(x.transpose(1, 2, 0), sublayers).transpose(2, 0, 1)


@explain_keywords
class DCNv3(_DCN):
    """Deformable convolution v3 between two linear layers, as InternImage has it.

    A depthwise convolution, a normalization and an activation make features, from which linear
    layers, which start with zeros, predict where each tap of each group samples and how much the
    sample weighs, of which the softmax over the taps is taken: see `oxijax.dcnv3`. Height and width
    stay as they are.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.equinox
      >>> layer = oxijax.equinox.DCNv3(32, groups=4, key=jax.random.key(0))
      >>> layer(jnp.ones((32, 16, 16))).shape
      (32, 16, 16)

    Attributes:
      dw_conv: depthwise `equinox.nn.Conv2d`.
      dw_norm: `equinox.nn.LayerNorm`.
      offset: `equinox.nn.Linear` to groups * K * 2 features for K taps.
      mask: `equinox.nn.Linear` to groups * K features.
      input_proj: `equinox.nn.Linear`.
      output_proj: `equinox.nn.Linear`.
      center_scale: `equinox.nn.Linear` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.dcnv3`.

    Args:
      channels: number of input and output channels, C.
      dw_kernel_size: kernel size of the depthwise convolution; None is kernel_size.
      activation: activation of the predictor's features; GELU by default.
      center_feature_scale: whether to blend each group with the input's projection, by a predicted
        share.
      dtype: dtype of all parameters; None is JAX's default floating dtype.
      key: random key.
      offset_dtype: dtype of predicted offsets and masks, whatever that of parameters is: half
        precision misplaces samples. For float64 throughout, give float64.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Wang et al., "InternImage: Exploring Large-Scale Vision Foundation Models with
    Deformable Convolutions", 2023.
    """

    dw_conv: eqx.nn.Conv2d
    dw_norm: eqx.nn.LayerNorm
    offset: eqx.nn.Linear
    mask: eqx.nn.Linear
    input_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    center_scale: eqx.nn.Linear | None
    activation: Callable[[jax.Array], jax.Array]
    window: WindowV3 = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)

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
        self.window = window = WindowV3.parse(
            *(("channels", channels), kernel_size, ("dilation", dilation), groups, dw_kernel_size),
            *(offset_scale, center_feature_scale, remove_center, implementation),
        )
        make = Sublayers.parse(window.features, dtype, key)
        self.offset_dtype = checks.parse_float_dtype("offset_dtype", offset_dtype)
        checks.check_callable("activation", activation)
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
      offset_mask_dw: depthwise `equinox.nn.Conv2d`, or None.
      offset_mask: `equinox.nn.Linear` to 3 * groups * K features for K taps, filled up to a
        multiple of 8.
      value_proj: `equinox.nn.Linear`, or None.
      output_proj: `equinox.nn.Linear`, or None.
      center_scale: `equinox.nn.Linear` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.equinox.DCNv3`.

    Args:
      dw_kernel_size: kernel size of the depthwise convolution; None for none.
      center_feature_scale: whether to blend each group with the values, by a share predicted from
        the sums.
      output_bias: whether output_proj has a bias.
      without_pointwise: whether to leave out value_proj and output_proj.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Xiong et al., "Efficient Deformable ConvNets: Rethinking Dynamic and Sparse Operator for
    Vision Applications", 2024.
    """

    offset_mask_dw: eqx.nn.Conv2d | None
    offset_mask: eqx.nn.Linear
    value_proj: eqx.nn.Linear | None
    output_proj: eqx.nn.Linear | None
    center_scale: eqx.nn.Linear | None
    window: WindowV4 = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)

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
        self.window = window = WindowV4.parse(
            *(("channels", channels), kernel_size, ("dilation", dilation), groups, dw_kernel_size),
            *(offset_scale, center_feature_scale, remove_center, implementation),
        )
        make = Sublayers.parse(window.features, dtype, key)
        self.offset_dtype = checks.parse_float_dtype("offset_dtype", offset_dtype)
        output_bias = checks.parse_bool("output_bias", output_bias)
        without_pointwise = checks.parse_bool("without_pointwise", without_pointwise)
        dw_key, value_key, output_key = jax.random.split(key, 3)
        size = window.dw_kernel_size
        self.offset_mask_dw = make.depthwise(size, dw_key) if size else None
        self.offset_mask = make.predictor(window.packed_features)
        self.value_proj = None if without_pointwise else make.projection(value_key)
        self.output_proj = None if without_pointwise else make.projection(output_key, output_bias)
        self.center_scale = make.predictor(window.groups) if window.has_center_scale else None
