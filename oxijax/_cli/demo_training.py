"""Training of `python -m oxijax demo`: the digits, the two networks and how they learn.

The digits are scikit-learn's, scans of handwriting in 8x8 pixels. Each is drawn on a larger
canvas at a random angle, size and place: what a plain convolution, whose taps are a fixed
grid, has to learn one case at a time.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from oxijax.nnx import DeformConv

__all__ = ["CANVAS", "Classifier", "Digits", "accuracy", "parameter_count", "place", "train"]

CANVAS = 32
_CLASSES = 10
_MAX_ANGLE = np.pi / 3  # more, and a 6 is a 9
_SCALES = (1.25, 3.5)  # from 10 to 28 pixels of the canvas

_HELD_OUT = 0.25  # of the digits
_PLACINGS = 4  # of each held-out digit: less noise in the accuracy

_BATCH_SIZE = 64
_LEARNING_RATE = 1e-2
# Sampling points that move fast unsettle the kernels that learn to read them. A tenth, for
# offsets and modulation, is also what the DCNv2 paper takes.
_OFFSET_LEARNING_RATE = _LEARNING_RATE / 10
_WEIGHT_DECAY = 1e-3


@dataclasses.dataclass(frozen=True)
class Digits:
    """Digits to train on, and other digits, already placed on canvases, to be judged by.

    Attributes:
      images: [N, 8, 8], from 0 to 1.
      labels: [N].
      indices: [N], where in scikit-learn's data set the digits are.
      held_out_images: [M * placings, CANVAS, CANVAS, 1].
      held_out_labels: [M * placings].
      held_out_indices: [M * placings].
    """

    images: jax.Array
    labels: jax.Array
    indices: np.ndarray
    held_out_images: jax.Array
    held_out_labels: jax.Array
    held_out_indices: np.ndarray

    @classmethod
    def split(cls, seed: int) -> "Digits":
        """The split of a seed: every class has the same share in both parts."""
        digits = cast(Any, load_digits())
        images = jnp.asarray(digits.images / 16, jnp.float32)
        labels = jnp.asarray(digits.target, jnp.int32)
        split = train_test_split(
            np.arange(len(labels)), test_size=_HELD_OUT, stratify=digits.target, random_state=seed
        )
        indices, held_out = map(np.asarray, split)
        held_out = np.tile(held_out, _PLACINGS)
        _, key = jax.random.split(jax.random.key(seed))
        return cls(
            images=images[indices],
            labels=labels[indices],
            indices=indices,
            held_out_images=place(images[held_out], key),
            held_out_labels=labels[held_out],
            held_out_indices=held_out,
        )


@jax.jit
def place(images: jax.Array, key: jax.Array) -> jax.Array:
    """Draws digits [N, 8, 8] on canvases [N, CANVAS, CANVAS, 1], each in its own random way."""
    canvases = jax.vmap(_place_one)(images, jax.random.split(key, len(images)))
    return canvases[..., None]


def _place_one(image: jax.Array, key: jax.Array) -> jax.Array:
    angle_key, scale_key, shift_key = jax.random.split(key, 3)
    angle = jax.random.uniform(angle_key, minval=-_MAX_ANGLE, maxval=_MAX_ANGLE)
    low, high = np.log(_SCALES)
    scale = jnp.exp(jax.random.uniform(scale_key, minval=low, maxval=high))
    room = (CANVAS - image.shape[0] * scale) / 2  # corners may be cut off: they are empty
    shift = jax.random.uniform(shift_key, (2,), minval=-room, maxval=room)

    # For each pixel of the canvas, the point of the digit that lands there.
    y, x = jnp.indices((CANVAS, CANVAS)) - (CANVAS - 1) / 2 - shift[:, None, None]
    cos, sin = jnp.cos(angle) / scale, jnp.sin(angle) / scale
    middle = (image.shape[0] - 1) / 2
    points = [cos * y - sin * x + middle, sin * y + cos * x + middle]
    return jax.scipy.ndimage.map_coordinates(image, points, order=1)


class Classifier(nnx.Module):
    """Four 3x3 convolutions, of which the last two may be deformable, and a mean.

    Two networks of one seed start with the same weights, deformable or not, and with the
    same outputs: a new `DeformConv` computes what `nnx.Conv` does.
    """

    def __init__(self, *, deformable: bool, rngs: nnx.Rngs):
        last = DeformConv if deformable else nnx.Conv
        self.convolutions = nnx.List(
            [
                nnx.Conv(1, 16, (3, 3), strides=2, rngs=rngs),
                nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs),
                last(32, 32, (3, 3), rngs=rngs),
                last(32, 32, (3, 3), rngs=rngs),
            ]
        )
        # Training is short: the running means must keep up.
        self.norms = nnx.List(
            [nnx.BatchNorm(c.out_features, momentum=0.9, rngs=rngs) for c in self.convolutions]
        )
        self.head = nnx.Linear(32, _CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [N, 10] of images [N, H, W, 1]."""
        features = self.features(images, len(self.convolutions))
        return self.head(jnp.mean(features, axis=(1, 2)))

    def features(self, images: jax.Array, depth: int) -> jax.Array:
        """What the first `depth` convolutions make of images."""
        x = images
        for convolution, norm in zip(self.convolutions[:depth], self.norms[:depth], strict=True):
            x = jax.nn.relu(norm(convolution(x)))
        return x


