"""What a deformable convolution is: sizes that are known when its kernels are generated."""

from __future__ import annotations

import dataclasses
import math

from ptx.isa.dtypes import DType, bf16, f16, f32, f64

__all__ = ["DeformConvConfig"]

_TYPES = (f16, bf16, f32, f64)


@dataclasses.dataclass(frozen=True)
class DeformConvConfig:
    """A deformable convolution, but for the number and the size of the images.

    The sizes that follow from it do not raise, even of a configuration that `validate` rejects.

    Attributes:
      in_channels, out_channels: of all groups together.
      kernel_h, kernel_w: taps.
      stride_h, stride_w, dilation_h, dilation_w: at least 1.
      pad_h, pad_w: above and to the left of an image; the output's size says what is below and to
        the right.
      groups: channel groups, each with its own weights.
      offset_groups: channel groups, each with its own offsets and mask.
      use_modulation: whether there is a mask (v2).
      use_bias: whether there is a bias.
      float_type: of images, weights, bias and output: f16, bf16, f32 or f64.
      offset_type, mask_type: likewise; None is float_type.
      exact: f32 is multiplied as f32, not rounded to TF32.

    Source: Zhu et al., "Deformable ConvNets v2" (2019).
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
    offset_groups: int = 1
    use_modulation: bool = True
    use_bias: bool = False
    float_type: DType = f32
    offset_type: DType | None = None
    mask_type: DType | None = None
    exact: bool = False

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""
        for name in (
            *("in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h", "stride_w"),
            *("dilation_h", "dilation_w", "groups", "offset_groups"),
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("pad_h", "pad_w"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("groups", "offset_groups"):
            if self.in_channels % getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)} must divide in_channels={self.in_channels}"
                )
        if self.out_channels % self.groups:
            raise ValueError(f"groups={self.groups} must divide out_channels={self.out_channels}")
        for name, types in (
            ("float_type", _TYPES),
            ("offset_type", (*_TYPES, None)),
            ("mask_type", (*_TYPES, None)),
        ):
            if getattr(self, name) not in types:
                raise ValueError(f"{name} must be f16, bf16, f32 or f64, got {getattr(self, name)}")
        # Kernels count channels and rows of weights in 32 bits.
        for name, count in (
            ("kernel_h * kernel_w * in_channels", self.taps * self.in_channels),
            ("out_channels", self.out_channels),
        ):
            if count >= 2**30:
                raise ValueError(f"{name} must be below 2**30, got {count}")

    def output_size(self, in_h: int, in_w: int) -> tuple[int, int]:
        """Height and width of the output, where all sides are padded alike; 0 where none fits."""
        return (
            _positions(in_h + 2 * self.pad_h, self.effective_kernel_h, self.stride_h),
            _positions(in_w + 2 * self.pad_w, self.effective_kernel_w, self.stride_w),
        )

    @property
    def effective_kernel_h(self) -> int:
        """Height of the kernel with its dilation."""
        return self.dilation_h * max(0, self.kernel_h - 1) + 1

    @property
    def effective_kernel_w(self) -> int:
        """Width of the kernel with its dilation."""
        return self.dilation_w * max(0, self.kernel_w - 1) + 1

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
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def in_channels_per_group(self) -> int:
        return self.in_channels // self.groups

    @property
    def out_channels_per_group(self) -> int:
        return self.out_channels // self.groups

    @property
    def segment(self) -> int:
        """Neighbouring input channels that share group and offset group, cut evenly."""
        return math.gcd(self.in_channels_per_group, self.channels_per_offset_group)

    @property
    def coordinate_type(self) -> DType:
        """The type that sampling positions are calculated with."""
        return f64 if f64 in (self.float_type, self.offset_type, self.mask_type) else f32


def _positions(padded: int, kernel: int, stride: int) -> int:
    """How many kernels fit along one side."""
    return (padded - kernel) // max(1, stride) + 1 if padded >= kernel else 0
