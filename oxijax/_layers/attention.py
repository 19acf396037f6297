"""Multi-scale deformable attention as a layer of any library."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import Implementation, parse_implementation
from oxijax._core.arguments.precision import usual_promotion
from oxijax._core.primitive.explicit import reshape
from oxijax._layers.arguments import as_real_array, check_shape, parse_divisor
from oxijax._layers.batch import Batch
from oxijax._sampling.ms_deform_attn import check_method, ms_deform_attn, parse_spatial_shapes

__all__ = ["Attention", "Names"]

Levels = tuple[tuple[int, ...], ...]  # the sizes of each, of which the width is the last


class Names(NamedTuple):
    """A library's names of features, queries and values in the arguments of its layer."""

    features: str
    query: str
    value: str


@dataclasses.dataclass(frozen=True)
class Attention:
    """The static part of a layer.

    Attributes:
      names: the library's names of arguments.
      features: the number of features of queries, of values and of the result.
      heads: the number of heads, which divides features.
      points: the number of points of each level.
      offset_scale: offsets from a box's middle count in so many of its sizes.
      project: whether values and the result are projected.
      method: `method` of `oxijax.ms_deform_attn`.
      implementation: `implementation` of `oxijax.ms_deform_attn`.
      dims: the dimensions of the images, 1, 2 or 3.
    """

    names: Names
    features: int
    heads: int
    points: tuple[int, ...]
    offset_scale: float
    project: bool
    method: str
    implementation: Implementation = None
    dims: int = 2

    @classmethod
    def parse(
        cls, names: Names, features: Any, num_heads: Any, num_levels: Any,
        num_points: int | Sequence[int], offset_scale: Any, project: Any, method: Any,
        implementation: Any, dims: Any,
    ) -> "Attention":  # fmt: skip
        """The static part of a layer with these arguments, which are checked."""
        heads, features = parse_divisor("num_heads", num_heads, (names.features, features))
        levels = checks.parse_int("num_levels", num_levels)
        if checks.is_int(num_points):
            points = (checks.parse_int("num_points", num_points),) * levels
        else:
            counts = checks.parse_sequence("num_points", num_points)
            points = tuple(checks.parse_int(f"num_points[{i}]", n) for i, n in enumerate(counts))
            if len(points) != levels:
                raise ValueError(
                    f"num_points must have a number for each of the {levels} levels, "
                    f"got {checks.shown(num_points)}"
                )
        offset_scale = checks.parse_number("offset_scale", offset_scale)
        project = checks.parse_bool("project", project)
        check_method(method)
        implementation = parse_implementation(implementation)
        dims = checks.parse_int("dims", dims, 3)
        of_calls = (offset_scale, project, method, implementation, dims)
        return cls(names, features, heads, points, *of_calls)

    @property
    def weight_features(self) -> int:
        return self.heads * sum(self.points)

    @property
    def offset_features(self) -> int:
        return self.dims * self.weight_features

    def init_offset_bias(self, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Initializer of the offsets that a new layer has for every query.

        Each head has a direction of its own, and point after point is a pixel farther away.
        """
        directions = _directions(self.heads, self.dims)
        directions /= np.abs(directions).max(-1, keepdims=True)
        steps = np.concatenate([np.arange(1, count + 1) for count in self.points])
        return jnp.asarray((directions[:, None] * steps[:, None]).reshape(shape), dtype)

    def __call__(
        self,
        query: Any,
        reference_points: Any,
        value: Any,
        padding_mask: Any,
        spatial_shapes: Any,
        sublayers: Any,
        **options: Any,
    ) -> jax.Array:
        """The layer's result [..., Q, features], of arguments that are not yet checked.

        `sublayers` has functions of arrays [..., features] as attributes sampling_offsets,
        attention_weights and, if the layer projects, value_proj and output_proj; the latter takes
        the options.
        """
        levels, query, references = self._parse_points(query, reference_points, spatial_shapes)
        value = self._as_value(value, query, levels)
        padding_mask = self._as_padding_mask(padding_mask, value)
        locations = self._locations(sublayers.sampling_offsets(query), references, levels)
        logits = sublayers.attention_weights(query)
        if self.project:
            value = sublayers.value_proj(value)
        if padding_mask is not None:
            value = jnp.where(padding_mask[..., None], jnp.zeros((), value.dtype), value)
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
        y = batch.split(reshape(y, (n, queries, self.features)))
        return sublayers.output_proj(y, **options) if self.project else y

    def sampling_points(
        self, query: Any, reference_points: Any, spatial_shapes: Any, sublayers: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Locations [..., Q, M, sum(points), K] and weights [..., Q, M, sum(points)]."""
        levels, query, references = self._parse_points(query, reference_points, spatial_shapes)
        locations = self._locations(sublayers.sampling_offsets(query), references, levels)
        logits = reshape(sublayers.attention_weights(query), locations.shape[:-1])
        return locations, jax.nn.softmax(logits)

    @usual_promotion()
    def _locations(self, offsets: jax.Array, references: jax.Array, levels: Levels) -> jax.Array:
        """Locations of predicted offsets [..., Q, M * sum(points) * K]."""
        counts = np.array(self.points)
        level = np.repeat(np.arange(len(counts)), counts)
        offsets = reshape(offsets, (*offsets.shape[:-1], self.heads, len(level), self.dims))
        level_or_all = np.minimum(level, references.shape[-2] - 1)
        references = references.astype(offsets.dtype)[..., None, level_or_all, :]
        if references.shape[-1] == self.dims:
            sizes = np.array([sizes[::-1] for sizes in levels])[level]
            return references + offsets / sizes.astype(offsets.dtype)
        reach = (self.offset_scale / counts[level])[:, None].astype(offsets.dtype)
        return references[..., : self.dims] + offsets * reach * references[..., self.dims :]

    def _parse_points(
        self, query: Any, reference_points: Any, spatial_shapes: Any
    ) -> tuple[Levels, jax.Array, jax.Array]:
        """Levels, queries and reference points, which are checked."""
        levels = parse_spatial_shapes(spatial_shapes, ranks=(self.dims,))
        if len(levels) != len(self.points):
            raise ValueError(
                f"spatial_shapes must have num_levels = {len(self.points)} levels, "
                f"got {checks.shown(spatial_shapes)}"
            )
        features, name, _ = self.names
        query = as_real_array(name, query)
        if query.ndim < 2 or query.shape[-1] != self.features:
            raise ValueError(
                f"{name} must have shape (..., queries, {features} = {self.features}), "
                f"got {query.shape}"
            )
        references = checks.as_float_array("reference_points", reference_points)
        shapes = [
            (*query.shape[:-1], count, size)
            for count in (len(self.points), 1)
            for size in (self.dims, 2 * self.dims)
        ]
        check_shape(
            "reference_points", references,
            f"..., queries, num_levels or 1, {self.dims} or {2 * self.dims}",
            *dict.fromkeys(shapes),
        )  # fmt: skip
        return levels, query, references

    def _as_value(self, value: Any, query: jax.Array, levels: Levels) -> jax.Array:
        features, _, name = self.names
        value = as_real_array(name, value)
        pixels = sum(map(math.prod, levels))
        shape = (*query.shape[:-2], pixels, self.features)
        check_shape(name, value, f"..., pixels of spatial_shapes, {features}", shape)
        return value

    def _as_padding_mask(self, padding_mask: Any, value: jax.Array) -> jax.Array | None:
        if padding_mask is None:
            return None
        padding_mask = checks.to_array("padding_mask", padding_mask)
        if padding_mask.dtype != bool:
            raise TypeError(
                "padding_mask must be of bools, True where values count as zeros (the inverse of "
                "Hugging Face's attention_mask, but in Mask2Former and OneFormer), got dtype "
                f"{padding_mask.dtype}"
            )
        check_shape("padding_mask", padding_mask, "..., pixels", value.shape[:-1])
        return padding_mask


def _directions(count: int, dims: int) -> np.ndarray:
    """Directions [count, dims] that are spread evenly.

    Those in a volume lie on a spiral around a sphere, a golden angle after each other.
    """
    if dims == 1:
        return np.resize([[1.0], [-1.0]], (count, 1))
    if dims == 2:
        angles = np.arange(count) * (2 * math.pi / count)
        return np.stack([np.cos(angles), np.sin(angles)], -1)
    angles = np.arange(count) * (math.pi * (3 - math.sqrt(5)))
    z = 1 - (2 * np.arange(count) + 1) / count
    radius = np.sqrt(1 - z**2)
    return np.stack([radius * np.cos(angles), radius * np.sin(angles), z], -1)
