"""Windows of samples that are a pixel apart: the operations, and named configurations."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.kernels.sampling.geometry import Grid
from ptx.operator import Description, In, Operation, Out, Sizes
from ptx.tile.vectors import accumulator_of

__all__ = [
    "BACKWARD_CENTERS",
    "BACKWARD_VALUE",
    "CENTERS",
    "CONFIGS",
    "FORWARD",
    "GRAD_Y",
    "VALUE",
    "WindowsConfig",
    "Y",
]


@dataclasses.dataclass(frozen=True)
class WindowsConfig(Description):
    """Windows of samples, but for the numbers of images and windows.

    Images have one, two or three dimensions. Dimensions of arrays are called: images n with s
    pixels of d channels; windows q, centres of k coordinates, w samples of a window.

    Attributes:
      channels: the channels of an image.
      size: the size of an image.
      radius: samples on each side of a centre, for each dimension of an image.
      padding_mode: "zeros", "border" or "reflection".
      float_type: the type of the images.
      location_type: the type of the centres; None is float_type.
    """

    channels: int
    size: tuple[int, ...]
    radius: tuple[int, ...]
    padding_mode: str = "zeros"
    float_type: DType = f32
    location_type: DType | None = None

    def validate(self) -> None:
        self.grid.validate(self.dims, (1,))
        if not 1 <= self.dims <= 3 or min(self.size) < 1:
            raise ValueError(f"size must be 1, 2 or 3 numbers of at least 1, got {self.size}")
        if len(self.radius) != self.dims or min(self.radius) < 0:
            raise ValueError(f"radius must be {self.dims} numbers of at least 0, got {self.radius}")
        for what, count in (
            ("pixels of an image", self.pixels),
            ("pixels of a window", math.prod(size + 1 for size in self.window)),
        ):
            if count >= 2**28:
                raise ValueError(f"{what} must be below 2**28, got {count}")

    @property
    def known_sizes(self) -> dict[str, Any]:
        samples = math.prod(self.window)
        return {"s": self.pixels, "d": self.channels, "k": self.dims, "w": samples}

    def with_sizes(self, sizes: Sizes) -> Self:
        return dataclasses.replace(self, channels=sizes["d"])

    @property
    def dims(self) -> int:
        """The dimensions of an image."""
        return len(self.size)

    @property
    def pixels(self) -> int:
        """The pixels of an image."""
        return math.prod(self.size)

    @property
    def window(self) -> tuple[int, ...]:
        """The samples of a window along each dimension."""
        return tuple(2 * radius + 1 for radius in self.radius)

    @property
    def grid(self) -> Grid:
        """Where centres lie."""
        return Grid(padding_mode=self.padding_mode, coordinates="pixel")

    @property
    def sum_type(self) -> DType:
        """The type that samples are made in."""
        return accumulator_of(self.float_type)

    @property
    def coordinate_type(self) -> DType:
        """The type that positions are calculated in."""
        return accumulator_of(self.location_type or self.float_type)


VALUE, CENTERS = In("value", "n s d"), In("centers", "n q k", "location_type")
Y, GRAD_Y = Out("y", "n q w d"), In("grad_y", "n q w d")

FORWARD = Operation("sampling_windows", (VALUE, CENTERS), (Y,))
BACKWARD_VALUE = Operation(
    "sampling_windows_backward_value", (CENTERS, GRAD_Y), (Out("grad_value", "n s d"),)
)
BACKWARD_CENTERS = Operation(
    "sampling_windows_backward_centers",
    (VALUE, CENTERS, GRAD_Y),
    (Out("grad_centers", "n q k", "location_type"),),
)

_WINDOWS = {
    "RAFT": WindowsConfig(1, (46, 62), (4, 4)),
    "windows-line": WindowsConfig(1, (9,), (2,), "border"),
    "windows-volume": WindowsConfig(1, (3, 5, 4), (1, 1, 2)),
    "windows-reflection": WindowsConfig(1, (5, 6), (0, 2), "reflection"),
    "windows-mixed": WindowsConfig(1, (5, 6), (1, 3)),
}
_LOCATIONS = {f16: f32, bf16: f32, f32: f64, f64: f32}  # of "mixed", by the images' type
CONFIGS = {
    f"{name}/{dtype}": dataclasses.replace(
        config,
        float_type=dtype,
        location_type=_LOCATIONS[dtype] if name.endswith("mixed") else None,
    )
    for name, config in _WINDOWS.items()
    for dtype in (bf16, f16, f32, f64)
}
