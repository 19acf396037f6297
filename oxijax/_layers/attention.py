"""What the layers of multi-scale deformable attention share."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core import arguments as arguments
from oxijax._core.explicit import reshape
from oxijax._core.implementation import Implementation, read_implementation
from oxijax._core.precision import usual_promotion
from oxijax._layers.batch import Batch
from oxijax._layers.deform_conv import read_divisor, read_real
from oxijax._sampling.ms_deform_attn import ms_deform_attn, read_spatial_shapes

__all__ = ["Attention", "Names"]

Levels = tuple[tuple[int, int], ...]  # height and width of each
Linear = Callable[[jax.Array], jax.Array]  # over the last dimension


class Names(NamedTuple):
    """What a library calls features, queries and values in its layer's arguments."""

    features: str
    query: str
    value: str


@dataclasses.dataclass(frozen=True)
class Attention:
    """What is static in a layer.

    Attributes:
      names: for messages.
      features: of queries, of values and of the result.
      heads: divides features.
      points: of each level.
      method: of `oxijax.ms_deform_attn`.
      implementation: of `oxijax.ms_deform_attn`.
    """

    names: Names
    features: int
    heads: int
    points: tuple[int, ...]
    method: str
    implementation: Implementation = None

    @classmethod
    def read(
        cls,
        names: Names,
        features: Any,
        num_heads: Any,
        num_levels: Any,
        num_points: int | Sequence[int],
        method: Any,
        implementation: Any,
    ) -> "Attention":
        """Checks a layer's arguments."""
        heads, features = read_divisor("num_heads", num_heads, **{names.features: features})
        levels = arguments.read_int("num_levels", num_levels)
        if arguments.is_int(num_points):
            points = (arguments.read_int("num_points", num_points),) * levels
        else:
            read = arguments.read_sequence("num_points", num_points)
            points = tuple(arguments.read_int(f"num_points[{i}]", n) for i, n in enumerate(read))
            if len(points) != levels:
                raise ValueError(
                    f"num_points must have a number for each of the {levels} levels, "
                    f"got {arguments.shown(num_points)}"
                )
        arguments.check_choice("method", method, ("bilinear", "nearest"))
        return cls(names, features, heads, points, method, read_implementation(implementation))

    @property
    def weight_features(self) -> int:
        return self.heads * sum(self.points)

    @property
    def offset_features(self) -> int:
        return 2 * self.weight_features

    def offset_bias(self) -> np.ndarray:
        """The offsets that a new layer has for every query.

        Each head has a direction of its own, and point after point is a pixel farther away.
        """
        angles = np.arange(self.heads) * (2 * math.pi / self.heads)
        directions = np.stack([np.cos(angles), np.sin(angles)], -1)
        directions /= np.abs(directions).max(-1, keepdims=True)
        steps = np.concatenate([np.arange(1, count + 1) for count in self.points])
        return (directions[:, None] * steps[:, None]).reshape(-1)

    def __call__(
        self,
        query: Any,
        reference_points: Any,
        value: Any,
        padding_mask: Any,
        spatial_shapes: Any,
        *,
        sampling_offsets: Linear,
        attention_weights: Linear,
        value_proj: Linear,
        output_proj: Linear,
    ) -> jax.Array:
        """The layer's result [..., Q, features], of arguments that are not yet checked."""
        levels = self._read_levels(spatial_shapes)
        query = self._read_query(query)
        references = self._read_references(reference_points, query)
        value = self._read_value(value, query, levels)
        padding_mask = self._read_padding_mask(padding_mask, value)
        locations = self._locations(sampling_offsets(query), references, levels)
        logits = attention_weights(query)
        value = value_proj(value)
        if padding_mask is not None:
            value = jnp.where(padding_mask[..., None], jnp.zeros((), value.dtype), value)
        return output_proj(self._attend(value, locations, logits, levels))

    def sampling_points(
        self,
        query: Any,
        reference_points: Any,
        spatial_shapes: Any,
        *,
        sampling_offsets: Linear,
        attention_weights: Linear,
    ) -> tuple[jax.Array, jax.Array]:
        """Locations [..., Q, M, sum(points), 2] and weights [..., Q, M, sum(points)]."""
        levels = self._read_levels(spatial_shapes)
        query = self._read_query(query)
        references = self._read_references(reference_points, query)
        locations = self._locations(sampling_offsets(query), references, levels)
        logits = reshape(attention_weights(query), locations.shape[:-1])
        return locations, jax.nn.softmax(logits)

    @usual_promotion()
    def _locations(self, offsets: jax.Array, references: jax.Array, levels: Levels) -> jax.Array:
        """Locations of predicted offsets [..., Q, M * sum(points) * 2]."""
        counts = np.array(self.points)
        level = np.repeat(np.arange(len(counts)), counts)
        offsets = reshape(offsets, (*offsets.shape[:-1], self.heads, len(level), 2))
        references = references.astype(offsets.dtype)[..., None, level, :]
        if references.shape[-1] == 2:
            sizes = np.array([(width, height) for height, width in levels])[level]
            return references + offsets / sizes.astype(offsets.dtype)
        reach = (0.5 / counts[level])[:, None].astype(offsets.dtype)
        return references[..., :2] + offsets * reach * references[..., 2:]

    def _attend(
        self, value: jax.Array, locations: jax.Array, logits: jax.Array, levels: Levels
    ) -> jax.Array:
        batch = Batch.of(value, 2)
        value, locations, logits = map(batch.merge, (value, locations, logits))
        n, queries, heads, points, _ = locations.shape
        y = ms_deform_attn(
            reshape(value, (n, value.shape[1], heads, self.features // heads)),
            locations,
            reshape(logits, (n, queries, heads, points)),
            spatial_shapes=levels,
            points=self.points,
            method=self.method,
            normalize=True,
            implementation=self.implementation,
        )
        return batch.split(reshape(y, (n, queries, self.features)))

    def _read_query(self, query: Any) -> jax.Array:
        query = read_real(self.names.query, query)
        if query.ndim < 2 or query.shape[-1] != self.features:
            raise ValueError(
                f"{self.names.query} must have shape (..., queries, "
                f"{self.names.features} = {self.features}), got {query.shape}"
            )
        return query

    def _read_references(self, reference_points: Any, query: jax.Array) -> jax.Array:
        references = arguments.as_float_array("reference_points", reference_points)
        shape = (*query.shape[:-1], len(self.points))
        if references.shape not in ((*shape, 2), (*shape, 4)):
            raise ValueError(
                f"reference_points must have the dimensions of {self.names.query} before its last, "
                f"the levels and 2 or 4: {(*shape, 2)} or {(*shape, 4)}, got {references.shape}"
            )
        return references

    def _read_levels(self, spatial_shapes: Any) -> Levels:
        levels = read_spatial_shapes(spatial_shapes)
        if len(levels) != len(self.points):
            raise ValueError(
                f"spatial_shapes must have num_levels = {len(self.points)} pairs, "
                f"got {arguments.shown(spatial_shapes)}"
            )
        return levels

    def _read_value(self, value: Any, query: jax.Array, levels: Levels) -> jax.Array:
        value = read_real(self.names.value, value)
        pixels = sum(height * width for height, width in levels)
        expected = (*query.shape[:-2], pixels, self.features)
        if value.shape != expected:
            raise ValueError(
                f"{self.names.value} must have the batch of {self.names.query}, the pixels of "
                f"spatial_shapes and {self.names.features}, {expected}, got {value.shape}"
            )
        return value

    def _read_padding_mask(self, padding_mask: Any, value: jax.Array) -> jax.Array | None:
        if padding_mask is None:
            return None
        padding_mask = arguments.to_array("padding_mask", padding_mask)
        if padding_mask.dtype != bool:
            raise TypeError(f"padding_mask must be of bools, got dtype {padding_mask.dtype}")
        if padding_mask.shape != value.shape[:-1]:
            raise ValueError(
                f"padding_mask must have shape {value.shape[:-1]}, got {padding_mask.shape}"
            )
        return padding_mask
