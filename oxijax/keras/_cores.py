"""Stand-ins for the sampling of detectors in Keras, with the same arguments and results."""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from keras import ops

from oxijax._sampling.grid_sample import grid_sample as sample_images
from oxijax._sampling.ms_deform_attn import ms_deform_attn

__all__ = ["CORES", "Core"]

Shapes = Sequence[tuple[int, int]]  # height and width of each level


class Core(NamedTuple):
    """A function of a library that has a stand-in.

    Attributes:
      module: the module that has it.
      name: its name there, or that of a class and its method.
      stand_in: a function of the original, for cases that only that has, which makes the stand-in.
      probe: a function of the module or the class, which makes arguments to compare both with.
    """

    module: str
    name: str
    stand_in: Callable[[Callable[..., Any]], Callable[..., Any]]
    probe: Callable[[Any], Sequence[tuple[Any, ...]]]


def _attend(
    value: Any, shapes: Shapes, locations: Any, weights: Any, points: Sequence[int],
    method: str = "bilinear",
) -> jax.Array:  # fmt: skip
    """`ms_deform_attn` of locations [B, Q, M, ..., 2], with heads and channels as one dimension.

    The result's dtype is that of their product.
    """
    value, locations, weights = map(ops.convert_to_tensor, (value, locations, weights))
    dtype = jnp.result_type(value, locations, weights)
    batch, queries, heads = locations.shape[:3]
    count = sum(points)
    y = ms_deform_attn(
        value,
        locations.reshape(batch, queries, heads, count, 2),
        weights.reshape(batch, queries, heads, count),
        spatial_shapes=tuple((int(height), int(width)) for height, width in shapes),
        points=tuple(points),
        method=method,
    )
    return y.reshape(batch, queries, heads * value.shape[-1]).astype(dtype)


def _channels_before_pixels(_: Any) -> Callable[..., Any]:
    def ms_deform_attn_core(
        value: Any, value_spatial_shapes: Shapes, sampling_locations: Any, attention_weights: Any
    ) -> jax.Array:
        levels, points = sampling_locations.shape[3:5]
        value = ops.transpose(value, (0, 3, 1, 2))
        counts = (points,) * levels
        return _attend(value, value_spatial_shapes, sampling_locations, attention_weights, counts)

    return ms_deform_attn_core


def _counted_points(_: Any) -> Callable[..., Any]:
    def ms_deform_attn_core_variable(
        value: Any, value_spatial_shapes: Shapes, sampling_locations: Any, attention_weights: Any,
        num_points_list: Sequence[int],
    ) -> jax.Array:  # fmt: skip
        return _attend(
            value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list
        )

    return ms_deform_attn_core_variable


def _layer_call(_: Any) -> Callable[..., Any]:
    """The call of a layer that sums all samples itself: there is nothing smaller to replace."""

    def call(self: Any, query: Any, reference_points: Any, value: Any) -> Any:
        batch, queries = ops.shape(query)[:2]
        shapes, heads, levels, points = (
            *(self.spatial_shapes, self.n_heads, self.n_levels, self.n_points),
        )
        value = self.value_proj(value)
        value = ops.reshape(value, (batch, -1, heads, self.head_dim))
        offsets = self.sampling_offsets(query)
        offsets = ops.reshape(offsets, (batch, queries, heads, levels, points, 2))
        logits = self.attention_weights(query)
        logits = ops.reshape(logits, (batch, queries, heads, levels * points))
        sizes = np.array([(width, height) for height, width in shapes], "float32")
        locations = reference_points[:, :, None, :, None, :] + offsets / sizes[:, None]
        weights = ops.softmax(logits, axis=-1)
        return self.output_proj(_attend(value, shapes, locations, weights, (points,) * levels))

    return call


