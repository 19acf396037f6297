"""DETR's loss: each digit is found by one query, the one that does it at the least cost.

Sources: Carion et al., "End-to-End Object Detection with Transformers", 2020; for classes, Lin et
al., "Focal Loss for Dense Object Detection", 2017.
"""

import functools
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import optax
from digit_scenes import Scenes, corners

__all__ = ["Detections", "generalized_iou", "loss", "match"]

_focal = functools.partial(optax.sigmoid_focal_loss, alpha=0.25, gamma=2)


class Detections(Protocol):
    """Boxes [N, Q, 4] and logits [N, Q, CLASSES] of N images."""

    @property
    def boxes(self) -> jax.Array: ...
    @property
    def logits(self) -> jax.Array: ...


def generalized_iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of boxes [..., 4]: the intersection over union, less the share of their hull in neither.

    Source: Rezatofighi et al., "Generalized Intersection over Union", 2019.
    """
    (a_first, a_last), (b_first, b_last) = corners(a), corners(b)
    shared = jnp.maximum(jnp.minimum(a_last, b_last) - jnp.maximum(a_first, b_first), 0).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared
    hull = (jnp.maximum(a_last, b_last) - jnp.minimum(a_first, b_first)).prod(-1)
    return shared / union - (hull - union) / hull


def match(found: Detections, scenes: Scenes) -> jax.Array:
    """Which query is to find each digit, [N, digits]: those that do it at the least cost."""
    zeros = jnp.zeros_like(found.logits)
    cost = _focal(found.logits, zeros + 1) - _focal(found.logits, zeros)
    cost = jnp.take_along_axis(cost, jnp.maximum(scenes.labels, 0)[:, None], axis=2)
    pairs = found.boxes[:, :, None], scenes.boxes[:, None]
    cost = 2 * cost + 5 * jnp.abs(pairs[0] - pairs[1]).sum(-1) - 2 * generalized_iou(*pairs)
    cost = jnp.where(scenes.labels[:, None] < 0, 0, cost)  # it doesn't matter who finds none

    def one(cost: jax.Array) -> jax.Array:
        query, digit = optax.assignment.hungarian_algorithm(cost)
        return jnp.zeros(cost.shape[1], jnp.int32).at[digit].set(query.astype(jnp.int32))

    return jax.vmap(one)(jax.lax.stop_gradient(cost))


def loss(layers: Sequence[Detections], scenes: Scenes) -> jax.Array:
    """DETR's loss a digit, summed over the decoders, with focal loss for classes."""
    present = scenes.labels >= 0
    total = jnp.zeros(())
    for found in layers:
        query = match(found, scenes)
        boxes = jnp.take_along_axis(found.boxes, query[..., None], axis=1)
        of_boxes = 5 * jnp.abs(boxes - scenes.boxes).sum(-1)
        of_boxes += 2 * (1 - generalized_iou(boxes, scenes.boxes))
        image = jnp.arange(len(query))[:, None]
        right = jnp.zeros_like(found.logits)
        right = right.at[image, query, jnp.maximum(scenes.labels, 0)].add(present)
        of_classes = _focal(found.logits, right)
        total += jnp.sum(of_boxes, where=present) + 2 * jnp.sum(of_classes)
    return total / jnp.maximum(jnp.sum(present), 1)
