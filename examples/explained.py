"""Draws the pictures of docs/explained.md, and one of docs/sampling.md: what operators sample.

`python examples/explained.py --output docs/images` draws all of them. It needs
`pip install ".[demo]"` from a clone. What is drawn is asked of the operators themselves:
`oxijax.sampling_locations` tells where they sample, and gradients what a sample weighs.
"""

import argparse
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import oxijax

SIZE = 15  # of the images, in pixels
PIXEL = (8, 3)  # (y, x) of the output that is looked at
ORANGE, BLUE, GREEN = "#D55E00", "#0072B2", "#009E73"


def ring() -> np.ndarray:
    """An image [SIZE, SIZE] of a bright ring."""
    y, x = np.indices((SIZE, SIZE))
    return np.exp(-((np.hypot(y - 7, x - 7) - 4.2) ** 2) / 1.2)


def along_the_ring(pixel: tuple[int, int]) -> np.ndarray:
    """Offsets [9, 2], (y, x), that move the window's columns along the ring, and inwards or out.

    The window's rows go along the ring, in steps of a pixel and a half, and its columns across it.
    """
    taps = np.indices((3, 3)).reshape(2, -1).T - 1.0
    middle = np.arctan2(pixel[0] - 7, pixel[1] - 7)
    angle = middle - 1.5 * taps[:, 0] / 4.2
    radius = 4.2 - taps[:, 1]
    places = np.stack([7 + radius * np.sin(angle), 7 + radius * np.cos(angle)], axis=-1)
    return places - (pixel + taps)


def window(offset: np.ndarray, mask: np.ndarray | None = None) -> oxijax.Samples:
    """What deform_conv samples for each output of an image, if all have offsets [OG, 9, 2]."""
    groups = offset.shape[0]
    x, weight = jnp.ones((1, SIZE, SIZE, groups)), jnp.ones((3, 3, groups, 1))
    full = jnp.tile(jnp.asarray(offset.reshape(-1), jnp.float32), (1, SIZE, SIZE, 1))
    masks = None if mask is None else jnp.tile(jnp.asarray(mask, jnp.float32), (1, SIZE, SIZE, 1))
    return oxijax.sampling_locations(oxijax.deform_conv, x, full, weight, masks)


def show(axes: Axes, image: np.ndarray, title: str, *, near: bool = False) -> None:
    """Draws an image, or only what is near PIXEL."""
    axes.imshow(image, cmap="Greys", vmin=0, vmax=1.6 * image.max())
    axes.set_title(title, fontsize=10)
    axes.set(xticks=[], yticks=[])
    if near:
        axes.set(xlim=(-0.5, 8.5), ylim=(12.5, 3.5))
        axes.autoscale(False)


def draw_window(figure: Figure) -> None:
    """A plain convolution's window, one with offsets, and one with modulation too."""
    offset = along_the_ring(PIXEL)
    mask = np.tile([0.5, 1.6, 0.5], 3)
    for axes, (given, weights, title) in zip(
        figure.subplots(1, 3),
        [
            (np.zeros((9, 2)), None, "plain convolution"),
            (offset, None, "offsets: DCNv1"),
            (offset, mask, "and modulation: DCNv2"),
        ],
        strict=True,
    ):
        show(axes, ring(), title, near=True)
        samples = window(given[None], weights)
        oxijax.draw_samples(
            None,
            samples.locations[0, *PIXEL, 0],
            samples.weights[0, *PIXEL, 0],
            center=PIXEL,
            color=ORANGE,
            area=45,
            axes=axes,
        )


def draw_offset_groups(figure: Figure) -> None:
    """Two offset groups, each with offsets of its own, and the channels that it reads."""
    first, second = along_the_ring(PIXEL), 1.2 * (np.indices((3, 3)).reshape(2, -1).T - 1.0)
    samples = window(np.stack([first, second]))
    y, x = np.indices((SIZE, SIZE))
    images = ring(), np.cos(0.9 * x + 0.4 * y) ** 2
    names = "offset group 0", "offset group 1"
    for group, axes in enumerate(figure.subplots(1, 2)):
        show(axes, images[group], names[group], near=True)
        oxijax.draw_samples(
            None,
            samples.locations[0, *PIXEL, group],
            center=PIXEL,
            color=(ORANGE, BLUE)[group],
            area=45,
            axes=axes,
        )


