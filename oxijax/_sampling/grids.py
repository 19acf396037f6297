"""Arguments that the functions of a grid of positions share: images, grids, how both are read."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._core.arguments import checks
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling.points import check_image
from oxijax._sampling.stencils import WHOLE_PIXELS, stencil_points
from ptx.kernels.sampling.geometry import Geometry, Grid

__all__ = [
    "Reading",
    "channels_first",
    "channels_last",
    "check_grid",
    "laid_out",
    "parse_data_format",
    "parse_images",
]

# By the number of dimensions of images with their batch and channels.
_FORMATS = {3: ("NWC", "NCW"), 4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}


def parse_data_format(value: Any, dims: int) -> str:
    """The order of the dimensions of images of so many, where None is channels last."""
    if value is None:
        return _FORMATS[dims + 2][0]
    checks.check_choice("data_format", value, _FORMATS[dims + 2])
    return value


def parse_images(x: Any, data_format: Any) -> jax.Array:
    """The argument x as images with channels last, which has been checked."""
    x = checks.as_float_array("x", x)
    dims = x.ndim - 2
    if dims not in (1, 2, 3):
        raise ValueError(f"x must have 3, 4 or 5 dimensions, got shape {x.shape}")
    x = channels_last(x, parse_data_format(data_format, dims))
    check_image("x", x)
    return x


def laid_out(y: jax.Array, data_format: str | None) -> jax.Array:
    """A result with channels last in the order of dimensions of images of a data format."""
    return y if data_format is None else channels_first(y, data_format)


def channels_last(array: jax.Array, data_format: str) -> jax.Array:
    return jnp.moveaxis(array, 1, -1) if data_format[1] == "C" else array


def channels_first(array: jax.Array, data_format: str) -> jax.Array:
    """An array with channels last, in the order of dimensions of a data format."""
    return jnp.moveaxis(array, -1, 1) if data_format[1] == "C" else array


def check_grid(name: str, grid: jax.Array, n: Any, dims: int, what: str) -> None:
    """Checks positions for n images, either of which may be one for all of the other.

    Args:
      name: the argument's.
      grid: the positions.
      n: the number of images.
      dims: the number of their dimensions.
      what: what has so many dimensions, for the message.
    """
    if (
        grid.ndim < 2
        or grid.shape[-1] != dims
        or (n not in (1, grid.shape[0]) and grid.shape[0] != 1)
    ):
        raise ValueError(
            f"{name} must have shape (N or 1, ..., {dims}) = ({n} or 1, ..., {dims}) for {what}, "
            f"got {grid.shape}"
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a grid is read.

    Attributes:
      method, padding_mode, align_corners, coordinates: as in `grid_sample`.
    """

    method: str
    padding_mode: str
    align_corners: bool
    coordinates: str

    @classmethod
    def parse(
        cls, method: Any, padding_mode: Any, align_corners: Any, coordinates: Any, dims: int
    ) -> "Reading":
        """Checks the arguments, for images of so many dimensions."""
        checks.check_choice("method", method, ("bilinear", "nearest", "bicubic"), _LINEAR)
        checks.check_choice("padding_mode", padding_mode, _PADDING_MODES, _BORDERS)
        checks.check_choice("coordinates", coordinates, ("normalized", "unit", "pixel"))
        align_corners = checks.parse_bool("align_corners", align_corners)
        if align_corners and coordinates != "normalized":
            raise ValueError(
                f"align_corners must be False with coordinates {coordinates!r}, got True"
            )
        if method == "bicubic" and dims == 3:
            raise ValueError('method must be "bilinear" or "nearest" for volumes, got "bicubic"')
        return cls(method, padding_mode, align_corners, coordinates)

    def points(
        self, grid: jax.Array, n: Any, sizes: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array | None, Geometry]:
        """Locations [N, Q, 1, T, K] and weights [N, Q, 1, T], or None for 1, and their geometry.

        Args:
          grid: [N, ..., K].
          n: the number of images, N or 1, which then has all queries.
          sizes: the sizes of the images.
        """
        queries = 1 if n == grid.shape[0] else grid.shape[0]
        for size in grid.shape[1:-1]:
            queries = queries * size
        locations = reshape(grid, (n, queries, 1, 1, len(sizes)))
        wrap = self.padding_mode == "wrap"
        mode = "zeros" if wrap else self.padding_mode
        nearest = self.method == "nearest"
        geometry = Grid(self.align_corners, mode, nearest, self.coordinates)
        if self.method != "bicubic" and not wrap:
            return locations, None, geometry
        points = stencil_points(locations, sizes, geometry, self.method, wrap=wrap)
        return *points, WHOLE_PIXELS


_LINEAR = {"linear": "bilinear", "trilinear": "bilinear", "cubic": "bicubic"}
_PADDING_MODES = ("zeros", "border", "reflection", "wrap")
_BORDERS = {
    "constant": "zeros", "nearest": "border", "edge": "border", "replicate": "border",
    "reflect": "reflection", "symmetric": "reflection", "circular": "wrap", "periodic": "wrap",
    "grid-wrap": "wrap",
}  # fmt: skip