def _keras_hub_call(_: Any) -> Callable[..., Any]:
    """The call of a layer that keeps its core as an attribute, the original in those that exist."""
    core = _keras_hub_core(None)

    def call(
        self: Any, hidden_states: Any, encoder_hidden_states: Any, reference_points: Any,
        spatial_shapes: Any,
    ) -> Any:  # fmt: skip
        locations, weights = self.compute_attention(hidden_states, reference_points, spatial_shapes)
        batch, pixels, _ = ops.shape(encoder_hidden_states)
        value = ops.reshape(encoder_hidden_states, (batch, pixels, self.n_heads, -1))
        levels = (self.spatial_shapes, self.n_levels, locations.shape[1], self.decoder_method)
        return core(value, None, locations, weights, self.num_points, None, *levels), weights

    return call


def _keras_hub_core(_: Any) -> Callable[..., Any]:
    def multi_scale_deformable_attention_v2(
        value: Any, dynamic_spatial_shapes: Any, sampling_locations: Any, attention_weights: Any,
        num_points: Sequence[int], slice_sizes: Any, spatial_shapes: Shapes, num_levels: int,
        num_queries: int, method: str = "default",
    ) -> jax.Array:  # fmt: skip
        ours = "nearest" if method == "discrete" else "bilinear"
        return _attend(
            value, spatial_shapes, sampling_locations, attention_weights, num_points, ours
        )

    return multi_scale_deformable_attention_v2


def _keras_hub_grid_sample(original: Callable[..., Any]) -> Callable[..., Any]:
    def grid_sample(
        data: Any, grid: Any, align_corners: bool = False, height: Any = None, width: Any = None
    ) -> Any:
        if (height is None) != (width is None):  # a part of the image, or rows that overlap
            return original(data, grid, align_corners, height, width)
        data, grid = ops.convert_to_tensor(data), ops.convert_to_tensor(grid)
        images = jnp.transpose(data, (0, 2, 3, 1))
        if height is not None:
            images = images.reshape(images.shape[0], int(height), int(width), -1)
        y = sample_images(images, grid, align_corners=bool(align_corners))
        return jnp.transpose(y, (0, 3, 1, 2)).astype(jnp.result_type(data, grid))

    return grid_sample


_LEVELS = ((4, 5), (3, 2))
_PIXELS = 26


