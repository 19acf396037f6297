"""Multi-scale deformable attention as a Flax Linen layer."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core.implementation import ImplementationLike
from oxijax._core.keywords import explain_keywords
from oxijax._layers.attention import Attention, Names
from oxijax._layers.flax import XAVIER, AttentionCalls
from oxijax.linen._sublayers import Layer, make_sublayers

__all__ = ["MSDeformAttn"]

_NAMES = Names("features", "inputs_q", "inputs_v")


@explain_keywords
class MSDeformAttn(AttentionCalls, Layer):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights
    of samples there, of which the softmax over all levels and points is taken: see
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

    Parts, each with parameters of its own:
      sampling_offsets: `nn.Dense` to num_heads * points * 2 features.
      attention_weights: `nn.Dense` to num_heads * points features.
      value_proj: `nn.Dense`.
      output_proj: `nn.Dense`.

    Attributes:
      features: of queries, of values and of the result.
      num_heads: divides features.
      num_levels: number of feature maps.
      num_points: of a head in each level; an int, or one for each level.
      method: "bilinear" or "nearest", as in `oxijax.ms_deform_attn`.
      dtype: of the computation; None infers it from inputs and parameters.
      param_dtype: of all parameters.
      precision: of the matrix products, as in `jax.lax`.
      kernel_init: initializer of the kernels of value_proj and output_proj.
      offset_dtype: in which locations and weights are predicted, whatever `dtype` is. Half
        precision misplaces samples; for float64 throughout, give float64.
      implementation: as in `oxijax.ms_deform_attn`.

    Arguments are checked when the layer is called.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
    2021.
    """

    features: int
    num_heads: int = 8
    num_levels: int = 4
    num_points: int | Sequence[int] = 4
    method: str = "bilinear"
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = XAVIER
    offset_dtype: Dtype = jnp.float32
    implementation: ImplementationLike = None

    def setup(self) -> None:
        self.attention: Attention = Attention.parse(
            *(_NAMES, self.features, self.num_heads, self.num_levels),
            *(self.num_points, self.method, self.implementation),
        )
        make = make_sublayers(self.attention.features, self)
        self.sampling_offsets: nn.Dense = make.predictor(
            self.attention.offset_features, self.attention.init_offset_bias
        )
        self.attention_weights: nn.Dense = make.predictor(self.attention.weight_features)
        self.value_proj: nn.Dense = make.projection()
        self.output_proj: nn.Dense = make.projection()
