"""Named layers of convolution."""

import dataclasses
import math
import zlib
from typing import Any

import numpy as np

from oxijax._convolution import PaddingLike, Pads, output_size, parse_padding
from ptx.kernels.conv.catalog import RESNET50

__all__ = ["CONV_CASES", "CONV_GPU_BENCHMARK_CASES", "ConvCase"]


@dataclasses.dataclass(frozen=True)
class ConvCase:
    """A layer over one or two dimensions: spatial tuples have one number or two.

    Attributes:
      name: what the layer is known by in test names and tables.
      x: shape of the images, channels last: [N, H, W, C] or [N, W, C].
      out_channels: Co.
      channels_first: whether operands and result are NCHW or NCW.
    """

    name: str
    x: tuple[int, ...]
    out_channels: int
    kernel_size: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] = (1, 1)
    padding: PaddingLike = "SAME"
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    bias: bool = True
    channels_first: bool = False

    @property
    def data_format(self) -> str:
        spatial = "HW"[-len(self.kernel_size) :]
        return f"NC{spatial}" if self.channels_first else f"N{spatial}C"

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `oxijax.conv` for this layer."""
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "data_format": self.data_format,
        }

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after, for each spatial dimension."""
        return self._pads[-len(self.kernel_size) :]

    @property
    def out_size(self) -> tuple[int, ...]:
        """Extent of the output in each spatial dimension."""
        image, kernel, strides, dilation = self._window
        size = output_size(image, kernel, strides, self._pads, dilation)
        return size[-len(self.kernel_size) :]

    @property
    def _window(self) -> tuple[tuple[int, int], ...]:
        sizes = (self.x[1:-1], self.kernel_size, self.strides, self.dilation)
        return tuple(((1, *size)[-2], size[-1]) for size in sizes)

    @property
    def _pads(self) -> Pads:
        return parse_padding(self.padding, *self._window, rank=len(self.kernel_size))

    @property
    def y(self) -> tuple[int, ...]:
        """Shape of the output, in the layer's data format."""
        channels = self.out_channels
        if self.channels_first:
            return self.x[0], channels, *self.out_size
        return self.x[0], *self.out_size, channels

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of one forward pass."""
        taps = math.prod(self.kernel_size) * self.x[-1] // self.groups
        return self.x[0] * math.prod(self.out_size) * self.out_channels * taps

    def operands(self) -> tuple[Any, ...]:
        """X, weight and bias in float32, or None, in its data format: the same at every call."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        in_group = self.x[-1] // self.groups
        fan_in = in_group * math.prod(self.kernel_size)
        x = rng.standard_normal(self.x)
        weight = rng.standard_normal((*self.kernel_size, in_group, self.out_channels))
        weight = weight / np.sqrt(fan_in)
        bias = rng.standard_normal(self.out_channels) if self.bias else None
        if self.channels_first:
            spatial = range(len(self.kernel_size))
            x = np.moveaxis(x, -1, 1)
            weight = weight.transpose(weight.ndim - 1, weight.ndim - 2, *spatial)
        return tuple(None if a is None else a.astype(np.float32) for a in (x, weight, bias))

    def grad_y(self) -> np.ndarray:
        """A gradient with respect to the output, in float32."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()) + 1)
        return rng.standard_normal(self.y, dtype=np.float32)


def _line(
    name: str,
    x: tuple[int, int, int],
    out_channels: int,
    kernel_size: int = 3,
    strides: int = 1,
    padding: PaddingLike = "SAME",
    dilation: int = 1,
    **options: Any,
) -> ConvCase:
    """A layer over one dimension."""
    sizes = {"kernel_size": (kernel_size,), "strides": (strides,), "dilation": (dilation,)}
    return ConvCase(name, x, out_channels, padding=padding, **sizes, **options)


# Each small enough for an emulator.
_CASES = (
    ConvCase("plain", (2, 7, 6, 4), 5),
    ConvCase("no-bias", (2, 7, 6, 4), 5, bias=False),
    ConvCase("nchw", (2, 7, 6, 4), 5, channels_first=True),
    ConvCase("nchw-no-bias", (2, 5, 8, 3), 7, channels_first=True, bias=False),
    ConvCase("kernel-1x1", (2, 6, 5, 4), 6, (1, 1)),
    ConvCase("kernel-1x1-strided", (2, 7, 6, 8), 16, (1, 1), (2, 2), bias=False),
    ConvCase("kernel-1x1-padded", (1, 4, 5, 3), 7, (1, 1), padding=1),
    ConvCase("kernel-2x2-strided", (2, 8, 6, 4), 8, (2, 2), (2, 2), "VALID"),
    ConvCase("kernel-2x4", (2, 6, 5, 4), 6, (2, 4)),
    ConvCase("kernel-4x4", (1, 7, 7, 4), 7, (4, 4), (2, 2)),
    ConvCase("kernel-5x1", (2, 6, 5, 4), 6, (5, 1)),
    ConvCase("kernel-1x7", (1, 5, 9, 4), 7, (1, 7)),
    ConvCase("kernel-5x5", (1, 7, 6, 4), 6, (5, 5)),
    ConvCase("kernel-7x7-stem", (1, 12, 12, 3), 16, (7, 7), (2, 2), 3, bias=False),
    ConvCase("kernel-as-image", (3, 4, 5, 6), 7, (4, 5), padding="VALID"),
    ConvCase("kernel-over-image", (2, 3, 2, 4), 5, (5, 5), padding=2),
    ConvCase("kernel-11x11", (1, 14, 13, 2), 7, (11, 11), (4, 4), 2),
    ConvCase("strides-2", (2, 8, 8, 4), 6, strides=(2, 2)),
    ConvCase("strides-2-odd", (2, 9, 7, 4), 6, strides=(2, 2), padding=1),
    ConvCase("strides-2x3", (2, 9, 8, 4), 6, strides=(2, 3)),
    ConvCase("strides-over-kernel", (2, 11, 13, 4), 5, (2, 2), (3, 4), "VALID"),
    ConvCase("strides-leave-rest", (1, 9, 10, 4), 6, strides=(4, 4), padding="VALID"),
    ConvCase("strides-nchw", (2, 9, 8, 6), 4, strides=(2, 1), channels_first=True),
    ConvCase("strides-one-output", (2, 5, 5, 4), 7, strides=(9, 9), padding=1),
    ConvCase("dilated-2", (2, 7, 8, 4), 5, dilation=(2, 2)),
    ConvCase("dilated-2x3", (2, 9, 8, 4), 6, padding=3, dilation=(2, 3)),
    ConvCase("dilated-strided", (2, 11, 9, 4), 7, strides=(2, 2), dilation=(2, 2)),
    ConvCase("dilated-4-strides-3", (1, 13, 12, 2), 3, (3, 2), (3, 3), 4, (4, 3)),
    ConvCase("dilated-over-image", (1, 3, 3, 4), 7, padding=4, dilation=(4, 4)),
    ConvCase("valid", (2, 7, 6, 4), 6, padding="VALID"),
    ConvCase("same-lower", (2, 8, 6, 4), 6, (2, 4), (2, 2), "SAME_LOWER"),
    ConvCase("padding-2", (2, 5, 5, 4), 6, padding=2),
    ConvCase("padding-uneven", (1, 6, 7, 4), 6, padding=((0, 2), (3, 1))),
    ConvCase("padding-uneven-strided", (2, 6, 7, 4), 3, strides=(2, 3), padding=((3, 0), (0, 4))),
    ConvCase("padding-over-kernel", (1, 4, 4, 4), 3, (2, 2), padding=((4, 3), (5, 2))),
    ConvCase("padding-before", (2, 5, 6, 3), 7, (3, 1), padding=((2, 0), (0, 0))),
    ConvCase("one-row", (2, 3, 9, 4), 6, padding=((0, 0), (1, 1))),
    ConvCase("one-column", (2, 9, 3, 4), 6, padding=((1, 1), (0, 0))),
    ConvCase("one-pixel", (2, 1, 1, 4), 6),
    ConvCase("one-channel", (2, 6, 5, 1), 1),
    ConvCase("one-channel-in", (2, 6, 5, 1), 9),
    ConvCase("one-channel-out", (2, 6, 5, 9), 1),
    ConvCase("odd-channels", (2, 5, 6, 7), 11),
    ConvCase("odd-channels-nchw", (1, 5, 6, 13), 9, channels_first=True),
    ConvCase("batch-33", (33, 4, 3, 2), 6),
    ConvCase("batch-37-strided", (37, 3, 5, 2), 3, strides=(2, 2)),
    ConvCase("groups-2", (2, 6, 5, 6), 4, groups=2),
    ConvCase("groups-3-strided", (2, 7, 8, 6), 9, strides=(2, 2), groups=3),
    ConvCase("groups-4-nchw", (1, 6, 5, 8), 12, groups=4, channels_first=True),
    ConvCase("groups-odd", (1, 5, 5, 15), 21, groups=3, padding=((0, 1), (2, 0))),
    ConvCase("groups-wide", (1, 4, 5, 32), 32, groups=2),
    ConvCase("groups-of-8", (1, 3, 4, 32), 64, groups=4),
    ConvCase("depthwise", (2, 6, 5, 6), 6, groups=6),
    ConvCase("depthwise-multiplier", (2, 6, 5, 5), 15, groups=5),
    ConvCase("depthwise-strided", (2, 7, 6, 8), 8, (5, 5), (2, 2), groups=8, bias=False),
    ConvCase("depthwise-dilated", (1, 9, 8, 16), 16, dilation=(2, 2), groups=16),
    ConvCase("depthwise-nchw", (2, 5, 6, 12), 12, groups=12, channels_first=True),
    ConvCase("depthwise-65", (1, 4, 3, 65), 65, groups=65),
    ConvCase("depthwise-7x7", (1, 9, 9, 24), 24, (7, 7), groups=24),
    ConvCase("depthwise-2x-strided", (1, 9, 8, 8), 16, strides=(2, 2), groups=8),
    ConvCase("depthwise-4x-dilated", (2, 5, 6, 12), 48, dilation=(2, 2), groups=12),
    ConvCase("depthwise-strides-3x2", (1, 13, 11, 8), 8, (4, 3), (3, 2), 4, (2, 3), groups=8),
    ConvCase("groups-of-2", (2, 6, 7, 16), 16, groups=8),
    ConvCase("groups-of-3", (1, 7, 8, 9), 12, (5, 5), groups=3),
    ConvCase("groups-of-4-strided", (1, 7, 6, 24), 24, strides=(2, 2), groups=6),
    ConvCase("wide-in", (1, 3, 3, 128), 8),
    ConvCase("wide-in-odd", (1, 2, 4, 130), 5, (2, 3)),
    ConvCase("wide-out", (1, 3, 3, 8), 130),
    ConvCase("wide", (1, 2, 2, 64), 72, (2, 1)),
    ConvCase("wide-1x1", (2, 3, 4, 64), 64, (1, 1)),
    ConvCase("wide-1x1-strided", (1, 5, 5, 96), 64, (1, 1), (2, 2)),
    ConvCase("wide-pixels", (1, 20, 17, 3), 8),
    _line("line", (2, 11, 4), 5),
    _line("line-ncw", (2, 11, 4), 5, channels_first=True),
    _line("line-no-bias", (1, 9, 3), 7, bias=False),
    _line("line-kernel-1", (2, 9, 8), 6, 1),
    _line("line-kernel-4-strided", (2, 13, 4), 6, 4, 2),
    _line("line-strides-over-kernel", (3, 17, 3), 5, 2, 5, "VALID"),
    _line("line-causal", (2, 12, 4), 7, 3, padding=((4, 0),), dilation=2),
    _line("line-dilated-strided", (2, 19, 4), 6, 3, 2, 3, 3),
    _line("line-groups", (2, 10, 6), 9, 5, groups=3, channels_first=True),
    _line("line-depthwise", (1, 16, 20), 20, 4, padding=((3, 0),), groups=20),
    _line("line-depthwise-long", (1, 40, 8), 8, 36, groups=8),
    _line("line-wide", (1, 9, 48), 40, 3),
)

CONV_CASES = {case.name: case for case in _CASES}


def _of_resnet50(name: str) -> ConvCase:
    """A layer for 32 images of 224x224. A normalization follows it, so it has no bias."""
    layer, extent = RESNET50[name].config, RESNET50[name].extent
    return ConvCase(
        f"ResNet50-{name}",
        (*extent, layer.in_channels),
        layer.out_channels,
        (layer.kernel_h, layer.kernel_w),
        (layer.stride_h, layer.stride_w),
        ((layer.pad_h, layer.pad_h), (layer.pad_w, layer.pad_w)),
        bias=False,
    )


CONV_GPU_BENCHMARK_CASES = {case.name: case for case in map(_of_resnet50, RESNET50)}
