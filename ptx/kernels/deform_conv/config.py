"""The description of a deformable convolution."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.kernels.convolution import ConvolutionConfig
from ptx.operator import Sizes

__all__ = ["DeformConvConfig"]


@dataclasses.dataclass(frozen=True)
class DeformConvConfig(ConvolutionConfig):
    """A deformable convolution, but for the number and the size of the images.

    Dimensions of arrays besides those of `ConvolutionConfig`: d and m are the channels of offset
    and mask.

    Attributes besides those of `ConvolutionConfig`, whose padding is 0 at least:
      offset_groups: channel groups, each with its own offsets and mask.
      use_modulation: whether there is a mask (v2).
      offset_type, mask_type: f16, bf16, f32 or f64; None is float_type.

    Source: Zhu et al., "Deformable ConvNets v2" (2019).
    """

    offset_groups: int = 1
    use_modulation: bool = True
    offset_type: DType | None = None
    mask_type: DType | None = None

    def validate(self) -> None:
        super().validate()
        if self.offset_groups < 1:
            raise ValueError(f"offset_groups must be at least 1, got {self.offset_groups}")
        for name in ("pad_h", "pad_w"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.in_channels % self.offset_groups:
            raise ValueError(
                f"offset_groups={self.offset_groups} must divide in_channels={self.in_channels}"
            )
        for name in ("offset_type", "mask_type"):
            if getattr(self, name) not in (f16, bf16, f32, f64, None):
                raise ValueError(f"{name} must be f16, bf16, f32 or f64, got {getattr(self, name)}")

    @property
    def known_sizes(self) -> dict[str, int]:
        return super().known_sizes | {"d": self.offset_channels, "m": self.mask_channels}

    def with_sizes(self, sizes: Sizes) -> Self:
        groups = sizes["d"] // (2 * self.taps)
        return dataclasses.replace(super().with_sizes(sizes), offset_groups=groups)

    @property
    def channels_per_offset_group(self) -> int:
        return self.in_channels // self.offset_groups if self.offset_groups else 0

    @property
    def offset_channels(self) -> int:
        """Offsets of one output pixel: (y, x) for each tap and offset group."""
        return 2 * self.mask_channels

    @property
    def mask_channels(self) -> int:
        """Mask values of one output pixel: one for each tap and offset group."""
        return self.taps * self.offset_groups

    @property
    def segment(self) -> int:
        """Neighbouring input channels that share group and offset group, cut evenly."""
        return math.gcd(self.in_channels_per_group, self.channels_per_offset_group)

    @property
    def sums_fit(self) -> bool:
        """Whether the range of float_type is that of sums."""
        return self.float_type is not f16

    @property
    def coordinate_type(self) -> DType:
        """The type that sampling positions are calculated with."""
        return f64 if f64 in (self.float_type, self.offset_type, self.mask_type) else f32
