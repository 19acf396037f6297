"""Layers of sampling operators for Flax NNX."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._layers.attention import Attention, Names
from oxijax._layers.flax import XAVIER, AttentionCalls, WindowCalls
from oxijax._layers.window import WindowV3, WindowV4, exact_gelu
from oxijax.nnx._sublayers import make_sublayers

__all__ = ["DCNv3", "DCNv4", "MSDeformAttn"]

_NAMES = Names("in_features", "inputs_q", "inputs_v")


@explain_keywords
class MSDeformAttn(AttentionCalls, nnx.Module):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights of
    samples there, of which the softmax over all levels and points is taken: see
    `oxijax.ms_deform_attn`. A new layer's heads look in directions of their own, point after point
    a pixel farther away, and weigh all points alike.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.nnx
      >>> from flax import nnx
      >>> layer = oxijax.nnx.MSDeformAttn(64, num_levels=2, rngs=nnx.Rngs(0))
      >>> queries, values = jnp.ones((1, 10, 64)), jnp.ones((1, 8 * 8 + 4 * 4, 64))
      >>> reference_points = jnp.full((1, 10, 2, 2), 0.5)
      >>> layer(queries, reference_points, values, spatial_shapes=((8, 8), (4, 4))).shape
      (1, 10, 64)

    Attributes:
      sampling_offsets: `nnx.Linear` to num_heads * points * dims features.
      attention_weights: `nnx.Linear` to num_heads * points features.
      value_proj: `nnx.Linear`, or None.
      output_proj: `nnx.Linear`, or None.

    Arguments that are not below mean what they do in `oxijax.ms_deform_attn` and `nnx.Linear`.

    Args:
      in_features: number of features of queries, of values and of the result.
      num_heads: number of heads, which divides in_features.
      num_levels: number of feature maps.
      num_points: number of points of a head in each level; an int, or one for each level.
      dims: number of dimensions of the feature maps: 1, 2 or 3.
      offset_scale: offsets from the middle of a reference box count in so many of its sizes,
        divided by the number of points.
      project: whether values and the result are projected; D-FINE and DEIMv2 do without.
      kernel_init: initializer of the kernels of projections.
      offset_dtype: dtype of predicted locations and weights, whatever `dtype` is: half precision
        misplaces samples. For float64 throughout, give float64.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
    2021.
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int | Sequence[int] = 4,
        *,
        offset_scale: float = 0.5,
        project: bool = True,
        method: str = "bilinear",
        dims: int = 2,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = XAVIER,
        rngs: nnx.Rngs,
        offset_dtype: Dtype = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        self.attention: Attention = Attention.parse(
            *(_NAMES, in_features, num_heads, num_levels, num_points),
            *(offset_scale, project, method, implementation, dims),
        )
        options = (dtype, param_dtype, precision, kernel_init, offset_dtype)
        make = make_sublayers(self.attention.features, rngs, *options)
        self.sampling_offsets: nnx.Linear = make.predictor(
            self.attention.offset_features, self.attention.init_offset_bias
        )
        self.attention_weights: nnx.Linear = make.predictor(self.attention.weight_features)
        self.value_proj: nnx.Linear | None = nnx.data(make.projection() if project else None)
        self.output_proj: nnx.Linear | None = nnx.data(make.projection() if project else None)


@explain_keywords
class DCNv3(WindowCalls, nnx.Module):
    """Deformable convolution v3 between two linear layers, as InternImage has it.

    A depthwise convolution, a normalization and an activation make features, from which linear
    layers, which start with zeros, predict where each tap of each group samples and how much the
    sample weighs, of which the softmax over the taps is taken: see `oxijax.dcnv3`. Height and width
    stay as they are.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.nnx
      >>> from flax import nnx
      >>> layer = oxijax.nnx.DCNv3(32, groups=4, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 16, 16, 32))).shape
      (2, 16, 16, 32)

    Attributes:
      dw_conv: depthwise `nnx.Conv`.
      dw_norm: `nnx.LayerNorm`.
      offset: `nnx.Linear` to groups * K * 2 features for K taps.
      mask: `nnx.Linear` to groups * K features.
      input_proj: `nnx.Linear`.
      output_proj: `nnx.Linear`.
      center_scale: `nnx.Linear` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.dcnv3` and `nnx.Linear`.

    Args:
      in_features: number of input and output channels.
      dw_kernel_size: kernel size of the depthwise convolution; None is kernel_size.
      activation: activation of the predictor's features; GELU by default.
      center_feature_scale: whether to blend each group with the input's projection, by a predicted
        share.
      kernel_init: initializer of the kernels of projections.
      offset_dtype: dtype of predicted offsets and masks, whatever `dtype` is: half precision
        misplaces samples. For float64 throughout, give float64.

    Raises:
      ValueError: a value that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Wang et al., "InternImage: Exploring Large-Scale Vision Foundation Models with
    Deformable Convolutions", 2023.
    """

    def __init__(
        self,
        in_features: int,
        kernel_size: int | Sequence[int] = 3,
        kernel_dilation: int | Sequence[int] = 1,
        *,
        groups: int = 4,
        dw_kernel_size: int | Sequence[int] | None = None,
        offset_scale: float = 1.0,
        activation: Callable[[jax.Array], jax.Array] = exact_gelu,
        center_feature_scale: bool = False,
        remove_center: bool = False,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = XAVIER,
        rngs: nnx.Rngs,
        offset_dtype: Dtype = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        self.window: WindowV3 = WindowV3.parse(
            *(("in_features", in_features), kernel_size, ("kernel_dilation", kernel_dilation)),
            *(groups, dw_kernel_size, offset_scale, center_feature_scale, remove_center),
            implementation,
        )
        options = (dtype, param_dtype, precision, kernel_init, offset_dtype)
        make = make_sublayers(self.window.features, rngs, *options)
        checks.check_callable("activation", activation)
        self.activation = activation
        self.dw_conv: nnx.Conv = make.depthwise(self.window.depthwise_size)
        self.dw_norm: nnx.LayerNorm = make.normalization()
        self.offset: nnx.Linear = make.predictor(self.window.offset_features)
        self.mask: nnx.Linear = make.predictor(self.window.mask_features)
        self.input_proj: nnx.Linear = make.projection()
        self.output_proj: nnx.Linear = make.projection()
        self.center_scale: nnx.Linear | None = nnx.data(
            make.predictor(self.window.groups) if self.window.has_center_scale else None
        )


@explain_keywords
class DCNv4(WindowCalls, nnx.Module):
    """Deformable convolution v4 between two linear layers, as FlashInternImage has it.

    A linear layer, after a depthwise convolution or not, predicts where each tap of each group
    samples and how much the sample weighs, which has no bounds: see `oxijax.dcnv4`. It starts with
    zeros, and so does the layer's result. Height and width stay as they are.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax.nnx
      >>> from flax import nnx
      >>> layer = oxijax.nnx.DCNv4(32, groups=2, dw_kernel_size=3, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 16, 16, 32))).shape
      (2, 16, 16, 32)

    Attributes:
      offset_mask_dw: depthwise `nnx.Conv`, or None.
      offset_mask: `nnx.Linear` to 3 * groups * K features for K taps, filled up to a multiple of 8.
      value_proj: `nnx.Linear`, or None.
      output_proj: `nnx.Linear`, or None.
      center_scale: `nnx.Linear` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.nnx.DCNv3`.

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

    def __init__(
        self,
        in_features: int,
        kernel_size: int | Sequence[int] = 3,
        kernel_dilation: int | Sequence[int] = 1,
        *,
        groups: int = 4,
        dw_kernel_size: int | Sequence[int] | None = None,
        offset_scale: float = 1.0,
        center_feature_scale: bool = False,
        remove_center: bool = False,
        output_bias: bool = True,
        without_pointwise: bool = False,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = XAVIER,
        rngs: nnx.Rngs,
        offset_dtype: Dtype = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        self.window: WindowV4 = WindowV4.parse(
            *(("in_features", in_features), kernel_size, ("kernel_dilation", kernel_dilation)),
            *(groups, dw_kernel_size, offset_scale, center_feature_scale, remove_center),
            implementation,
        )
        options = (dtype, param_dtype, precision, kernel_init, offset_dtype)
        make = make_sublayers(self.window.features, rngs, *options)
        output_bias = checks.parse_bool("output_bias", output_bias)
        without_pointwise = checks.parse_bool("without_pointwise", without_pointwise)
        self.dtype: Dtype | None = make.options.dtype
        self.param_dtype: Dtype = make.options.param_dtype
        size = self.window.dw_kernel_size
        self.offset_mask_dw: nnx.Conv | None = nnx.data(make.depthwise(size) if size else None)
        self.offset_mask: nnx.Linear = make.predictor(self.window.packed_features)
        self.value_proj: nnx.Linear | None = nnx.data(
            None if without_pointwise else make.projection()
        )
        self.output_proj: nnx.Linear | None = nnx.data(
            None if without_pointwise else make.projection(output_bias)
        )
        self.center_scale: nnx.Linear | None = nnx.data(
            make.predictor(self.window.groups) if self.window.has_center_scale else None
        )
