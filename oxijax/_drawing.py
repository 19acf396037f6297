"""Pictures of where the operators sample, by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.install import install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_samples"]


@explain_keywords
def draw_samples(
    image: ArrayLike | None,
    locations: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    center: tuple[float, float] | None = None,
    color: Any = "#D55E00",
    area: float = 60.0,
    axes: Axes | None = None,
) -> Axes:
    """Draws an image and a dot for each sample in it, larger where the sample weighs more.

    Example:
      >>> import jax.numpy as jnp
      >>> import oxijax
      >>> x, weight = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 2))
      >>> offset = jnp.full((1, 8, 8, 18), 0.5)
      >>> samples = oxijax.sampling_locations(oxijax.deform_conv, x, offset, weight)
      >>> output = (4, 4)
      >>> axes = oxijax.draw_samples(x[0, ..., 0], samples.locations[0, *output], center=output)
      >>> axes.figure.savefig("samples.png")

    Args:
      image: [H, W], shades of gray from its least to its greatest value, or [H, W, 3], colours from
        0 to 1 or integers from 0 to 255; None to draw into what the axes have.
      locations: [..., 2], (y, x) in pixels, as `oxijax.sampling_locations` has them.
      weights: [...], of the samples: the area of a dot is proportional to the absolute value, and a
        dot of a negative weight is hollow. None for 1.
      center: (y, x) of a cross, and of lines from there to the samples; None for no cross.
      color: the color of dots, cross and lines, any that matplotlib knows.
      area: the area of a dot of weight 1, in square points.
      axes: to draw into; None for those of a new figure.

    Returns:
      The axes, whose `figure` has `savefig`.

    Raises:
      ValueError: an array of another shape, by name.
      TypeError: an argument of another type, by name.
      ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.axes import Axes
        from matplotlib.colors import is_color_like
    except ImportError as error:
        command = install_command("demo", "matplotlib")
        raise ImportError(f"draw_samples needs matplotlib: {command}") from error
    points = _read("locations", locations)
    if points.ndim < 1 or points.shape[-1] != 2:
        raise ValueError(f"locations must have shape (..., 2), got {points.shape}")
    sizes = np.ones(points.shape[:-1]) if weights is None else _read("weights", weights)
    if sizes.shape != points.shape[:-1]:
        raise ValueError(
            "weights must have the shape of locations without its last dimension, "
            f"{points.shape[:-1]}, got {sizes.shape}"
        )
    picture = None if image is None else _read("image", image)
    if picture is not None and picture.ndim != 2 and picture.shape[2:] != (3,):
        raise ValueError(f"image must have shape (H, W) or (H, W, 3), got {picture.shape}")
    if not is_color_like(color):
        raise ValueError(f"color must be a color that matplotlib knows, got {checks.shown(color)}")
    if axes is not None and not isinstance(axes, Axes):
        raise TypeError(f"axes must be matplotlib's Axes, got {checks.shown(axes)}")
    area = checks.parse_number("area", area)
    cross = None if center is None else _parse_center(center)
    axes = _new_axes() if axes is None else axes
    if picture is not None:
        _show(axes, picture)
    points, sizes = points.reshape(-1, 2), sizes.reshape(-1)
    if cross is not None:
        lines = [list(zip(cross[::-1], point[::-1], strict=True)) for point in points]
        for line in lines:
            axes.plot(*line, color=color, linewidth=0.9, alpha=0.5)
        axes.plot(cross[1], cross[0], "x", color=color)
    y, x = points.T
    for hollow in (False, True):
        chosen = (sizes < 0) == hollow
        style = {"facecolors": "none", "edgecolors": color} if hollow else {"color": color}
        axes.scatter(x[chosen], y[chosen], area * np.abs(sizes[chosen]), zorder=3, **style)
    return axes


def _read(name: str, value: Any) -> np.ndarray:
    array = checks.to_array(name, value)
    if jnp.issubdtype(array.dtype, jnp.integer):
        return np.asarray(array)
    return np.asarray(checks.as_float_array(name, array), np.float64)


def _parse_center(center: Any) -> tuple[float, float]:
    pair = checks.parse_sequence("center", center)
    if len(pair) != 2:
        raise ValueError(f"center must be (y, x), got {checks.shown(center)}")
    y, x = (checks.parse_number("center", value) for value in pair)
    return y, x


def _new_axes() -> Axes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)  # draws without a screen
    axes = figure.add_subplot()
    axes.set(xticks=[], yticks=[])
    return axes


def _show(axes: Axes, picture: np.ndarray) -> None:
    if picture.ndim == 3 and not np.issubdtype(picture.dtype, np.integer):
        picture = picture.clip(0, 1)
    axes.imshow(picture, cmap="gray")
