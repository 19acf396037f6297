"""Windows of samples that are a pixel apart: the operations, which kernels of samples run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

from ptx.isa.dtypes import DType, f32
from ptx.operator import Description, In, Operation, Out, Sizes

__all__ = ["BACKWARD_CENTERS", "BACKWARD_VALUE", "FORWARD", "WindowsConfig"]


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


_VALUE, _CENTERS = In("value", "n s d"), In("centers", "n q k", "location_type")
_GRAD_Y = In("grad_y", "n q w d")

FORWARD = Operation("sampling_windows", (_VALUE, _CENTERS), (Out("y", "n q w d"),))
BACKWARD_VALUE = Operation(
    "sampling_windows_backward_value", (_CENTERS, _GRAD_Y), (Out("grad_value", "n s d"),)
)
BACKWARD_CENTERS = Operation(
    "sampling_windows_backward_centers",
    (_VALUE, _CENTERS, _GRAD_Y),
    (Out("grad_centers", "n q k", "location_type"),),
)