def parameter_count(network: Classifier) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))


def train(
    digits: Digits,
    *,
    deformable: bool,
    steps: int,
    seed: int,
    on_step: Callable[[jax.Array], None] = lambda loss: None,
) -> tuple[Classifier, np.ndarray]:
    """Trains one network.

    Args:
      digits: the digits to train on.
      deformable: whether the last two convolutions are deformable.
      steps: the number of batches.
      seed: the seed of the weights, and of batches and placings: both networks see the same
        canvases.
      on_step: called with the loss after each step.

    Returns:
      The network, and the loss of each step.
    """
    network = Classifier(deformable=deformable, rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(network, _gradient_rule(steps), wrt=nnx.Param)
    key, _ = jax.random.split(jax.random.key(seed))
    losses = []
    network.train()
    for step in range(steps):
        step_key = jax.random.fold_in(key, step)
        loss = _train_step(network, optimizer, digits.images, digits.labels, step_key)
        losses.append(loss)
        on_step(loss)
    network.eval()
    return network, np.asarray(jnp.stack(losses))


@nnx.jit
def _train_step(
    network: Classifier,
    optimizer: nnx.Optimizer[Classifier],
    images: jax.Array,
    labels: jax.Array,
    key: jax.Array,
) -> jax.Array:
    batch_key, place_key = jax.random.split(key)
    batch = jax.random.randint(batch_key, (_BATCH_SIZE,), 0, len(images))
    canvases = place(images[batch], place_key)

    def mean_loss(network: Classifier) -> jax.Array:
        logits = network(canvases)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels[batch])
        return jnp.mean(losses)

    loss, gradients = nnx.value_and_grad(mean_loss)(network)
    optimizer.update(network, gradients)
    return loss


# One object a number of steps: `nnx.jit` compiles again for another.
@functools.cache
def _gradient_rule(steps: int) -> optax.GradientTransformation:
    def adamw(peak: float) -> optax.GradientTransformation:
        schedule = optax.warmup_cosine_decay_schedule(0.1 * peak, peak, steps // 5, steps)
        return optax.adamw(schedule, weight_decay=_WEIGHT_DECAY)

    def label(path: tuple, _) -> str:
        names = [getattr(entry, "key", None) for entry in path]
        return "offsets" if "offset_conv" in names else "others"

    return optax.partition(
        {"offsets": adamw(_OFFSET_LEARNING_RATE), "others": adamw(_LEARNING_RATE)},
        functools.partial(jax.tree.map_with_path, label),
    )


def accuracy(network: Classifier, digits: Digits) -> float:
    """The share of held-out canvases that are classified correctly."""
    canvases, labels = digits.held_out_images, digits.held_out_labels
    # In batches of a cache's size, and all of one shape to compile.
    batches = zip(jnp.split(canvases, _PLACINGS), jnp.split(labels, _PLACINGS), strict=True)
    return float(np.mean([_correct(network, *batch) for batch in batches]))


@nnx.jit
def _correct(network: Classifier, canvases: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(jnp.argmax(network(canvases), axis=-1) == labels)
