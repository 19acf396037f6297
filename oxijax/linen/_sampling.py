"""Layers of sampling operators for Flax Linen."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._layers.attention import Attention, Names
from oxijax._layers.flax import XAVIER, AttentionCalls, WindowCalls
from oxijax._layers.window import WindowV3, WindowV4, exact_gelu
from oxijax.linen._sublayers import Layer, make_sublayers

__all__ = ["DCNv3", "DCNv4", "MSDeformAttn"]

_NAMES = Names("features", "inputs_q", "inputs_v")


@explain_keywords
class MSDeformAttn(AttentionCalls, Layer):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights of
    samples there, of which the softmax over all levels and points is taken: see
    `oxijax.ms_deform_attn`. A new layer's heads look in directions of their own, point after point
    a pixel farther away, and weigh all points alike.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.linen
      >>> layer = oxijax.linen.MSDeformAttn(64, num_levels=2)
      >>> queries, values = jnp.ones((1, 10, 64)), jnp.ones((1, 8 * 8 + 4 * 4, 64))
      >>> reference_points = jnp.full((1, 10, 2, 2), 0.5)
      >>> y, variables = layer.init_with_output(
      ...     jax.random.key(0),
      ...     *(queries, reference_points, values),
      ...     spatial_shapes=((8, 8), (4, 4)),
      ... )
      >>> y.shape
      (1, 10, 64)

    Sublayers:
      sampling_offsets: `nn.Dense` to num_heads * points * dims features.
      attention_weights: `nn.Dense` to num_heads * points features.
      value_proj: `nn.Dense`, or None.
      output_proj: `nn.Dense`, or None.

    Arguments that are not below mean what they do in `oxijax.ms_deform_attn` and `nn.Dense`. All
    are checked when the layer is called.

    Attributes:
      features: number of features of queries, of values and of the result.
      num_heads: number of heads, which divides features.
      num_levels: number of feature maps.
      num_points: number of points of a head in each level; an int, or one for each level.
      dims: number of dimensions of the feature maps: 1, 2 or 3.
      offset_scale: offsets from the middle of a reference box count in so many of its sizes,
        divided by the number of points.
      project: whether values and the result are projected; D-FINE and DEIMv2 do without.
      kernel_init: initializer of the kernels of projections.
      offset_dtype: dtype of predicted locations and weights, whatever `dtype` is: half precision
        misplaces samples. For float64 throughout, give float64.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
    2021.
    """

    features: int
    num_heads: int = 8
    num_levels: int = 4
    num_points: int | Sequence[int] = 4
    offset_scale: float = 0.5
    project: bool = True
    method: str = "bilinear"
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = XAVIER
    offset_dtype: Dtype = jnp.float32
    implementation: ImplementationLike = None
    dims: int = 2
    takes_out_sharding: ClassVar[bool] = False

    def setup(self) -> None:
        self.attention: Attention = Attention.parse(
            *(_NAMES, self.features, self.num_heads, self.num_levels),
            *(self.num_points, self.offset_scale, self.project, self.method),
            *(self.implementation, self.dims),
        )
        make = make_sublayers(self.attention.features, self)
        self.sampling_offsets: nn.Dense = make.predictor(
            self.attention.offset_features, self.attention.init_offset_bias
        )
        self.attention_weights: nn.Dense = make.predictor(self.attention.weight_features)
        project = self.attention.project
        self.value_proj: nn.Dense | None = make.projection() if project else None
        self.output_proj: nn.Dense | None = make.projection() if project else None


