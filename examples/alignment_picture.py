"""A frame as it is made of the two before it, what is left to do, and where they were read."""

import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from moving_frames import Aligned, Frames, psnr

import oxijax

__all__ = ["draw"]

_PIXELS = {(16, 20): "#D55E00", (30, 44): "#56B4E9", (48, 28): "#F0E442"}
_AREA = 30  # of a dot of weight 1, in square points


def draw(path: pathlib.Path, frames: Frames, aligned: Aligned, samples: oxijax.Samples) -> None:
    """Draws the first of some frames.

    Args:
      path: the picture's path; its suffix decides on the format.
      frames: [N, H, W, 3] each.
      aligned: what was made of them.
      samples: where, [N, H, W, 2, T, 2]: in the last frame and in the one before that.
    """
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 4)
    current = frames.current[0]
    _show(upper[0], current, "a frame, and three of its pixels")
    for pixel, color in _PIXELS.items():
        upper[0].plot(pixel[1], pixel[0], "x", color=color)
    of_groups = (frames.before, "the last frame"), (frames.before_last, "the one before")
    for group, (axis, (image, title)) in enumerate(zip(upper[1:], of_groups, strict=False)):
        _show(axis, image[0], f"{title}: where it looks")
        for pixel, color in _PIXELS.items():
            oxijax.draw_samples(
                None,
                samples.locations[0, *pixel, group],
                samples.weights[0, *pixel, group],
                color=color,
                area=_AREA,
                axes=axis,
            )
        height, width, _ = image[0].shape
        axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    _show(upper[3], aligned.image[0], "made of both")
    lower[0].axis("off")
    made = (frames.before, "the last frame"), (aligned.warped, "moved by the flow")
    for axis, (image, title) in zip(lower[1:], (*made, (aligned.image, "aligned")), strict=True):
        quality = psnr(image[0], current)
        error = np.abs(np.asarray(image[0]) - np.asarray(current)).mean(axis=-1)
        axis.imshow(error, cmap="magma", vmin=0, vmax=0.5)
        axis.set_title(f"{title}: {quality:.1f} dB", fontsize=9)
        axis.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=90)


def _show(axis: Axes, image: object, title: str) -> None:
    axis.imshow(np.clip(np.asarray(image), 0, 1))
    axis.set_title(title, fontsize=9)
    axis.set(xticks=[], yticks=[])
