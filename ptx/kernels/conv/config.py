"""The description of a convolution."""

from __future__ import annotations

import dataclasses

from ptx.kernels.convolution import ConvolutionConfig

__all__ = ["ConvConfig"]


@dataclasses.dataclass(frozen=True)
class ConvConfig(ConvolutionConfig):
    """A convolution of images [N, H, W, C] with weights that are the same everywhere.

    The attributes are those of `ConvolutionConfig`; padding may be negative.
    """

    def validate(self) -> None:
        super().validate()
        # Kernels count the weights, but for the groups, in 32 bits.
        count = self.taps * self.in_channels_per_group * self.out_channels
        if count >= 2**32:
            raise ValueError(f"weights must be below 2**32, got {count}")
