"""Draws which pixels the sampling operators read for one of their outputs, and with which weight.

`python examples/what_is_read.py` asks the operators themselves: the gradient of an output with
respect to the images is the weight of each pixel in it. It needs `pip install ".[demo]"`.
"""

import argparse
import pathlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import oxijax.nnx

LEVELS = ((32, 40), (16, 20), (8, 10))  # height and width
HEADS, FEATURES = 8, 32
QUERY = (0.4, 0.5)  # (x, y), from 0 to 1
SIZE, PIXEL = 15, (7, 7)  # of the image of dcnv3, and the output that is asked for
HEAD_COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999",
)  # fmt: skip


def read_pixels(operator: Callable[[jax.Array], jax.Array], images: jax.Array) -> np.ndarray:
    """The weight of each pixel in a number that an operator makes of images."""
    return np.asarray(jax.grad(lambda images: jnp.sum(operator(images)))(images))


def of_attention() -> tuple[list[np.ndarray], oxijax.Samples]:
    """A new layer's query: weights [height, width] of each level, and where it looks."""
    layer = oxijax.nnx.MSDeformAttn(FEATURES, HEADS, len(LEVELS), rngs=nnx.Rngs(0))
    query = jnp.zeros((1, 1, FEATURES))
    reference = jnp.tile(jnp.asarray(QUERY), (1, 1, len(LEVELS), 1))
    points, weights = layer.sampling_points(query, reference, spatial_shapes=LEVELS)
    per_level = (1, 1, HEADS, len(LEVELS), 4)
    call = {
        "sampling_locations": points.reshape(*per_level, 2),
        "attention_weights": weights.reshape(per_level),
        "spatial_shapes": LEVELS,
    }
    sizes = [height * width for height, width in LEVELS]
    images = jnp.zeros((1, sum(sizes), HEADS, 1))
    read = read_pixels(lambda images: oxijax.ms_deform_attn(images, **call), images)
    levels = np.split(read.sum(axis=(0, 2, 3)), np.cumsum(sizes)[:-1])
    levels = [level.reshape(size) for level, size in zip(levels, LEVELS, strict=True)]
    return levels, oxijax.sampling_locations(oxijax.ms_deform_attn, images, **call)


def of_window(offset: np.ndarray, scale: float) -> tuple[np.ndarray, oxijax.Samples]:
    """Weights [SIZE, SIZE] of pixels in an output of dcnv3, and where it looks.

    Args:
      offset: (x, y) of each of its nine taps, which are counted column by column.
      scale: the scale of offsets and the window.
    """
    offsets = jnp.tile(jnp.asarray(offset.reshape(-1), jnp.float32), (1, SIZE, SIZE, 1))
    mask = jnp.full((1, SIZE, SIZE, 9), 1 / 9)
    call = {"offset": offsets, "mask": mask, "kernel_size": 3, "groups": 1, "offset_scale": scale}
    image = jnp.zeros((1, SIZE, SIZE, 1))
    read = read_pixels(lambda image: oxijax.dcnv3(image, **call)[0, *PIXEL], image)
    return read[0, ..., 0], oxijax.sampling_locations(oxijax.dcnv3, image, **call)


def show(axis: Axes, read: np.ndarray, title: str) -> None:
    axis.imshow(read, cmap="Greys", vmin=0, vmax=read.max())
    axis.set_title(title, fontsize=9)
    axis.set(xticks=[], yticks=[])


def draw(path: pathlib.Path) -> None:
    """Draws a query of a new attention layer in each level, and three windows."""
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 3)
    levels, samples = of_attention()
    for number, (axis, read) in enumerate(zip(upper, levels, strict=True)):
        height, width = read.shape
        show(axis, read, f"ms_deform_attn, level {number}: {height} x {width}")
        for head, color in enumerate(HEAD_COLORS):
            points = samples.locations[0, 0, head, samples.levels == number]
            oxijax.draw_samples(None, points, color=color, area=9, axes=axis)
    none, some = np.zeros((9, 2)), np.random.default_rng(3).normal(0, 0.8, (9, 2))
    for axis, (offset, scale, title) in zip(
        lower,
        [(none, 1.0, "no offsets"), (none, 2.0, "offset_scale=2"), (some, 1.0, "offsets")],
        strict=True,
    ):
        read, samples = of_window(offset, scale)
        show(axis, read, f"dcnv3, {title}")
        points = samples.locations[0, *PIXEL]
        oxijax.draw_samples(None, points, center=PIXEL, color=HEAD_COLORS[1], area=14, axes=axis)
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    """Draws the picture and says where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    picture = pathlib.Path("what_is_read.png")
    parser.add_argument("--picture", type=pathlib.Path, default=picture, help="%(default)s")
    path = parser.parse_args(argv).picture
    draw(path)
    print(f"drawn: {path}")


if __name__ == "__main__":
    main()