def corner_weights(place: tuple[float, float], size: int) -> np.ndarray:
    """What each pixel of an image weighs in a sample: the gradient with respect to the image."""
    grid = (jnp.asarray(place[::-1]) + 0.5) * 2 / size - 1

    def sample(image):
        return oxijax.grid_sample(image[None, ..., None], grid[None, None]).sum()

    return np.asarray(jax.grad(sample)(jnp.zeros((size, size))))


def draw_bilinear(figure: Figure) -> None:
    """What four pixels weigh in a sample, inside and at the edge, and how a sample fades."""
    inside, edge, fading = figure.subplots(1, 3)
    for axes, place, title in (
        (inside, (1.7, 1.4), "between four pixels"),
        (edge, (2.0, 3.6), "outside, pixels are 0"),
    ):
        weights = corner_weights(place, 4)
        axes.imshow(weights, cmap="Oranges", vmin=0, vmax=1)
        for y, x in np.argwhere(weights > 1e-4):
            axes.text(x, y - 0.2, f"{weights[y, x]:.2f}", ha="center", fontsize=8)
        axes.set(xlim=(-0.55, 4.7), ylim=(3.55, -0.55), xticks=range(4), yticks=range(4))
        for line in np.arange(-0.5, 4.5):
            axes.plot([line, line], [-0.5, 3.5], color="0.7", linewidth=0.8)
            axes.plot([-0.5, 3.5], [line, line], color="0.7", linewidth=0.8)
        oxijax.draw_samples(None, np.asarray(place), color=BLUE, area=50, axes=axes)
        axes.set_title(title, fontsize=10)
    places = np.linspace(-2, 5, 141)
    image = jnp.ones((1, 4, 4, 1))
    grid = jnp.stack([(places + 0.5) * 2 / 4 - 1, jnp.full_like(places, -0.25)], axis=-1)
    fading.plot(places, oxijax.grid_sample(image, grid[None])[0, :, 0], color=BLUE)
    fading.set(xlabel="x of the sample", xticks=range(-2, 6), yticks=[0, 0.5, 1])
    fading.axvspan(-0.5, 3.5, color="0.9")
    fading.set_title("value, if pixels are 1", fontsize=10)


def offset_gradients(image: np.ndarray) -> np.ndarray:
    """The gradient [9, 2], (y, x), for the offsets of the output at PIXEL; taps are 2 apart."""
    x = jnp.asarray(image, jnp.float32)[None, ..., None]
    weight = jnp.ones((3, 3, 1, 1))

    def output(offset):
        return oxijax.deform_conv(x, offset, weight, dilation=2)[0, *PIXEL, 0]

    # Not at whole numbers, where the slope changes.
    offset = jnp.full((1, SIZE, SIZE, 18), 0.01)
    return np.asarray(jax.grad(output)(offset)[0, *PIXEL]).reshape(9, 2)


def read_weights(offset: np.ndarray) -> np.ndarray:
    """The gradient [SIZE, SIZE] of the output at PIXEL with respect to the image."""
    full = jnp.tile(jnp.asarray(offset.reshape(-1), jnp.float32), (1, SIZE, SIZE, 1))

    def output(x):
        return oxijax.deform_conv(x, full, jnp.ones((3, 3, 1, 1)))[0, *PIXEL, 0]

    return np.asarray(jax.grad(output)(jnp.zeros((1, SIZE, SIZE, 1)))[0, ..., 0])


def draw_gradients(figure: Figure) -> None:
    """Which way the offsets would be moved, and which pixels get a gradient."""
    offsets, images = figure.subplots(1, 2)
    show(offsets, ring(), "with respect to offsets", near=True)
    places = PIXEL + 2 * (np.indices((3, 3)).reshape(2, -1).T - 1)
    oxijax.draw_samples(None, places, color=ORANGE, area=18, axes=offsets)
    for (y, x), (step_y, step_x) in zip(places, 2.5 * offset_gradients(ring()), strict=True):
        offsets.annotate(
            "",
            xy=(x + step_x, y + step_y),
            xytext=(x, y),
            arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.6},
        )
    offset = along_the_ring(PIXEL)
    show(images, read_weights(offset), "with respect to the image", near=True)
    locations = window(offset[None]).locations[0, *PIXEL, 0]
    oxijax.draw_samples(None, locations, color=ORANGE, area=25, axes=images)


