"""The picture of `python -m oxijax demo`: where two networks sample held-out digits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from oxijax._cli.demo_training import CANVAS, Classifier, Digits
from oxijax._convolution import output_size, parse_padding, parse_pair
from oxijax.nnx import DeformConv

__all__ = ["Samples", "draw", "on_ink", "sample"]

_LAYER = 3  # the last one, on whose samples the answer hangs most directly
_INK = 0.1  # a brighter pixel belongs to the digit
_SHOWN = (2, 3, 4, 7)  # classes

_TEXT, _PALE = "#222222", "#666666"
_MARGIN = 3.6  # around the canvas, in its pixels, for samples outside
_AREA = 75  # of a dot with modulation 1


# The output pixels whose samples are drawn: blue and vermilion are apart for colour-blind eyes too.
_COLORS = {"output pixel on the digit": "#0072B2", "output pixel beside it": "#D55E00"}


@dataclasses.dataclass(frozen=True)
class Samples:
    """Where a convolution with K taps reads, as (y, x) in pixels of the canvas.

    Attributes:
      centers: [Ho, Wo, 2], the positions of the output pixels.
      points: [N, Ho, Wo, K, 2], the sampling points of their taps.
      modulation: [N, Ho, Wo, K], what each sample is multiplied by.
    """

    centers: np.ndarray
    points: np.ndarray
    modulation: np.ndarray


def sample(network: Classifier, canvases: jax.Array, layer: int) -> Samples:
    """Where convolution number `layer` of a network reads canvases [N, H, W, 1]."""
    _, height, width, _ = canvases.shape
    grid, pixel = _grid(network, layer, (height, width))
    points = np.broadcast_to(grid, (len(canvases), *grid.shape))
    modulation = np.ones(points.shape[:-1])
    convolution = network.convolutions[layer]
    if isinstance(convolution, DeformConv):
        offset, mask = convolution.offsets(network.features(canvases, layer))
        points = points + pixel * np.asarray(offset).reshape(points.shape)
        if mask is not None:
            modulation = np.asarray(mask)
    return Samples(grid.mean(axis=2), points, modulation)


def _grid(network: Classifier, layer: int, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Sampling points [Ho, Wo, K, 2] without offsets, and the pixel that offsets count in.

    Both in pixels of the canvas. A layer's features lie in the middle of what their kernel
    reads, as far apart as the strides so far say.
    """
    first, pixel = np.zeros(2), np.ones(2)
    for number, convolution in enumerate(network.convolutions):
        kernel = parse_pair("kernel_size", convolution.kernel_size)
        strides = parse_pair("strides", convolution.strides)
        dilation = parse_pair("kernel_dilation", convolution.kernel_dilation)
        pads = parse_padding(convolution.padding, size, kernel, strides, dilation)
        size = output_size(size, kernel, strides, pads, dilation)
        taps = _positions(kernel).reshape(-1, 2) * dilation - [before for before, _ in pads]
        if number == layer:
            outputs = _positions(size)[:, :, None] * strides
            return first + pixel * (outputs + taps), pixel
        first, pixel = first + pixel * taps.mean(axis=0), pixel * strides
    raise ValueError(f"layer must be below {len(network.convolutions)}, got {layer}")


def _positions(size: tuple[int, int]) -> np.ndarray:
    return np.moveaxis(np.indices(size), 0, -1)


def on_ink(samples: Samples, canvases: jax.Array) -> float:
    """The share of all sampling points that fall on a digit."""
    points = np.rint(samples.points).astype(int)
    inside = np.all((points >= 0) & (points < CANVAS), axis=-1)
    y, x = np.moveaxis(points.clip(0, CANVAS - 1), -1, 0)
    image = np.arange(len(canvases)).reshape(-1, 1, 1, 1)
    ink = np.asarray(canvases)[image, y, x, 0] > _INK
    return float(np.mean(ink & inside))


def draw(file: Path | IO[bytes], plain: Classifier, deformable: Classifier, digits: Digits) -> None:
    """Writes the picture, a PNG file, for two networks trained on the same digits."""
    canvases = digits.held_out_images
    samples = [sample(network, canvases, _LAYER) for network in (plain, deformable)]
    chosen = [_typical(digits, label) for label in _SHOWN]
    shown = canvases[np.array(chosen)]
    answers = [np.argmax(network(shown), axis=-1) for network in (plain, deformable)]

    figure = Figure(figsize=(13.2, 8.2), dpi=120, facecolor="white")
    _draw_title(figure, *(on_ink(s, canvases) for s in samples))
    _draw_legend(figure)
    figure.subplots_adjust(0.012, 0.068, 0.988, 0.825, wspace=0.02, hspace=0.02)
    panels = figure.subplots(2, 5, width_ratios=(1, 1, 0.15, 1, 1))
    for gap in panels[:, 2]:
        gap.set_axis_off()
    columns = panels[:, [0, 1, 3, 4]]
    for axes, name in zip(columns[0], ("plain", "deformable") * 2, strict=True):
        axes.set_title(f"{name} convolution", fontsize=15, color=_TEXT, pad=9)
    for number, index in enumerate(chosen):
        canvas = np.asarray(canvases[index, ..., 0])
        pixels = _pixels(samples[0], canvas)
        pair = columns.reshape(-1, 2)[number]
        for axes, network_samples, answer in zip(pair, samples, answers, strict=True):
            _draw_panel(axes, canvas, network_samples, index, pixels)
            _draw_answer(axes, int(answer[number]), _SHOWN[number])
    figure.savefig(file, format="png")


