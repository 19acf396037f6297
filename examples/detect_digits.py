"""A small Deformable DETR that finds handwritten digits, beside the same with plain attention.

`python examples/detect_digits.py` composes scenes of scikit-learn's digits, trains both detectors
for the same time, prints the average precision of each for digits that neither has seen, and draws
what they find and where the deformable one looks. That takes four minutes on two cores. It needs
`pip install ".[demo]"`.

The two differ in `DeformableAttention` and `PlainAttention`, and in nothing else: how pixels of the
feature maps look at each other, and how queries look at them.

Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
2021, with boxes that are refined from layer to layer.
"""

import argparse
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from detection_loss import loss
from digit_picture import draw
from digit_scenes import (
    CLASSES,
    IOUS,
    SIZE,
    Digits,
    Scenes,
    average_precision,
    make_scenes,
    read_digits,
)  # fmt: skip
from flax import nnx
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

import oxijax.nnx

FEATURES, HEADS, QUERIES = 64, 4, 12
CHANNELS = (1, 16, 32, 64, 64, 64)  # of the image, and after each convolution
LEVELS = tuple((SIZE // stride, SIZE // stride) for stride in (8, 16, 32))
RATE = 2e-3  # of learning, at its highest


class Found(NamedTuple):
    """What a layer of the decoder finds in N images.

    Attributes:
      boxes: [N, Q, 4].
      logits: [N, Q, CLASSES].
      queries: [N, Q, FEATURES], of the layer's attention.
      references: [N, Q, 4], the boxes that the layer corrects.
    """

    boxes: jax.Array
    logits: jax.Array
    queries: jax.Array
    references: jax.Array


class DeformableAttention(nnx.Module):
    """Each query looks at four points of each feature map, about its place or box."""

    def __init__(self, rngs: nnx.Rngs):
        self.layer = oxijax.nnx.MSDeformAttn(FEATURES, HEADS, len(LEVELS), rngs=rngs)

    def __call__(
        self, queries: jax.Array, boxes: jax.Array, values: jax.Array, places: jax.Array
    ) -> jax.Array:
        return self.layer(queries, self.in_levels(boxes), values, spatial_shapes=LEVELS)

    def sampling_points(self, queries: jax.Array, boxes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Where queries look, and with which weights."""
        return self.layer.sampling_points(queries, self.in_levels(boxes), spatial_shapes=LEVELS)

    def in_levels(self, boxes: jax.Array) -> jax.Array:
        """The same boxes in each level: [N, Q, 4] -> [N, Q, L, 4]."""
        return jnp.repeat(boxes[:, :, None], len(LEVELS), axis=2)


class PlainAttention(nnx.Module):
    """Each query looks at all pixels of all feature maps."""

    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=rngs)

    def __call__(
        self, queries: jax.Array, boxes: jax.Array, values: jax.Array, places: jax.Array
    ) -> jax.Array:
        return self.layer(queries, values + places, values)


Attention = DeformableAttention | PlainAttention


def two_layers(features: int, rngs: nnx.Rngs, last: Callable = nnx.Linear) -> nnx.Sequential:
    return nnx.Sequential(
        nnx.Linear(FEATURES, FEATURES, rngs=rngs), nnx.relu, last(FEATURES, features, rngs=rngs)
    )


class Encoder(nnx.Module):
    """Pixels of the feature maps look at each other."""

    def __init__(self, attention: type[Attention], rngs: nnx.Rngs):
        self.attention = attention(rngs)
        self.feed_forward = two_layers(FEATURES, rngs)
        self.norms = nnx.List([nnx.LayerNorm(FEATURES, rngs=rngs) for _ in range(2)])

    def __call__(self, x: jax.Array, boxes: jax.Array, places: jax.Array) -> jax.Array:
        x = self.norms[0](x + self.attention(x + places, boxes, x, places))
        return self.norms[1](x + self.feed_forward(x))


class Decoder(nnx.Module):
    """Queries look at each other, then at the feature maps, and correct their boxes."""

    def __init__(self, attention: type[Attention], rngs: nnx.Rngs):
        self.among = nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=rngs)
        self.attention = attention(rngs)
        self.feed_forward = two_layers(FEATURES, rngs)
        self.norms = nnx.List([nnx.LayerNorm(FEATURES, rngs=rngs) for _ in range(3)])
        # At first boxes stay, and all scores are low.
        self.correction = two_layers(4, rngs, zero_linear)
        self.classes = nnx.Linear(
            FEATURES, CLASSES, bias_init=nnx.initializers.constant(-3), rngs=rngs
        )

    def __call__(
        self, x: jax.Array, boxes: jax.Array, place: jax.Array,
        values: jax.Array, places: jax.Array,
    ) -> tuple[jax.Array, Found]:  # fmt: skip
        x = self.norms[0](x + self.among(x + place, x + place, x))
        queries = x + place
        x = self.norms[1](x + self.attention(queries, boxes, values, places))
        x = self.norms[2](x + self.feed_forward(x))
        corrected = jax.nn.sigmoid(logit(boxes) + self.correction(x))
        return x, Found(corrected, self.classes(x), queries, boxes)


def zero_linear(inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, kernel_init=nnx.initializers.zeros, rngs=rngs)


def logit(boxes: jax.Array) -> jax.Array:
    boxes = jnp.clip(boxes, 1e-4, 1 - 1e-4)
    return jnp.log(boxes) - jnp.log1p(-boxes)


class Detector(nnx.Module):
    """Convolutions, an encoder, and decoders."""

    def __init__(self, attention: type[Attention], decoders: int, rngs: nnx.Rngs):
        sizes = itertools.pairwise(CHANNELS)
        self.convolutions = nnx.List(
            [nnx.Conv(i, o, (3, 3), strides=2, rngs=rngs) for i, o in sizes]
        )
        self.norms = nnx.List([nnx.GroupNorm(o, num_groups=4, rngs=rngs) for o in CHANNELS[1:]])
        self.levels = nnx.List(
            [nnx.Linear(o, FEATURES, rngs=rngs) for o in CHANNELS[-len(LEVELS) :]]
        )
        self.place = two_layers(FEATURES, rngs)
        self.encoder = Encoder(attention, rngs)
        self.decoders = nnx.List([Decoder(attention, rngs) for _ in range(decoders)])
        rows = np.indices((3, 4)).reshape(2, -1).T
        start = np.concatenate([(rows[:, ::-1] + 0.5) / (4, 3), np.full((QUERIES, 2), 0.25)], 1)
        self.boxes = nnx.Param(logit(jnp.asarray(start, jnp.float32)))
        self.queries = nnx.Param(0.1 * jax.random.normal(rngs.params(), (QUERIES, FEATURES)))

    def __call__(self, images: jax.Array) -> list[Found]:
        """What each decoder says of images [N, SIZE, SIZE, 1]."""
        x, maps = images, []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nnx.relu(norm(convolution(x)))
            maps.append(x)
        maps = zip(self.levels, maps[-len(LEVELS) :], strict=True)
        values = jnp.concatenate([level(x).reshape(len(x), -1, FEATURES) for level, x in maps], 1)
        boxes = jnp.tile(jnp.asarray(pixel_boxes(), jnp.float32), (len(images), 1, 1))
        places = self.places(boxes)
        values = self.encoder(values, boxes, places)

        boxes = jnp.tile(jax.nn.sigmoid(self.boxes[...]), (len(images), 1, 1))
        queries = jnp.tile(self.queries[...], (len(images), 1, 1))
        found = []
        for decoder in self.decoders:
            queries, each = decoder(queries, boxes, self.places(boxes), values, places)
            found.append(each)
            boxes = jax.lax.stop_gradient(each.boxes)
        return found

    def places(self, boxes: jax.Array) -> jax.Array:
        """What tells attention where boxes are, [..., 4] -> [..., FEATURES]."""
        angles = boxes[..., None] * (2.0 ** np.arange(FEATURES // 8) * math.pi / 2)
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        return self.place(waves.reshape(*boxes.shape[:-1], FEATURES))


def pixel_boxes() -> np.ndarray:
    """The pixels of all feature maps and one more on each side, [S, 4]."""
    boxes = []
    for height, width in LEVELS:
        rows = np.indices((height, width)).reshape(2, -1).T
        middle = (rows[:, ::-1] + 0.5) / (width, height)
        boxes.append(np.concatenate([middle, np.full(middle.shape, 2 / width)], 1))
    return np.concatenate(boxes)


class Trained(NamedTuple):
    """A detector after its time: how it was trained, and what it finds in test scenes."""

    name: str
    detector: Detector
    steps: int
    loss: float  # of the last step
    found: Found
    precision: np.ndarray  # by `IOUS`


def train(
    name: str, attention: type[Attention], digits: Digits, test: Scenes, args: argparse.Namespace
) -> Trained:
    """Trains a detector for `args.seconds`, not counting what compilation takes."""
    structure, parameters = nnx.split(Detector(attention, args.decoders, nnx.Rngs(args.seed)))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(1e-4)
    )
    state = optimizer.init(parameters)

    def step(
        parameters: nnx.State, state: optax.OptState, key: jax.Array, rate: jax.Array
    ) -> tuple[nnx.State, optax.OptState, jax.Array]:
        scenes = make_scenes(digits, key, args.batch)

        def of(parameters: nnx.State) -> jax.Array:
            return loss(nnx.merge(structure, parameters)(scenes.images), scenes)

        value, gradients = jax.value_and_grad(of)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return jax.tree.map(lambda p, u: p - rate * u, parameters, updates), state, value

    key = jax.random.key(args.seed)
    run = jax.jit(step, donate_argnums=(0, 1)).lower(parameters, state, key, 0.0).compile()
    steps, seconds, value, start = 0, 0.0, math.nan, time.perf_counter()
    column = TextColumn("loss {task.fields[loss]:.2f}")
    with Progress(*Progress.get_default_columns(), column) as progress:
        bar = progress.add_task(name, total=args.seconds, loss=math.nan)
        while seconds < args.seconds:
            # A cosine of the time, since nobody knows how many steps there will be.
            rate = RATE * min(1, (steps + 1) / 50) * math.cos(seconds / args.seconds * math.pi / 2)
            key, batch = jax.random.split(key)
            parameters, state, value = run(parameters, state, batch, rate)
            progress.update(bar, completed=seconds, loss=float(value))
            steps, seconds = steps + 1, time.perf_counter() - start
        progress.update(bar, completed=args.seconds)
    detector = nnx.merge(structure, parameters)
    found = nnx.jit(lambda detector, images: detector(images)[-1])(detector, test.images)
    scores = np.asarray(jax.nn.sigmoid(found.logits))
    precision = average_precision(np.asarray(found.boxes), scores, test)
    return Trained(name, detector, steps, float(value), found, precision)


def main(argv: Sequence[str] | None = None) -> list[Trained]:
    """Trains both, prints a table, draws a picture and returns both."""
    args = arguments().parse_args(argv)
    digits, unseen = read_digits()
    test = make_scenes(unseen, jax.random.key(args.seed + 1), args.scenes)
    kinds = {"deformable": DeformableAttention, "plain": PlainAttention}
    trained = [train(name, kind, digits, test, args) for name, kind in kinds.items()]

    rows = [figures(each) for each in trained]
    table = Table("attention", "parameters", "steps", "AP", "AP at an IoU of 0.5", "0.75")
    for row in rows:
        precisions = (f"{row[name]:.3f}" for name in ("AP", "AP50", "AP75"))
        table.add_row(row["attention"], f"{row['parameters']:,}", str(row["steps"]), *precisions)
    if args.json:
        settings = {name: getattr(args, name) for name in ("seconds", "batch", "decoders", "seed")}
        report = {"jax": jax.__version__, **settings, "scenes": args.scenes, "detectors": rows}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    console = Console()
    console.print(
        f"{args.scenes} scenes of unseen digits, after {args.seconds:g} s of training each"
    )
    console.print(table)

    deformable = trained[0]
    attention = deformable.detector.decoders[-1].attention
    assert isinstance(attention, DeformableAttention)
    points = attention.sampling_points(deformable.found.queries, deformable.found.references)
    draw(args.picture, test, {each.name: each.found for each in trained}, points)
    print(f"drawn: {args.picture}")
    return trained


def figures(trained: Trained) -> dict[str, Any]:
    """What is said of a detector: AP is the mean over all IoUs, AP50 that at 0.5."""
    half, strict = (trained.precision[np.argmin(abs(IOUS - iou))] for iou in (0.5, 0.75))
    return {
        "attention": trained.name,
        "parameters": sum(x.size for x in jax.tree.leaves(nnx.state(trained.detector, nnx.Param))),
        "steps": trained.steps,
        "loss": trained.loss,
        "AP": float(trained.precision.mean()),
        "AP50": float(half),
        "AP75": float(strict),
    }


def arguments() -> argparse.ArgumentParser:
    def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
        def read(text: str) -> float:
            if not (value := kind(text)) > 0 or math.isinf(value):
                raise argparse.ArgumentTypeError(f"must be positive and finite, got {text}")
            return value

        return read

    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--seconds", type=positive(float), default=100, help="of training each; %(default)s")
    add("--batch", type=positive(int), default=16, help="scenes of a step; %(default)s")
    add("--decoders", type=positive(int), default=2, help="layers of the decoder; %(default)s")
    add("--scenes", type=positive(int), default=300, help="to test with; %(default)s")
    add("--seed", type=int, default=0, help="%(default)s")
    picture = pathlib.Path("detect_digits.png")
    add("--picture", type=pathlib.Path, default=picture, help="file to draw to; %(default)s")
    add("--json", type=pathlib.Path, help="file to write the figures to as well")
    return parser


if __name__ == "__main__":
    main()
