"""RT-DETRv2 behind its hybrid encoder, from feature maps to boxes, with transformers' weights.

`python examples/rtdetr.py` makes the model of RT-DETRv2-R18's sizes with random weights and times
a call; `python examples/rtdetr.py model.safetensors` has the published weights. It needs
`pip install ".[flax,convert]"`.

Source: Lv et al., "RT-DETRv2", 2024.
"""

import functools
import itertools
import math
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import oxijax.nnx

Shapes = tuple[tuple[int, int], ...]  # height and width of each level
Found = tuple[jax.Array, jax.Array]  # boxes (x, y, width, height) [N, queries, 4], and logits
norm = functools.partial(nnx.LayerNorm, epsilon=1e-5)


class Sizes(NamedTuple):  # of RT-DETRv2-R18 where nothing else is said
    features: int = 256
    heads: int = 8
    levels: int = 3
    points: int = 4
    layers: int = 3
    feed_forward: int = 1024
    queries: int = 300
    classes: int = 80
    method: str = "bilinear"  # or "nearest", which transformers calls "discrete"


class MLP(nnx.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, *features: int, rngs: nnx.Rngs):
        pairs = itertools.pairwise(features)
        self.layers = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class SelfAttention(nnx.Module):
    """Queries look at each other; their places are added to queries and keys."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.heads, width = sizes.heads, sizes.features
        projections = [nnx.Linear(width, width, rngs=rngs) for _ in range(4)]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = projections

    def __call__(self, x: jax.Array, places: jax.Array) -> jax.Array:
        projected = (self.q_proj(x + places), self.k_proj(x + places), self.v_proj(x))
        q, k, v = (a.reshape(*a.shape[:-1], self.heads, -1) for a in projected)
        weights = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(q.shape[-1]))
        return self.o_proj(jnp.einsum("nhqk,nkhd->nqhd", weights, v).reshape(x.shape))


class DecoderLayer(nnx.Module):
    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        width, points = sizes.features, (sizes.heads, sizes.levels, sizes.points)
        self.self_attn = SelfAttention(sizes, rngs)
        self.encoder_attn = oxijax.nnx.MSDeformAttn(width, *points, method=sizes.method, rngs=rngs)
        self.mlp = MLP(width, sizes.feed_forward, width, rngs=rngs)
        norms = [norm(width, rngs=rngs) for _ in range(3)]
        self.self_attn_layer_norm, self.encoder_attn_layer_norm, self.final_layer_norm = norms

    def __call__(
        self, x: jax.Array, boxes: jax.Array, places: jax.Array, values: jax.Array, shapes: Shapes
    ) -> jax.Array:
        x = self.self_attn_layer_norm(x + self.self_attn(x, places))
        attended = self.encoder_attn(x + places, boxes[:, :, None], values, spatial_shapes=shapes)
        x = self.encoder_attn_layer_norm(x + attended)
        return self.final_layer_norm(x + self.mlp(x))


class Decoder(nnx.Module):
    """Layers that each correct the boxes of the one before."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        width, layers = sizes.features, range(sizes.layers)
        self.layers = nnx.List([DecoderLayer(sizes, rngs) for _ in layers])
        self.query_pos_head = MLP(4, 2 * width, width, rngs=rngs)
        self.class_embed = nnx.List([nnx.Linear(width, sizes.classes, rngs=rngs) for _ in layers])
        self.bbox_embed = nnx.List([MLP(width, width, width, 4, rngs=rngs) for _ in layers])

    def __call__(self, x: jax.Array, boxes: jax.Array, values: jax.Array, shapes: Shapes) -> Found:
        for layer, correct in zip(self.layers, self.bbox_embed, strict=True):
            boxes = jax.lax.stop_gradient(boxes)
            x = layer(x, boxes, self.query_pos_head(boxes), values, shapes)
            logit = jnp.log(jnp.clip(boxes, 1e-5, 1)) - jnp.log(jnp.clip(1 - boxes, 1e-5, 1))
            boxes = jax.nn.sigmoid(correct(x) + logit)
        return boxes, self.class_embed[-1](x)


