"""Frames that a camera would take while it moves over a photograph."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_sample_image

__all__ = ["REACH", "SIZE", "UNSEEN", "Aligned", "Frames", "make_frames", "psnr", "read_photograph"]

SIZE = 64  # of a frame
REACH = 6  # pixels: how far the camera moves at most from a frame to the next, up or aside
UNSEEN = (200, 380)  # the columns that nothing is trained on: a half of the tower


class Frames(NamedTuple):
    """Three frames in a row, [N, SIZE, SIZE, 3] with values from 0 to 1."""

    current: jax.Array
    before: jax.Array
    before_last: jax.Array


class Aligned(NamedTuple):
    """What becomes of frames.

    Attributes:
      image: the current frame, as made of the two before it.
      warped: the last frame, warped by the flow alone.
      offset: the offsets of the deformable convolution.
      mask: the mask of the deformable convolution.
    """

    image: jax.Array
    warped: jax.Array
    offset: jax.Array
    mask: jax.Array


def read_photograph() -> jax.Array:
    """[427, 640, 3], with values from 0 to 1."""
    return jnp.asarray(load_sample_image("china.jpg"), jnp.float32) / 255


def make_frames(photograph: jax.Array, key: jax.Array, count: int, unseen: bool) -> Frames:
    """Random frames of the columns `UNSEEN`, or of the others."""
    height, width, _ = photograph.shape
    room = SIZE + 4 * REACH  # two steps to either side
    parts = [UNSEEN] if unseen else [(0, UNSEEN[0]), (UNSEEN[1], width)]
    columns = np.concatenate([np.arange(first, last - room + 1) for first, last in parts])

    def one(key: jax.Array) -> Frames:
        row, column, steps = jax.random.split(key, 3)
        corner = jnp.stack(
            [
                jax.random.randint(row, (), 0, height - room + 1),
                jax.random.choice(column, columns),
            ]
        )
        moves = jax.random.randint(steps, (2, 2), -REACH, REACH + 1)
        path = corner + 2 * REACH + jnp.concatenate([jnp.zeros((1, 2), int), moves.cumsum(0)])
        return Frames(
            *(
                jax.lax.dynamic_slice(photograph, (*start, 0), (SIZE, SIZE, 3))
                for start in path[::-1]
            )
        )

    return jax.vmap(one)(jax.random.split(key, count))


def psnr(found: jax.Array, expected: jax.Array) -> float:
    """The peak signal-to-noise ratio of images with values from 0 to 1, in dB: of all together."""
    return float(-10 * jnp.log10(jnp.mean((jnp.clip(found, 0, 1) - expected) ** 2)))
