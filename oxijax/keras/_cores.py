"""Stand-ins for the sampling of detectors in Keras, with the same arguments and results."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from keras import ops

from oxijax._sampling.grid_sample import grid_sample as sample_images
from oxijax._sampling.ms_deform_attn import ms_deform_attn
from oxijax.keras import _probes as probes
from oxijax.keras._probes import Shapes

__all__ = ["CORES", "Core"]


class Core(NamedTuple):
    """A function of a library that has a stand-in.

    Attributes:
      module: the module that has it.
      name: its name there, or that of a class and its method.
      stand_in: a function of the original, for cases that only that has, which makes the stand-in.
      probe: drawn arguments to compare both with, of the module or the class.
    """

    module: str
    name: str
    stand_in: Callable[[Callable[..., Any]], Callable[..., Any]]
    probe: probes.Probe


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


def _swap(array: Any, middle: int) -> jax.Array:
    """The dimensions from `middle` on before those from 1 to there: [B, product, product].

    XLA transposes two dimensions on a CPU in half the time that three or four take.
    """
    array = ops.convert_to_tensor(array)
    batch, *sizes = array.shape
    first, last = math.prod(sizes[: middle - 1]), math.prod(sizes[middle - 1 :])
    return jnp.swapaxes(array.reshape(batch, first, last), 1, 2)


def _channels_before_pixels(_: Any) -> Callable[..., Any]:
    def ms_deform_attn_core(
        value: Any, value_spatial_shapes: Shapes, sampling_locations: Any, attention_weights: Any
    ) -> jax.Array:
        levels, points = sampling_locations.shape[3:5]
        batch, heads, channels, pixels = ops.shape(value)
        value = _swap(value, 3).reshape(batch, pixels, heads, channels)
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
        batch, channels, *size = data.shape
        size = size if height is None else (int(height), int(width))
        # Of few positions less is saved than it takes to transpose the images.
        if 4 * math.prod(grid.shape[1:3]) < math.prod(size):
            return original(data, grid, align_corners, height, width)
        images = _swap(data, 2).reshape(batch, *size, channels)
        y = sample_images(images, grid, align_corners=bool(align_corners))
        y = _swap(y, 3).reshape(batch, channels, *grid.shape[1:3])
        return y.astype(jnp.result_type(data, grid))

    return grid_sample


_D_FINE = "keras_hub.src.models.d_fine.d_fine_"


def _zeromodels(family: str) -> str:
    return f"zeromodels.models.{family}.{family}_layers"


CORES = (
    # RF-DETR's own code has one level alone: it divides the pixels of more at the wrong places.
    Core(
        *(_zeromodels("rf_detr"), "ms_deform_attn_core"),
        *(_channels_before_pixels, probes.one_level),
    ),
    *(
        Core(
            *(_zeromodels(family), "ms_deform_attn_core"),
            *(_channels_before_pixels, probes.channels_before_pixels),
        )
        for family in ("rt_detr", "rt_detr_v2", "grounding_dino")
    ),
    Core(
        *(_zeromodels("dfine"), "ms_deform_attn_core_variable"),
        *(_counted_points, probes.counted_points),
    ),
    Core(
        *(_zeromodels("mask2former"), "Mask2FormerDeformableAttention.call"),
        *(_layer_call, probes.layer_call),
    ),
    Core(
        *(_zeromodels("oneformer"), "OneFormerDeformableAttention.call"),
        *(_layer_call, probes.layer_call),
    ),
    Core(
        *(f"{_D_FINE}utils", probes.KERAS_HUB_CORE),
        *(_keras_hub_core, probes.keras_hub_core),
    ),
    Core(
        *(f"{_D_FINE}attention", "DFineMultiscaleDeformableAttention.call"),
        *(_keras_hub_call, probes.keras_hub_call),
    ),
    Core(
        *(f"{_D_FINE}utils", "grid_sample"),
        *(_keras_hub_grid_sample, probes.keras_hub_grid_sample),
    ),
)
