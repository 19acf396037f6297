"""What a convolution is, deformable or not: the sizes that generated kernels know."""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import DType, bf16, f16, f32, f64

__all__ = ["ConvolutionConfig", "known_sizes"]


@dataclasses.dataclass(frozen=True)
class ConvolutionConfig:
    """A convolution of images [N, H, W, C], but for their number and size.

    The sizes that follow from it do not raise, even of a configuration that `validate` rejects.

    Attributes:
      in_channels, out_channels: of all groups together.
      kernel_h, kernel_w: taps.
      stride_h, stride_w, dilation_h, dilation_w: at least 1.
      pad_h, pad_w: above and to the left of an image; the output's size says what is below and to
        the right.
      groups: channel groups, each with its own weights.
      float_type: of images, weights, bias and output: f16, bf16, f32 or f64.
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
        """Rows from the first tap to the last one."""
        return self.dilation_h * max(0, self.kernel_h - 1) + 1

    @property
    def effective_kernel_w(self) -> int:
        """Columns from the first tap to the last one."""
        return self.dilation_w * max(0, self.kernel_w - 1) + 1

    @property
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def in_channels_per_group(self) -> int:
        return self.in_channels // self.groups

    @property
    def out_channels_per_group(self) -> int:
        return self.out_channels // self.groups


def known_sizes(config: ConvolutionConfig) -> dict[str, int]:
    """The sizes of arrays' dimensions that a configuration knows.

    They are the channels c of images and o of outputs, the kernel's rows i and columns j, and the
    input channels e of a group.
    """
    return {
        "c": config.in_channels,
        "i": config.kernel_h,
        "j": config.kernel_w,
        "e": config.in_channels_per_group,
        "o": config.out_channels,
    }


def _positions(padded: int, kernel: int, stride: int) -> int:
    """How many kernels fit along one side."""
    return (padded - kernel) // max(1, stride) + 1 if padded >= kernel else 0
