"""Networks of the sizes that were published, as far as their deformable layers depend on them.

Stages have one or two of their blocks. Networks are traced, never run: parameters have no values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from basicvsr_network import BasicVSRPlusPlus
from flax import nnx
from jax.extend.core import jaxprs_in_params

import oxijax.nnx

__all__ = [
    "basicvsr",
    "dcn_resnet50",
    "deformable_detr",
    "internimage_t",
    "layers_of",
    "rt_detr",
]

Layer = tuple[Any, list[tuple[int, ...]]]  # the description, and the shapes of all operands


@functools.cache
def layers_of(
    network: Callable[[jax.Array], Any], inputs: tuple[int, ...], primitive: str
) -> list[Layer]:
    """The calls of a primitive that a network makes for inputs of a shape, each once."""
    found: list[Layer] = []
    jaxpr = jax.make_jaxpr(network)(jax.ShapeDtypeStruct(inputs, jnp.float32))
    for equation in _equations(jaxpr.jaxpr):
        if equation.primitive.name == primitive:
            layer = equation.params["config"].op, [v.aval.shape for v in equation.invars]
            if layer not in found:
                found.append(layer)
    return found


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for part in jaxprs_in_params(equation.params):
            yield from _equations(part)


def basicvsr(frames: jax.Array) -> jax.Array:
    """BasicVSR++, of videos [N, T, H, W, 3]."""
    return BasicVSRPlusPlus(num_blocks=1, outer_blocks=1, rngs=nnx.Rngs(0))(frames)


def _conv(x: jax.Array, features: int, size: int, stride: int = 1) -> jax.Array:
    strides, padding = (stride, stride), ((size // 2, size // 2),) * 2
    layer = nnx.Conv(
        x.shape[-1],
        features,
        (size, size),
        strides,
        padding=padding,
        use_bias=False,
        rngs=nnx.Rngs(0),
    )
    return layer(x)


def _bottleneck(x: jax.Array, features: int, stride: int, deformable: bool) -> jax.Array:
    """A residual block of ResNet-50, whose 3x3 layer has the stride."""
    y = _conv(x, features, 1)
    if deformable:
        y = oxijax.nnx.DeformConv(
            features, features, 3, stride, padding=1, use_bias=False, rngs=nnx.Rngs(0)
        )(y)
    else:
        y = _conv(y, features, 3, stride)
    y = _conv(y, 4 * features, 1)
    return y if x.shape != y.shape else x + y


def dcn_resnet50(images: jax.Array, deformable: bool = True) -> list[jax.Array]:
    """ResNet-50 with deformable 3x3 layers in conv3 to conv5; the results of these stages."""
    x = _conv(images, 64, 7, 2)
    x = nnx.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))  # pyright: ignore[reportArgumentType]
    stages = []
    for number in range(4):
        for block in range(2):
            stride = 2 if number and not block else 1
            x = _bottleneck(x, 64 * 2**number, stride, deformable and number > 0)
        stages.append(x)
    return stages[1:]


def _attend(levels: list[jax.Array], queries: int | None) -> jax.Array:
    """One layer of attention to feature maps of 256 channels; None is a query for each pixel."""
    n, shapes = levels[0].shape[0], tuple((x.shape[1], x.shape[2]) for x in levels)
    values = jnp.concatenate([level.reshape(n, -1, 256) for level in levels], axis=1)
    asked = values if queries is None else jnp.zeros((n, queries, 256))
    points = jnp.zeros((n, asked.shape[1], len(levels), 2))
    layer = oxijax.nnx.MSDeformAttn(256, num_heads=8, num_levels=len(levels), rngs=nnx.Rngs(0))
    return layer(asked, points, values, spatial_shapes=shapes)


def deformable_detr(images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Deformable DETR: ResNet-50's conv3 to conv5 and a fourth level, 300 objects."""
    stages = dcn_resnet50(images, deformable=False)
    levels = [_conv(stage, 256, 1) for stage in stages]
    levels.append(_conv(stages[-1], 256, 3, 2))
    return _attend(levels, None), _attend(levels, 300)


def rt_detr(images: jax.Array) -> jax.Array:
    """RT-DETR's decoder: three levels of the encoder, 300 objects."""
    return _attend([_conv(s, 256, 1) for s in dcn_resnet50(images, deformable=False)], 300)


def internimage_t(images: jax.Array) -> jax.Array:
    """InternImage-T: 64 channels in the first of four stages, groups of 16 channels."""
    x = _conv(_conv(images, 32, 3, 2), 64, 3, 2)
    for number in range(4):
        features, groups = 64 * 2**number, 4 * 2**number
        if number:
            x = _conv(x, features, 3, 2)
        x = x + oxijax.nnx.DCNv3(features, 3, groups=groups, rngs=nnx.Rngs(0))(x)
    return x
