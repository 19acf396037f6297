"""Multi-scale deformable attention as a Flax NNX layer."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core.implementation import ImplementationLike
from oxijax._core.keywords import explain_keywords
from oxijax._layers.attention import Attention, Names
from oxijax._layers.flax import XAVIER, AttentionCalls
from oxijax.nnx._sublayers import make_sublayers

__all__ = ["MSDeformAttn"]

_NAMES = Names("in_features", "inputs_q", "inputs_v")


@explain_keywords
class MSDeformAttn(AttentionCalls, nnx.Module):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights
    of samples there, of which the softmax over all levels and points is taken: see
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
      sampling_offsets: `nnx.Linear` to num_heads * points * 2 features.
      attention_weights: `nnx.Linear` to num_heads * points features.
      value_proj: `nnx.Linear`.
      output_proj: `nnx.Linear`.

    Args:
      in_features: of queries, of values and of the result.
      num_heads: divides in_features.
      num_levels: number of feature maps.
      num_points: of a head in each level; an int, or one for each level.
      method: "bilinear" or "nearest", as in `oxijax.ms_deform_attn`.
      dtype: of the computation; None infers it from inputs and parameters.
      param_dtype: of all parameters.
      precision: of the matrix products, as in `jax.lax`.
      kernel_init: initializer of the kernels of value_proj and output_proj.
      rngs: random keys.
      offset_dtype: in which locations and weights are predicted, whatever `dtype` is. Half
        precision misplaces samples; for float64 throughout, give float64.
      implementation: as in `oxijax.ms_deform_attn`.

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
        method: str = "bilinear",
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = XAVIER,
        rngs: nnx.Rngs,
        offset_dtype: Dtype = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        self.attention: Attention = Attention.parse(
            *(_NAMES, in_features, num_heads, num_levels, num_points, method, implementation)
        )
        make = make_sublayers(
            *(self.attention.features, rngs, dtype, param_dtype, precision, kernel_init),
            offset_dtype,
        )
        self.sampling_offsets: nnx.Linear = make.predictor(
            self.attention.offset_features, self.attention.init_offset_bias
        )
        self.attention_weights: nnx.Linear = make.predictor(self.attention.weight_features)
        self.value_proj: nnx.Linear = make.projection()
        self.output_proj: nnx.Linear = make.projection()