class RTDETRv2(nnx.Module):
    """Feature maps [N, H, W, features], the finest first, to boxes and logits."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        width, self.queries = sizes.features, sizes.queries
        self.decoder_input_proj = nnx.List()
        for _ in range(sizes.levels):
            conv = nnx.Conv(width, width, (1, 1), use_bias=False, rngs=rngs)
            batch_norm = nnx.BatchNorm(width, use_running_average=True, epsilon=1e-5, rngs=rngs)
            self.decoder_input_proj.append(nnx.Sequential(conv, batch_norm))
        linear = nnx.Linear(width, width, rngs=rngs)
        self.enc_output = nnx.Sequential(linear, norm(width, rngs=rngs))
        self.enc_score_head = nnx.Linear(width, sizes.classes, rngs=rngs)
        self.enc_bbox_head = MLP(width, width, width, 4, rngs=rngs)
        self.decoder = Decoder(sizes, rngs)

    def __call__(self, maps: Sequence[jax.Array]) -> Found:
        maps = [project(x) for project, x in zip(self.decoder_input_proj, maps, strict=True)]
        shapes = tuple(x.shape[1:3] for x in maps)
        values = jnp.concatenate([x.reshape(len(x), -1, x.shape[-1]) for x in maps], axis=1)
        anchors, inside = anchors_of(shapes)
        memory = self.enc_output(jnp.where(inside, values, 0))
        _, best = jax.lax.top_k(self.enc_score_head(memory).max(axis=-1), self.queries)
        boxes = self.enc_bbox_head(memory) + anchors.astype(memory.dtype)
        boxes = jnp.where(inside, boxes, jnp.inf)
        x, boxes = (jnp.take_along_axis(each, best[..., None], axis=1) for each in (memory, boxes))
        return self.decoder(jax.lax.stop_gradient(x), jax.nn.sigmoid(boxes), values, shapes)


def anchors_of(shapes: Shapes) -> tuple[np.ndarray, np.ndarray]:
    """The logits of a box about each pixel, [S, 4], and whether it is well inside, [S, 1]."""
    boxes = []
    for level, (height, width) in enumerate(shapes):
        middle = (np.indices((height, width)).reshape(2, -1).T[:, ::-1] + 0.5) / (width, height)
        boxes.append(np.concatenate([middle, np.full(middle.shape, 0.05 * 2**level)], axis=1))
    anchors = np.concatenate(boxes)
    inside = np.all((anchors > 0.01) & (anchors < 0.99), axis=1)[:, None]
    return np.log(anchors / (1 - anchors)), inside


def load(sizes: Sizes, state: Mapping[str, Any] | pathlib.Path, published: bool) -> RTDETRv2:
    """A model with the weights of `RTDetrV2ForObjectDetection`: a state dict or safetensors file.

    Published files have names of three modules that transformers 5 has changed.
    """
    names = {}
    for layer in (f"decoder.layers.{i}" for i in range(sizes.layers)):
        mlp, output = (layer, "out_proj") if published else (f"{layer}.mlp", "o_proj")
        names |= {f"{layer}.mlp.layers.{i}": f"{mlp}.fc{i + 1}" for i in range(2)}
        names[f"{layer}.self_attn.o_proj"] = f"{layer}.self_attn.{output}"
    unused = ("backbone.*", "encoder*", "denoising_class_embed.*", "anchors", "valid_mask")
    ignore = [f"model.{pattern}" for pattern in unused]
    model = nnx.eval_shape(lambda: RTDETRv2(sizes, nnx.Rngs(0)))
    return oxijax.convert.from_torch(model, state, prefix="model.", names=names, ignore=ignore)


def main(*files: str) -> Found:
    """Times a call for maps of an image of 640 x 640, and returns its boxes and logits."""
    model = RTDETRv2(Sizes(), nnx.Rngs(0))
    for file in files:
        model = load(Sizes(), pathlib.Path(file), published=True)
    maps = [jax.random.normal(jax.random.key(s), (1, s, s, 256)) for s in (80, 40, 20)]
    run = nnx.jit(lambda model, maps: model(maps))
    jax.block_until_ready(run(model, maps))
    start = time.perf_counter()
    boxes, logits = jax.block_until_ready(run(model, maps))
    print(f"{1e3 * (time.perf_counter() - start):.0f} ms for {boxes.shape[1]} boxes of an image")
    return boxes, logits


if __name__ == "__main__":
    main(*sys.argv[1:])