def _drawn(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> jax.Array:
    drawn = np.random.default_rng(seed).uniform(low, high, shape)
    return ops.convert_to_tensor(drawn.astype("float32"))


def _attention_arguments(levels: Shapes, points: Sequence[int]) -> tuple[Any, Any, Any]:
    """Values [2, S, 2, 8], locations [2, 3, 2, sum(points), 2], also outside, and weights."""
    pixels = sum(map(math.prod, levels))
    locations = _drawn(2, 3, 2, sum(points), 2, low=-0.2, high=1.2)
    return _drawn(2, pixels, 2, 8), locations, _drawn(2, 3, 2, sum(points), seed=1)


def _probe_core(*levels: tuple[int, int]) -> Callable[[Any], Sequence[tuple[Any, ...]]]:
    def probe(_: Any) -> Sequence[tuple[Any, ...]]:
        value, locations, weights = _attention_arguments(levels, (2,) * len(levels))
        locations = locations.reshape(2, 3, 2, len(levels), 2, 2)
        return [(ops.transpose(value, (0, 2, 3, 1)), levels, locations, weights)]

    return probe


def _probe_counted(_: Any) -> Sequence[tuple[Any, ...]]:
    value, locations, weights = _attention_arguments(_LEVELS, (3, 2))
    return [(value, list(_LEVELS), locations, weights, [3, 2])]


def _dense(inputs: int, *outputs: int, seed: int) -> Callable[[jax.Array], jax.Array]:
    kernel = _drawn(inputs, math.prod(outputs), seed=seed)
    return lambda x: (x @ kernel).reshape(*x.shape[:-1], *outputs)


def _probe_layer(_: Any) -> Sequence[tuple[Any, ...]]:
    # What looks like a layer: a real one would change the names and the seeds of later ones.
    layer = SimpleNamespace(
        hidden_dim=16, n_heads=2, n_levels=2, n_points=2, head_dim=8, spatial_shapes=_LEVELS,
        sampling_offsets=_dense(16, 16, seed=1), attention_weights=_dense(16, 8, seed=2),
        value_proj=_dense(16, 16, seed=3), output_proj=_dense(16, 16, seed=4),
    )  # fmt: skip
    references = _drawn(2, 3, 2, 2, low=0.0)
    return [(layer, _drawn(2, 3, 16), references, _drawn(2, _PIXELS, 16, seed=1))]


def _probe_keras_hub_core(_: Any) -> Sequence[tuple[Any, ...]]:
    value, locations, weights = _attention_arguments(_LEVELS, (3, 2))
    shapes, sizes = np.array(_LEVELS), [*map(math.prod, _LEVELS)]
    arguments = (value, shapes, locations, weights, [3, 2], sizes, list(_LEVELS), 2, 3)
    return [(*arguments, "default"), (*arguments, "discrete")]


def _probe_keras_hub_call(cls: Any) -> Sequence[tuple[Any, ...]]:
    layer = SimpleNamespace(
        hidden_dim=16, n_heads=2, n_levels=2, num_points=[3, 2], spatial_shapes=list(_LEVELS),
        num_points_scale=np.array([1 / 3] * 3 + [1 / 2] * 2, "float32"), offset_scale=0.5,
        sampling_offsets=_dense(16, 2, 5, 2, seed=1), attention_weights=_dense(16, 2, 5, seed=2),
        ms_deformable_attn_core=vars(sys.modules[cls.__module__])[_KERAS_HUB_CORE],
    )  # fmt: skip
    layer.compute_attention = functools.partial(cls.compute_attention, layer)
    arguments = _drawn(2, 3, 16), _drawn(2, _PIXELS, 16, seed=1), _drawn(2, 3, 1, 4, low=0.1)
    layers = [SimpleNamespace(**vars(layer), decoder_method=m) for m in ("default", "discrete")]
    return [(each, *arguments, np.array(_LEVELS)) for each in layers]


def _probe_keras_hub_grid_sample(_: Any) -> Sequence[tuple[Any, ...]]:
    arguments = _drawn(2, 8, 4, 5), _drawn(2, 3, 4, 2, low=-1.2, high=1.2)
    return [(*arguments, False), (*arguments, True), (*arguments, False, 5, 4)]


_KERAS_HUB_CORE = "multi_scale_deformable_attention_v2"
_D_FINE = "keras_hub.src.models.d_fine.d_fine_"


def _zeromodels(family: str) -> str:
    return f"zeromodels.models.{family}.{family}_layers"


CORES = (
    # RF-DETR's own code has one level alone: it divides the pixels of more at the wrong places.
    Core(
        *(_zeromodels("rf_detr"), "ms_deform_attn_core", _channels_before_pixels),
        _probe_core((4, 5)),
    ),
    *(
        Core(
            *(_zeromodels(family), "ms_deform_attn_core", _channels_before_pixels),
            _probe_core(*_LEVELS),
        )
        for family in ("rt_detr", "rt_detr_v2", "grounding_dino")
    ),
    Core(_zeromodels("dfine"), "ms_deform_attn_core_variable", _counted_points, _probe_counted),
    Core(
        *(_zeromodels("mask2former"), "Mask2FormerDeformableAttention.call", _layer_call),
        _probe_layer,
    ),
    Core(
        *(_zeromodels("oneformer"), "OneFormerDeformableAttention.call", _layer_call),
        _probe_layer,
    ),
    Core(
        *(f"{_D_FINE}utils", _KERAS_HUB_CORE, _keras_hub_core),
        _probe_keras_hub_core,
    ),
    Core(
        *(f"{_D_FINE}attention", "DFineMultiscaleDeformableAttention.call", _keras_hub_call),
        _probe_keras_hub_call,
    ),
    Core(*(f"{_D_FINE}utils", "grid_sample", _keras_hub_grid_sample), _probe_keras_hub_grid_sample),
)
