"""What a weighted sum of samples is: what is known when its kernels are generated."""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.tile.vectors import accumulator_of

__all__ = ["HEIGHT", "WIDTH", "SamplingConfig"]

HEIGHT, WIDTH = 0, 1


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """A weighted sum of samples of images, but for the numbers of images and queries.

    Pairs are (height, width).

    Attributes:
      heads: of a query, each with points and channels of its own.
      channels: of a head.
      levels: height and width of the images of each level.
      points: of a query and head in each level.
      place: where points lie. "across": coordinates from 0 to 1 across the image; "grid": from -1
        to 1; "window": offsets in pixels from the taps of a convolution's window.
      nearest: whether a point is a pixel; else it lies between four. Windows have no such points.
      normalize: weights are the softmax of what is given, over all points of a query and head.
      align_corners: of a grid: whether -1 and 1 are the centres of the outermost pixels.
      padding_mode: of a grid: "zeros", "border" or "reflection".
      out_size: of a window: of the output, each pixel of which is a query.
      kernel_size, strides, dilation: of the window; taps are counted column by column.
      padding: of a window: zeros above and to the left.
      offset_scale: of offsets and window.
      remove_center: whether the window lacks the tap in its middle.
      float_type: of the images: f16, bf16, f32 or f64.
      location_type, weight_type: f16, bf16, f32 or f64; None is float_type.
      use_weights: whether there are weights, in an array of their own.
      packed: whether locations and weights are in one array instead, of rows of `packed_width`
        elements of `location_type`: all pairs and then all weights of each head, and padding.
    """

    heads: int
    channels: int
    levels: tuple[tuple[int, int], ...]
    points: tuple[int, ...]
    place: str = "across"
    nearest: bool = False
    normalize: bool = False
    align_corners: bool = False
    padding_mode: str = "zeros"
    out_size: tuple[int, int] = (1, 1)
    kernel_size: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    offset_scale: float = 1.0
    remove_center: bool = False
    float_type: DType = f32
    location_type: DType | None = None
    weight_type: DType | None = None
    use_weights: bool = True
    packed: bool = dataclasses.field(default=False, metadata={"optional": True})

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""
        for name in ("heads", "channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.levels or min(min(level) for level in self.levels) < 1:
            raise ValueError(f"levels must be pairs of sizes of at least 1, got {self.levels}")
        if len(self.points) != len(self.levels) or min(self.points) < 1:
            raise ValueError(
                f"points must be one number of at least 1 for each of {len(self.levels)} levels, "
                f"got {self.points}"
            )
        if self.place not in ("across", "window", "grid"):
            raise ValueError(f'place must be "across", "window" or "grid", got {self.place!r}')
        if self.padding_mode not in ("zeros", "border", "reflection"):
            raise ValueError(
                f'padding_mode must be "zeros", "border" or "reflection", got {self.padding_mode!r}'
            )
        if self.place == "window" and (self.nearest or self.points != (self.taps,)):
            raise ValueError(
                f"points of a window must be its {self.taps} taps, between pixels, got "
                f"{self.points} with nearest={self.nearest}"
            )
        for axis in (HEIGHT, WIDTH):
            reach = self.dilation[axis] * self.kernel_size[axis]
            if max(self.out_size[axis] * self.strides[axis], self.padding[axis]) + reach >= 2**30:
                raise ValueError(
                    "out_size * strides, and padding, must be below 2**30 with the window, got "
                    f"{self.out_size}, {self.strides} and {self.padding}"
                )
        if self.packed and (self.use_weights or self.weight_type is not None):
            raise ValueError("packed has no weights apart, nor a weight_type")
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
    def pixels(self) -> int:
        """Of all levels of an image."""
        return sum(height * width for height, width in self.levels)

    @property
    def has_weights(self) -> bool:
        """Whether samples are weighed, by weights that lie anywhere."""
        return self.use_weights or self.packed

    @property
    def packed_width(self) -> int:
        """Elements of a row of what is packed: a multiple of 8, as DCNv4 has it."""
        return -(-3 * self.heads * sum(self.points) // 8) * 8

    @property
    def taps(self) -> int:
        """Of the window."""
        return self.kernel_size[HEIGHT] * self.kernel_size[WIDTH] - self.remove_center

    def middle(self, axis: int) -> int:
        """Pixels from the window's first tap to its middle."""
        return self.dilation[axis] * (self.kernel_size[axis] - 1) // 2

    @property
    def sum_type(self) -> DType:
        """The type that samples are added up in."""
        return accumulator_of(self.float_type)

    @property
    def coordinate_type(self) -> DType:
        """The type that positions are calculated in."""
        return accumulator_of(self.location_type or self.float_type)
