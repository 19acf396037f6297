"""The description of a weighted sum of samples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.kernels.sampling.geometry import Across, Geometry
from ptx.operator import Description, Sizes
from ptx.tile.vectors import accumulator_of

__all__ = ["SamplingConfig", "packed_width"]


@dataclasses.dataclass(frozen=True)
class SamplingConfig(Description):
    """A weighted sum of samples of images, but for the numbers of images and queries.

    Images have one, two or three dimensions. Dimensions of arrays are called: images n with s
    pixels, of m heads with d channels; queries q; points t, with k coordinates; p elements of a
    query that is packed.

    Attributes:
      heads: the heads of a query, each with points and channels of its own.
      channels: the channels of a head.
      levels: the sizes of the images of each level: (width,), (height, width) or (depth, height,
        width).
      points: the points of a query and head in each level.
      geometry: where points lie.
      normalize: weights are the softmax of what is given, over all points of a query and head.
      float_type: the type of the images: f16, bf16, f32 or f64.
      location_type, weight_type: f16, bf16, f32 or f64; None is float_type.
      use_weights: whether there are weights, in an array of their own.
      packed: whether locations and weights are in one array instead, of rows of `packed_width`
        elements of `location_type`: all pairs and then all weights of each head, and padding.
    """

    heads: int
    channels: int
    levels: tuple[tuple[int, ...], ...]
    points: tuple[int, ...]
    geometry: Geometry = dataclasses.field(default_factory=Across)
    normalize: bool = False
    float_type: DType = f32
    location_type: DType | None = None
    weight_type: DType | None = None
    use_weights: bool = True
    packed: bool = False

    def validate(self) -> None:
        for name in ("heads", "channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        ranks = {len(level) for level in self.levels}
        if not ranks or not ranks <= {1, 2, 3} or min(min(level) for level in self.levels) < 1:
            raise ValueError(
                f"levels must have 1, 2 or 3 sizes of at least 1 each, got {self.levels}"
            )
        if len(ranks) > 1:
            raise ValueError(f"levels must have as many dimensions each, got {self.levels}")
        if len(self.points) != len(self.levels) or min(self.points) < 1:
            raise ValueError(
                f"points must be one number of at least 1 for each of {len(self.levels)} levels, "
                f"got {self.points}"
            )
        self.geometry.validate(self.dims, self.points)
        if self.packed and (self.use_weights or self.weight_type is not None):
            raise ValueError("packed has no weights apart, nor a weight_type")
        if self.packed and self.dims != 2:
            raise ValueError(f"packed needs images of two dimensions, got levels {self.levels}")
        if self.normalize and not self.has_weights:
            raise ValueError("normalize needs weights")
        for name in ("float_type", "location_type", "weight_type"):
            if getattr(self, name) not in (f16, bf16, f32, f64, *[None] * (name != "float_type")):
                raise ValueError(f"{name} must be f16, bf16, f32 or f64, got {getattr(self, name)}")
        for name, count in (
            ("heads * channels", self.heads * self.channels),
            ("pixels of all levels", self.pixels),
            ("heads * sum(points)", self.heads * sum(self.points)),
        ):
            if count >= 2**28:
                raise ValueError(f"{name} must be below 2**28, got {count}")

    @property
    def known_sizes(self) -> dict[str, Any]:
        return {
            "s": self.pixels,
            "m": self.heads,
            "d": self.channels,
            "t": sum(self.points),
            "k": self.dims,
            "p": self.packed_width,
        }

    def with_sizes(self, sizes: Sizes) -> Self:
        return dataclasses.replace(self, heads=sizes["m"], channels=sizes["d"])

    @property
    def dims(self) -> int:
        """The dimensions of an image."""
        return len(self.levels[0])

    @property
    def axes(self) -> range:
        """The axes of an image."""
        return range(self.dims)

    @property
    def pixels(self) -> int:
        """The pixels of all levels of an image."""
        return sum(math.prod(level) for level in self.levels)

    @property
    def corners(self) -> int:
        """The pixels that a point is interpolated from."""
        return 1 if self.geometry.nearest else 2**self.dims

    @property
    def has_weights(self) -> bool:
        """Whether samples are weighed, by weights that lie anywhere."""
        return self.use_weights or self.packed

    @property
    def packed_width(self) -> int:
        """Elements of a row of what is packed."""
        return packed_width(self.heads, sum(self.points))

    @property
    def sum_type(self) -> DType:
        """The type that samples are added up in."""
        return accumulator_of(self.float_type)

    @property
    def coordinate_type(self) -> DType:
        """The type that positions are calculated in."""
        return accumulator_of(self.location_type or self.float_type)


def packed_width(heads: int, points: int) -> int:
    """Elements of a row of what is packed, of so many points of a head.

    Each head has the pairs of its points, then their weights. A row is filled up to a multiple of
    8, as DCNv4 has it.
    """
    return -(-3 * heads * points // 8) * 8