def draw_windows_of_samples(figure: Figure) -> None:
    """DCNv3's weights, which a softmax makes, its scale, and DCNv4's, which have no bounds."""
    random = np.random.default_rng(5)
    x = jnp.ones((1, SIZE, SIZE, 1))
    offset = random.normal(0, 0.5, (9, 2))
    logits = random.normal(0, 1.2, 9)
    call = {"kernel_size": 3, "groups": 1}

    def everywhere(values: np.ndarray) -> jax.Array:
        return jnp.tile(jnp.asarray(values.reshape(-1), jnp.float32), (1, SIZE, SIZE, 1))

    weights = [0.9, -0.4, 0.2, 1.2, 0.5, -0.8, 0.3, -0.2, 0.6]
    packed = np.concatenate([offset.reshape(-1), weights, np.zeros(5)])
    operands = everywhere(offset), everywhere(logits)
    found = [
        oxijax.sampling_locations(oxijax.dcnv3, x, *operands, **call, softmax=True),
        oxijax.sampling_locations(
            oxijax.dcnv3, x, *operands, **call, softmax=True, offset_scale=2.0
        ),
        oxijax.sampling_locations(oxijax.dcnv4, x, everywhere(packed), **call),
    ]
    titles = "DCNv3: softmax", "DCNv3: offset_scale=2", "DCNv4: any weight"
    for axes, samples, title, area in zip(
        figure.subplots(1, 3), found, titles, (450, 450, 70), strict=True
    ):
        show(axes, ring(), title, near=True)
        oxijax.draw_samples(
            None,
            samples.locations[0, *PIXEL, 0],
            samples.weights[0, *PIXEL, 0],
            center=PIXEL,
            color=ORANGE,
            area=area,
            axes=axes,
        )


def draw_levels(figure: Figure) -> None:
    """A query of multi-scale deformable attention: two heads, four points in each level."""
    shapes = ((24, 32), (12, 16), (6, 8))
    random = np.random.default_rng(1)
    reference = np.asarray([0.42, 0.5])
    steps = np.linspace(0.7, 2.8, 4)
    directions = np.stack([steps, -0.8 * steps], axis=-1), np.stack([-steps, -0.3 * steps], axis=-1)
    pixels = np.stack(directions) + random.normal(0, 0.2, (2, 4, 2))
    # Offsets are in pixels of a level, locations from 0 to 1.
    places = [reference + pixels / (width, height) for height, width in shapes]
    locations = jnp.asarray(np.stack(places, axis=1), jnp.float32)[None, None]
    weights = jax.nn.softmax(jnp.asarray(random.normal(0, 1, (1, 1, 2, 12)))).reshape(1, 1, 2, 3, 4)
    value = jnp.zeros((1, sum(height * width for height, width in shapes), 2, 1))
    samples = oxijax.sampling_locations(
        oxijax.ms_deform_attn, value, locations, weights, spatial_shapes=shapes
    )
    for level, (axes, (height, width)) in enumerate(
        zip(figure.subplots(1, 3), shapes, strict=True)
    ):
        y, x = (np.indices((height, width)).T + 0.5).T
        radius = np.hypot(x / width - 0.5, (y / height - 0.5) * height / width)
        show(axes, np.exp(-((radius - 0.28) ** 2) / 0.006), f"level {level}: {height} x {width}")
        axes.autoscale(False)
        center = reference[1] * height - 0.5, reference[0] * width - 0.5
        for head, color in enumerate((ORANGE, BLUE)):
            chosen = samples.levels == level
            oxijax.draw_samples(
                None,
                samples.locations[0, 0, head, chosen],
                samples.weights[0, 0, head, chosen],
                center=center,
                color=color,
                area=220,
                axes=axes,
            )


