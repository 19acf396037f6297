"""Descriptions of convolutions, deformable or not."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.operator import Description, Sizes
from ptx.tile.vectors import accumulator_of

__all__ = ["ConvolutionConfig", "output_size"]

Pair = tuple[int, int]  # of height and width


@dataclasses.dataclass(frozen=True)
class ConvolutionConfig(Description):
    """A convolution of images [N, H, W, C], but for their number and size.

    The sizes that follow from it do not raise, even of a configuration that `validate` rejects.

    Dimensions of arrays are called: images n of size h, w with c channels; output pixels p, q with
    o channels; taps i, j; input channels e of a group.

    Attributes:
      in_channels, out_channels: of all groups together.
      kernel_h, kernel_w: taps.
      stride_h, stride_w, dilation_h, dilation_w: at least 1.
      pad_h, pad_w: zeros above and to the left of an image.
      pad_below, pad_right: zeros on the other sides, which only the output's size depends on; None
        is as many.
      groups: channel groups, each with its own weights.
      float_type: the type of images, weights, bias and output: f16, bf16, f32 or f64.
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
    pad_below: int | None = dataclasses.field(default=None, metadata={"optional": True})
    pad_right: int | None = dataclasses.field(default=None, metadata={"optional": True})

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

    def output_size(self, in_h: Any, in_w: Any) -> tuple[Any, Any]:
        """Height and width of the output; 0 where no window fits. Sizes may be symbolic."""
        size = output_size(
            (in_h, in_w), self.kernel_size, self.strides, self.padding, self.dilation
        )
        height, width = (max(0, n) if isinstance(n, int) else n for n in size)
        return height, width

    @property
    def kernel_size(self) -> Pair:
        return self.kernel_h, self.kernel_w

    @property
    def strides(self) -> Pair:
        return self.stride_h, self.stride_w

    @property
    def dilation(self) -> Pair:
        return self.dilation_h, self.dilation_w

    @property
    def padding(self) -> tuple[Pair, Pair]:
        """Zeros before and after, of height and of width."""
        below = self.pad_h if self.pad_below is None else self.pad_below
        right = self.pad_w if self.pad_right is None else self.pad_right
        return (self.pad_h, below), (self.pad_w, right)

    @property
    def sum_type(self) -> DType:
        """The type that products are added up in."""
        return accumulator_of(self.float_type)

    @property
    def known_sizes(self) -> dict[str, int]:
        return {
            "c": self.in_channels,
            "i": self.kernel_h,
            "j": self.kernel_w,
            "e": self.in_channels_per_group,
            "o": self.out_channels,
        }

    def complete(self, sizes: Sizes) -> dict[str, Any]:
        output = {}
        if "h" in sizes and "w" in sizes:
            output = dict(zip("pq", self.output_size(sizes["h"], sizes["w"]), strict=True))
        return {**output, **super().complete(sizes)}

    def with_sizes(self, sizes: Sizes) -> Self:
        channels = sizes["c"] if "c" in sizes else self.groups * sizes["e"]
        return dataclasses.replace(self, in_channels=channels, out_channels=sizes["o"])

    def products(self, sizes: Sizes) -> Any:
        """Multiplications of the convolution, and of each of its gradients."""
        pixels = sizes["n"] * sizes["p"] * sizes["q"]
        return pixels * self.taps * self.in_channels_per_group * self.out_channels

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


def output_size(
    image_size: tuple[Any, ...],
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[Pair, ...],
    dilation: tuple[int, ...],
) -> tuple[Any, ...]:
    """The sizes of a convolution's output; below 1 where no window fits."""
    return tuple(
        (size + sum(pads) - (gap * max(0, taps - 1) + 1)) // max(1, stride) + 1
        for size, pads, gap, taps, stride in zip(
            image_size, padding, dilation, kernel_size, strides, strict=True
        )
    )