@explain_keywords
class DCNv3(WindowCalls, Layer):
    """Deformable convolution v3 between two linear layers, as InternImage has it.

    A depthwise convolution, a normalization and an activation make features, from which linear
    layers, which start with zeros, predict where each tap of each group samples and how much the
    sample weighs, of which the softmax over the taps is taken: see `oxijax.dcnv3`. Height and width
    stay as they are.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.linen
      >>> layer = oxijax.linen.DCNv3(32, groups=4)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 16, 16, 32)))
      >>> y.shape
      (2, 16, 16, 32)

    Sublayers:
      dw_conv: depthwise `nn.Conv`.
      dw_norm: `nn.LayerNorm`.
      offset: `nn.Dense` to groups * K * 2 features for K taps.
      mask: `nn.Dense` to groups * K features.
      input_proj: `nn.Dense`.
      output_proj: `nn.Dense`.
      center_scale: `nn.Dense` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.dcnv3` and `nn.Dense`. All are checked
    when the layer is called.

    Attributes:
      features: number of input and output channels.
      dw_kernel_size: kernel size of the depthwise convolution; None is kernel_size.
      activation: activation of the predictor's features; GELU by default.
      center_feature_scale: whether to blend each group with the input's projection, by a predicted
        share.
      kernel_init: initializer of the kernels of projections.
      offset_dtype: dtype of predicted offsets and masks, whatever `dtype` is: half precision
        misplaces samples. For float64 throughout, give float64.

    Source: Wang et al., "InternImage: Exploring Large-Scale Vision Foundation Models with
    Deformable Convolutions", 2023.
    """

    features: int
    kernel_size: int | Sequence[int] = 3
    kernel_dilation: int | Sequence[int] = 1
    groups: int = 4
    dw_kernel_size: int | Sequence[int] | None = None
    offset_scale: float = 1.0
    activation: Callable[[jax.Array], jax.Array] = exact_gelu
    center_feature_scale: bool = False
    remove_center: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = XAVIER
    offset_dtype: Dtype = jnp.float32
    implementation: ImplementationLike = None

    def setup(self) -> None:
        self.window: WindowV3 = WindowV3.parse(
            *(("features", self.features), self.kernel_size),
            *(("kernel_dilation", self.kernel_dilation), self.groups, self.dw_kernel_size),
            *(self.offset_scale, self.center_feature_scale, self.remove_center),
            self.implementation,
        )
        make = make_sublayers(self.window.features, self)
        checks.check_callable("activation", self.activation)
        self.dw_conv: nn.Conv = make.depthwise(self.window.depthwise_size)
        self.dw_norm: nn.LayerNorm = make.normalization()
        self.offset: nn.Dense = make.predictor(self.window.offset_features)
        self.mask: nn.Dense = make.predictor(self.window.mask_features)
        self.input_proj: nn.Dense = make.projection()
        self.output_proj: nn.Dense = make.projection()
        self.center_scale: nn.Dense | None = (
            make.predictor(self.window.groups) if self.window.has_center_scale else None
        )


@explain_keywords
class DCNv4(WindowCalls, Layer):
    """Deformable convolution v4 between two linear layers, as FlashInternImage has it.

    A linear layer, after a depthwise convolution or not, predicts where each tap of each group
    samples and how much the sample weighs, which has no bounds: see `oxijax.dcnv4`. It starts with
    zeros, and so does the layer's result. Height and width stay as they are.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import oxijax.linen
      >>> layer = oxijax.linen.DCNv4(32, groups=2, dw_kernel_size=3)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 16, 16, 32)))
      >>> y.shape
      (2, 16, 16, 32)

    Sublayers:
      offset_mask_dw: depthwise `nn.Conv`, or None.
      offset_mask: `nn.Dense` to 3 * groups * K features for K taps, filled up to a multiple of 8.
      value_proj: `nn.Dense`, or None.
      output_proj: `nn.Dense`, or None.
      center_scale: `nn.Dense` to a feature a group, or None.

    Arguments that are not below mean what they do in `oxijax.linen.DCNv3`. All are checked when the
    layer is called.

    Attributes:
      dw_kernel_size: kernel size of the depthwise convolution; None for none.
      center_feature_scale: whether to blend each group with the values, by a share predicted from
        the sums.
      output_bias: whether output_proj has a bias.
      without_pointwise: whether to leave out value_proj and output_proj.

    Source: Xiong et al., "Efficient Deformable ConvNets: Rethinking Dynamic and Sparse Operator for
    Vision Applications", 2024.
    """

    features: int
    kernel_size: int | Sequence[int] = 3
    kernel_dilation: int | Sequence[int] = 1
    groups: int = 4
    dw_kernel_size: int | Sequence[int] | None = None
    offset_scale: float = 1.0
    center_feature_scale: bool = False
    remove_center: bool = False
    output_bias: bool = True
    without_pointwise: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = XAVIER
    offset_dtype: Dtype = jnp.float32
    implementation: ImplementationLike = None

    def setup(self) -> None:
        self.window: WindowV4 = WindowV4.parse(
            *(("features", self.features), self.kernel_size),
            *(("kernel_dilation", self.kernel_dilation), self.groups, self.dw_kernel_size),
            *(self.offset_scale, self.center_feature_scale, self.remove_center),
            self.implementation,
        )
        make = make_sublayers(self.window.features, self)
        output_bias = checks.parse_bool("output_bias", self.output_bias)
        without_pointwise = checks.parse_bool("without_pointwise", self.without_pointwise)
        size = self.window.dw_kernel_size
        self.offset_mask_dw: nn.Conv | None = make.depthwise(size) if size else None
        self.offset_mask: nn.Dense = make.predictor(self.window.packed_features)
        self.value_proj: nn.Dense | None = None if without_pointwise else make.projection()
        self.output_proj: nn.Dense | None = (
            None if without_pointwise else make.projection(output_bias)
        )
        self.center_scale: nn.Dense | None = (
            make.predictor(self.window.groups) if self.window.has_center_scale else None
        )
