"""Scenes of scikit-learn's digits, made while a detector trains, and how well one finds them."""

import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

__all__ = [
    "CLASSES",
    "IOUS",
    "SIZE",
    "Digits",
    "Scenes",
    "average_precision",
    "corners",
    "make_scenes",
    "read_digits",
]

Array = TypeVar("Array", jax.Array, np.ndarray)

SIZE = 96  # height and width of a scene, in pixels
CLASSES = 10
IOUS = np.arange(0.5, 1, 0.05)  # over which COCO takes the mean

_MOST = 5  # digits in a scene
_SMALLEST, _LARGEST = 12, 40  # sides of digits' squares, in pixels
_GAP = 2  # between boxes, in pixels
_INK = 0.25  # a brighter pixel belongs to the digit


class Digits(NamedTuple):
    """Images [N, 8, 8] from 0 to 1, and what they show, [N]."""

    images: jax.Array
    labels: jax.Array


class Scenes(NamedTuple):
    """Images of several digits.

    Attributes:
      images: [N, SIZE, SIZE, 1].
      boxes: [N, 5, 4], (x, y) of the middle, width and height, from 0 to 1.
      labels: [N, 5], -1 where there is no digit.
    """

    images: jax.Array
    boxes: jax.Array
    labels: jax.Array


def read_digits() -> tuple[Digits, Digits]:
    """Three quarters of scikit-learn's digits to train with, and the others."""
    images, labels = load_digits(return_X_y=True)
    images = np.reshape(images / 16, (-1, 8, 8)).astype(np.float32)
    parts = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, parts)
    return Digits(train_images, train_labels), Digits(test_images, test_labels)


@functools.partial(jax.jit, static_argnums=2)
def make_scenes(digits: Digits, key: jax.Array, count: int) -> Scenes:
    """So many scenes; the key alone decides which."""
    return jax.vmap(lambda key: Scenes(*_scene(digits, key)))(jax.random.split(key, count))


def _scene(digits: Digits, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(key, 6)
    which = jax.random.randint(keys[0], (_MOST,), 0, len(digits.labels))
    sizes = jnp.exp(
        jax.random.uniform(keys[1], (_MOST,), minval=np.log(_SMALLEST), maxval=np.log(_LARGEST))
    )
    start = jax.random.uniform(keys[2], (_MOST, 2)) * (SIZE - sizes[:, None])
    contrast = jax.random.uniform(keys[3], (_MOST,), minval=0.5)
    first, last = _ink(digits.images[which])
    first = start + first * sizes[:, None] / 8
    last = start + last * sizes[:, None] / 8

    def place(i: jax.Array, kept: jax.Array) -> jax.Array:
        """Keeps a digit if it touches none that is kept already."""
        meets = jnp.all((first[i] < last + _GAP) & (last[i] > first - _GAP), axis=-1)
        return kept.at[i].set(~jnp.any(meets & kept))

    kept = jax.lax.fori_loop(0, _MOST, place, jnp.zeros(_MOST, bool))

    def draw(digit: jax.Array, size: jax.Array, start: jax.Array) -> jax.Array:
        return jax.image.scale_and_translate(
            digit, (SIZE, SIZE), (0, 1), jnp.full(2, size / 8), start[::-1], "linear",
            antialias=False,
        )  # fmt: skip

    drawn = jax.vmap(draw)(digits.images[which], sizes, start)
    image = jnp.max(drawn * (contrast * kept)[:, None, None], axis=0)
    light = jax.image.resize(jax.random.normal(keys[4], (6, 6)), (SIZE, SIZE), "cubic")
    image += 0.1 * light + 0.15 * jax.random.normal(keys[5], (SIZE, SIZE))
    boxes = jnp.concatenate([(first + last) / 2, last - first], axis=-1) / SIZE
    return image[..., None], boxes, jnp.where(kept, digits.labels[which], -1)


def _ink(images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where the ink of images [N, 8, 8] begins and ends, [N, 2] as (x, y)."""
    found = []
    for axis in (1, 2):  # what is left is x, and then y
        inked = jnp.any(images > _INK, axis)
        first = jnp.argmax(inked, axis=1)
        found.append((first, 8 - jnp.argmax(inked[:, ::-1], axis=1)))
    (x_first, x_last), (y_first, y_last) = found
    return jnp.stack([x_first, y_first], -1), jnp.stack([x_last, y_last], -1)


def corners(boxes: Array) -> tuple[Array, Array]:
    """The upper left and the lower right corners of boxes [..., 4], (x, y) [..., 2] each."""
    middle, size = boxes[..., :2], boxes[..., 2:]
    return middle - size / 2, middle + size / 2


def average_precision(boxes: np.ndarray, scores: np.ndarray, scenes: Scenes) -> np.ndarray:
    """The mean over classes, of those that scenes have, of COCO's average precision by `IOUS`.

    Every box counts once for each class, by its score. From the highest score on, it is right if
    its intersection over union with a digit of the class that no other has found is large enough;
    of several digits it finds the one with the largest.

    Args:
      boxes: [N, Q, 4].
      scores: [N, Q, classes].
      scenes: N of them.

    Returns:
      Precision at 101 recalls, from 0 to 1, on average: the best at this recall or a higher one.
    """
    true_boxes, labels = np.asarray(scenes.boxes), np.asarray(scenes.labels)
    overlaps = _ious(np.asarray(boxes)[:, :, None], true_boxes[:, None])
    present = np.unique(labels[labels >= 0])
    result = np.zeros((len(IOUS), len(present)))
    for column, label in enumerate(present):
        count = np.sum(labels == label)
        of_label = np.where((labels == label)[:, None], overlaps, -1)
        scene, query = np.unravel_index(
            np.argsort(-scores[..., label], axis=None, kind="stable"), scores.shape[:2]
        )
        for i, least in enumerate(IOUS):
            left = of_label.copy()
            right = np.zeros(scene.size)
            for place, (n, q) in enumerate(zip(scene, query, strict=True)):
                best = np.argmax(left[n, q])
                if left[n, q, best] >= least:
                    left[n, :, best] = -1
                    right[place] = 1
            found = np.cumsum(right)
            precision = found / np.arange(1, found.size + 1)
            precision = np.maximum.accumulate(precision[::-1])[::-1]
            reached = np.searchsorted(found / count, np.arange(101) / 100)
            result[i, column] = np.mean(np.append(precision, 0)[reached])
    return result.mean(axis=1)


def _ious(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (a_first, a_last), (b_first, b_last) = corners(a), corners(b)
    shared = np.maximum(np.minimum(a_last, b_last) - np.maximum(a_first, b_first), 0).prod(-1)
    return shared / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared)