def _typical(digits: Digits, label: int) -> int:
    """The held-out canvas of a class with the median amount of ink."""
    candidates = np.flatnonzero(np.asarray(digits.held_out_labels) == label)
    amounts = np.asarray(digits.held_out_images[candidates].sum(axis=(1, 2, 3)))
    return int(candidates[np.argsort(amounts)[len(amounts) // 2]])


def _pixels(plain: Samples, canvas: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The output pixels to draw: from one the plain kernel sees most ink, from one least.

    Among equals the most central one. Pixels whose kernel reaches over the edge do not count.
    """
    ranks = {}
    for pixel in np.ndindex(plain.centers.shape[:2]):
        taps, center = plain.points[0][pixel], plain.centers[pixel]
        if np.all((taps >= 0) & (taps < CANVAS)):
            (top, left), (bottom, right) = taps[0].astype(int), taps[-1].astype(int)
            # A feature is made of more than the one pixel that it lies at.
            seen = canvas[max(top - 2, 0) : bottom + 3, max(left - 2, 0) : right + 3]
            distance = float(np.linalg.norm(center - (CANVAS - 1) / 2))
            ranks[pixel] = (int(np.sum(seen > _INK)), distance)
    most = min(ranks, key=lambda pixel: (-ranks[pixel][0], ranks[pixel][1]))
    return most, min(ranks, key=ranks.__getitem__)


def _draw_title(figure: Figure, plain_share: float, deformable_share: float) -> None:
    title = "A plain convolution reads a fixed grid. A deformable one learns where to read."
    caption = (
        "The nine points that the last layer reads for two of its output pixels, on digits that "
        "the networks have never seen.\n"
        f"Over all of these digits and output pixels, {plain_share:.0%} of the plain points fall "
        f"on ink, and {deformable_share:.0%} of the deformable ones."
    )
    centered = {"x": 0.5, "ha": "center", "va": "center"}
    figure.text(y=0.965, s=title, size=19, weight="bold", color=_TEXT, **centered)
    figure.text(y=0.91, s=caption, size=13, linespacing=1.5, color=_PALE, **centered)


def _draw_legend(figure: Figure) -> None:
    def marker(label: str, **style) -> Line2D:
        return Line2D([], [], linestyle="", label=label, **style)

    handles = [
        marker(name, marker="s", ms=12, mfc="none", mec=color, mew=2.2)
        for name, color in _COLORS.items()
    ]
    handles += [
        marker(
            f"sampling point, modulation {weight:g}" if weight == 0.5 else f"{weight:g}",
            marker="o",
            ms=np.sqrt(_AREA * weight),
            mfc=_PALE,
            mec="white",
        )
        for weight in (0.5, 1.0, 1.5)
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        fontsize=13,
        labelcolor=_TEXT,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.6,
    )


def _draw_panel(
    axes: Axes,
    canvas: np.ndarray,
    samples: Samples,
    index: int,
    pixels: Sequence[tuple[int, ...]],
) -> None:
    axes.imshow(canvas, cmap="Greys", vmin=0, vmax=1.7, interpolation="nearest")
    axes.add_patch(Rectangle((-0.5, -0.5), CANVAS, CANVAS, fill=False, ec="#BBBBBB", lw=1))
    for color, pixel in zip(_COLORS.values(), pixels, strict=True):
        y, x = samples.centers[pixel]
        points, modulation = samples.points[index][pixel], samples.modulation[index][pixel]
        axes.add_patch(Rectangle((x - 2, y - 2), 4, 4, fill=False, ec=color, lw=2.2, zorder=4))
        ys, xs = np.moveaxis(np.stack(np.broadcast_arrays([y, x], points)), -1, 0)
        axes.plot(xs, ys, color=color, lw=0.9, alpha=0.55, clip_on=False, zorder=2)
        dots = {"c": color, "edgecolors": "white", "linewidths": 1, "clip_on": False, "zorder": 3}
        axes.scatter(points[:, 1], points[:, 0], s=_AREA * modulation, **dots)
    axes.set(xlim=(-_MARGIN, CANVAS - 1 + _MARGIN), ylim=(CANVAS - 1 + _MARGIN, -_MARGIN))
    axes.set_axis_off()


def _draw_answer(axes: Axes, answer: int, label: int) -> None:
    right = answer == label
    axes.text(
        0,
        CANVAS + 0.2,
        f"answer {answer}" if right else f"answer {answer}, truth {label}",
        va="top",
        size=12,
        color=_PALE if right else "#B00020",
    )
