"""What a convolution is: sizes that are known when its kernels are generated."""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import DType, bf16, f16, f32, f64

__all__ = ["ConvConfig"]


@dataclasses.dataclass(frozen=True)
class ConvConfig:
    """A convolution of images [N, H, W, C], but for their number and size.

    Attributes:
      in_channels, out_channels: of all groups together.
      kernel_h, kernel_w: taps.
      stride_h, stride_w, dilation_h, dilation_w: at least 1.
      pad_h, pad_w: above and to the left of an image; the output's size says what is below and to
        the right.
      groups: channel groups, each with its own weights.
      float_type: of all tensors: f16, bf16, f32 or f64.
      exact: f32 is multiplied as f32, not rounded to TF32.
      use_bias: forward, a bias is added to each output channel.
    """

    in_channels: int
    out_channels: int
    kernel_h: int = 3
    kernel_w: int = 3
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 1
    pad_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    float_type: DType = f32
    exact: bool = False
    use_bias: bool = False

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""
        for name in (
            *("in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h", "stride_w"),
            *("dilation_h", "dilation_w", "groups"),
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                raise ValueError(f"groups={self.groups} must divide {name}={getattr(self, name)}")
        if self.float_type not in (f16, bf16, f32, f64):
            raise ValueError(f"float_type must be f16, bf16, f32 or f64, got {self.float_type}")
        # Kernels count channels, rows of weights and, but for the groups, weights in 32 bits.
        for name, count, limit in (
            ("kernel_h * kernel_w * in_channels", self.taps * self.in_channels, 2**30),
            ("out_channels", self.out_channels, 2**30),
            ("weights", self.taps * self.in_channels_per_group * self.out_channels, 2**32),
        ):
            if count >= limit:
                raise ValueError(f"{name} must be below 2**{limit.bit_length() - 1}, got {count}")

    @property
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def effective_kernel_h(self) -> int:
        """Rows from the first tap to the last one."""
        return self.dilation_h * (self.kernel_h - 1) + 1

    @property
    def effective_kernel_w(self) -> int:
        """Columns from the first tap to the last one."""
        return self.dilation_w * (self.kernel_w - 1) + 1

    @property
    def in_channels_per_group(self) -> int:
        return self.in_channels // self.groups

    @property
    def out_channels_per_group(self) -> int:
        return self.out_channels // self.groups
