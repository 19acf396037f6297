"""Multi-scale deformable attention as an Equinox layer."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from oxijax._core import arguments as arguments
from oxijax._core.implementation import ImplementationLike
from oxijax._core.keywords import explain_keywords
from oxijax._layers.attention import Attention, Names
from oxijax.equinox._sublayers import Sublayers, channels_last

__all__ = ["MSDeformAttn"]

_NAMES = Names("query_size", "query", "value")


@explain_keywords
class MSDeformAttn(eqx.Module):
    """Multi-scale deformable attention: each query looks at a few points of feature maps.

    Queries predict, for each head and level, offsets from their reference points and the weights
    of samples there, of which the softmax over all levels and points is taken: see
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
      sampling_offsets: `equinox.nn.Linear` to num_heads * points * 2 features.
      attention_weights: `equinox.nn.Linear` to num_heads * points features.
      value_proj: `equinox.nn.Linear`.
      output_proj: `equinox.nn.Linear`.
    """

    sampling_offsets: eqx.nn.Linear
    attention_weights: eqx.nn.Linear
    value_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    attention: Attention = eqx.field(static=True)
    offset_dtype: jnp.dtype = eqx.field(static=True)

    def __init__(
        self,
        query_size: int,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int | Sequence[int] = 4,
        *,
        method: str = "bilinear",
        dtype: Any = None,
        key: jax.Array,
        offset_dtype: Any = jnp.float32,
        implementation: ImplementationLike = None,
    ):
        """Makes the layer.

        Args:
          query_size: features of queries, of values and of the result.
          num_heads: divides query_size.
          num_levels: number of feature maps.
          num_points: of a head in each level; an int, or one for each level.
          method: "bilinear" or "nearest", as in `oxijax.ms_deform_attn`.
          dtype: of all parameters; None is JAX's default floating dtype.
          key: random key.
          offset_dtype: in which locations and weights are predicted, whatever the dtype of the
            inputs and the parameters is. Half precision misplaces samples; for float64
            throughout, give float64.
          implementation: as in `oxijax.ms_deform_attn`.

        Raises:
          ValueError: a value that does not fit, by name.
          TypeError: an argument of the wrong type or dtype, by name.

        Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object
        Detection", 2021.
        """
        self.attention = attention = Attention.parse(
            *(_NAMES, query_size, num_heads, num_levels, num_points, method, implementation)
        )
        make = Sublayers.parse(attention.features, dtype, key)
        self.offset_dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)
        value_key, output_key = jax.random.split(key)
        self.sampling_offsets = make.predictor(
            attention.offset_features, attention.init_offset_bias
        )
        self.attention_weights = make.predictor(attention.weight_features)
        self.value_proj = make.projection(value_key)
        self.output_proj = make.projection(output_key)

    def __call__(
        self,
        query: jax.Array,
        reference_points: jax.Array,
        value: jax.Array,
        *,
        spatial_shapes: tuple[tuple[int, int], ...],
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Applies the layer to the queries of one image; use `jax.vmap` for batches.

        Args:
          query: [Q, query_size], in the parameters' dtype.
          reference_points: [Q, num_levels, 2], (x, y) from 0 to 1 in each level, or
            [Q, num_levels, 4], boxes (x, y, width, height) with (x, y) in the middle. Offsets
            count in pixels of the level, or in halves of a box divided by the number of points.
          value: [S, query_size], the pixels of all levels, row by row and level after level, in
            the parameters' dtype.
          spatial_shapes: height and width of each level, ints.
          padding_mask: [S], True where values count as zeros.
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
        spatial_shapes: tuple[tuple[int, int], ...],
    ) -> tuple[jax.Array, jax.Array]:
        """Tells where the layer looks and how much it weighs what it sees, to draw both.

        Args:
          query: of a call.
          reference_points: of a call.
          spatial_shapes: of a call.

        Returns:
          locations [Q, num_heads, points of all levels, 2] as (x, y) from 0 to 1, and weights
          [Q, num_heads, points of all levels], whose sums are 1.

        Raises:
          ValueError: an array of another shape, by name.
          TypeError: an argument of the wrong type or dtype, by name.
        """
        self._check("query", query)
        sublayers = channels_last(self, self.offset_dtype)
        return self.attention.sampling_points(query, reference_points, spatial_shapes, sublayers)

    def _check(self, name: str, value: Any) -> None:
        """Checks what Flax has otherwise: batches, and dtypes that differ."""
        array = arguments.to_array(name, value)
        if array.ndim != 2:
            raise ValueError(f"{name} must have two dimensions, got shape {array.shape}")
        arguments.check_same_dtype(name, array, "value_proj.weight", self.value_proj.weight)
