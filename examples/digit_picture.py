"""Pictures of what detectors find in scenes of digits, and where the queries of one look."""

import pathlib
from collections.abc import Mapping

import jax
import numpy as np
from detection_loss import Detections
from digit_scenes import SIZE, Scenes, corners
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import oxijax

__all__ = ["draw"]

_SCENES = 4
_LEAST = 0.4  # score of a box that is drawn
_COLORS = ("#D55E00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#E69F00")


def draw(
    path: pathlib.Path,
    scenes: Scenes,
    found: Mapping[str, Detections],
    points: tuple[jax.Array, jax.Array] | None = None,
) -> None:
    """Draws a row of scenes for each detector, and into the first row where its queries look.

    Args:
      path: the picture's path; its suffix decides on the format.
      scenes: the first ones are drawn.
      found: what each detector says of all of them.
      points: locations [N, Q, M, points, 2] and weights [N, Q, M, points], of the first detector.
    """
    count = min(_SCENES, len(scenes.images))
    figure = Figure(figsize=(2.4 * count, 2.5 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(found), count, squeeze=False)
    for number, (name, each) in enumerate(found.items()):
        for i, axis in enumerate(axes[number]):
            _draw_scene(axis, np.asarray(scenes.images[i, ..., 0]))
            queries = _draw_boxes(axis, np.asarray(each.boxes[i]), jax.nn.sigmoid(each.logits[i]))
            if points is None or number:
                continue
            for color, query in queries:
                yx = points[0][i, query][..., ::-1] * SIZE
                oxijax.draw_samples(None, yx, points[1][i, query], color=color, axes=axis)
        axes[number, 0].set_ylabel(name)
    figure.savefig(path, dpi=90)


def _draw_scene(axis: Axes, image: np.ndarray) -> None:
    axis.imshow(image, cmap="gray", vmin=-0.3, vmax=1.2, extent=(0, SIZE, SIZE, 0))
    axis.set(xlim=(0, SIZE), ylim=(SIZE, 0), xticks=[], yticks=[])


def _draw_boxes(axis: Axes, boxes: np.ndarray, scores: jax.Array) -> list[tuple[str, int]]:
    """Draws what is sure enough; tells the colours and numbers of these queries."""
    best = np.asarray(scores).max(-1)
    queries = np.flatnonzero(best > _LEAST)
    drawn = []
    for color, query in zip(_COLORS * len(queries), queries, strict=False):
        (x, y), (right, bottom) = (corner * SIZE for corner in corners(boxes[query]))
        box = Rectangle((x, y), right - x, bottom - y, fill=False, color=color, linewidth=1.2)
        axis.add_patch(box)
        label = f"{int(np.argmax(scores[query]))}"
        axis.text(x, y, label, color=color, fontsize=9, va="bottom", weight="bold", clip_on=True)
        drawn.append((color, int(query)))
    return drawn