def draw_grid_sample(figure: Figure) -> None:
    """An image, a grid that is turned and larger than it, and what is read with two paddings."""
    y, x = np.indices((SIZE, SIZE))
    image = jnp.asarray(0.25 + 0.75 * ring() * (x > y - 3), jnp.float32)
    angle, steps = 0.5, np.linspace(-1.1, 1.1, 24)
    rows, columns = np.meshgrid(steps, steps, indexing="ij")
    turned = np.stack(
        [
            columns * np.cos(angle) - rows * np.sin(angle),
            columns * np.sin(angle) + rows * np.cos(angle),
        ],
        axis=-1,
    )
    grid, images = jnp.asarray(turned, jnp.float32)[None], image[None, ..., None]
    samples = oxijax.sampling_locations(oxijax.grid_sample, images, grid)
    first, *others = figure.subplots(1, 3)
    show(first, np.asarray(image), "an image, and a grid")
    every = samples.locations[0, ::3, ::3]
    oxijax.draw_samples(None, every, color=ORANGE, area=9, axes=first)
    first.set(xlim=(-4.5, SIZE + 3.5), ylim=(SIZE + 3.5, -4.5))
    for axes, mode in zip(others, ("zeros", "border"), strict=True):
        show(
            axes,
            np.asarray(oxijax.grid_sample(images, grid, padding_mode=mode)[0, ..., 0]),
            f'read with "{mode}"',
        )


def beyond_the_edges(image: np.ndarray, mode: str) -> np.ndarray:
    """The pixels of an image [H, W], and what a padding mode has around them, half as far again."""
    height, width = image.shape
    y, x = np.indices((2 * height, 2 * width)) - np.reshape([height // 2, width // 2], (2, 1, 1))
    grid = jnp.asarray(np.stack([x, y], axis=-1)[None], jnp.float32)
    read = oxijax.grid_sample(
        jnp.asarray(image, jnp.float32)[None, ..., None],
        grid,
        padding_mode=mode,
        coordinates="pixel",
    )
    return np.asarray(read[0, ..., 0])


def spread_out(image: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """An image whose pixels move away from its centre, added up; and how many have come to each."""
    places = np.moveaxis(np.indices(image.shape), 0, -1)[..., ::-1]
    middle = (np.array(image.shape[::-1]) - 1) / 2
    to = jnp.asarray(middle + factor * (places - middle), jnp.float32)[None]
    values = jnp.asarray(image, jnp.float32)[None, ..., None]
    sums, counts = oxijax.splat(values, to, image.shape, coordinates="pixel", return_weights=True)
    return np.asarray(sums[0, ..., 0]), np.asarray(counts[0, ..., 0])


def draw_grids(figure: Figure) -> None:
    """An image beyond its edges, between its pixels, and with its pixels moved."""
    above, below = figure.subplots(2, 4)
    image = 0.2 + ring()[2:, 4:]
    height, width = image.shape
    for axes, mode in zip(above, ("zeros", "border", "reflection", "wrap"), strict=True):
        show(axes, beyond_the_edges(image, mode), f'"{mode}"')
        left, top = width // 2 - 0.5, height // 2 - 0.5
        x, y = np.array([[0, 1, 1, 0, 0], [0, 0, 1, 1, 0]])
        axes.plot(left + width * x, top + height * y, color=ORANGE, linewidth=1.2)
    patch = ring()[2:8, 2:8]
    steps = np.linspace(-0.5, 5.5, 97)[:-1] + 6 / 192
    grid = jnp.asarray(np.stack(np.meshgrid(steps, steps), axis=-1)[None], jnp.float32)
    for axes, method in zip(below, ("nearest", "bilinear", "bicubic"), strict=False):
        read = oxijax.grid_sample(
            jnp.asarray(patch, jnp.float32)[None, ..., None], grid, method=method,
            padding_mode="border", coordinates="pixel",
        )  # fmt: skip
        show(axes, np.asarray(read[0, ..., 0]), f'"{method}"')
    show(below[3], spread_out(ring(), 1.3)[0], "splat")


# Name of a picture, what draws it, and its width and height in inches.
PICTURES = {
    "window": (draw_window, (6.2, 2.3)),
    "offset_groups": (draw_offset_groups, (4.2, 2.35)),
    "bilinear": (draw_bilinear, (6.2, 2.4)),
    "gradients": (draw_gradients, (4.2, 2.35)),
    "sampled_windows": (draw_windows_of_samples, (6.2, 2.3)),
    "levels": (draw_levels, (6.2, 1.9)),
    "grid_sample": (draw_grid_sample, (6.2, 2.3)),
    "grids": (draw_grids, (6.2, 3.4)),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Draws all pictures into a folder, and says where they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(), help="a folder")
    folder = parser.parse_args(argv).output
    folder.mkdir(parents=True, exist_ok=True)
    for name, (draw, size) in PICTURES.items():
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        path = folder / f"explained_{name}.png"
        figure.savefig(path, dpi=140)
        print(f"drawn: {path}")


if __name__ == "__main__":
    main()
