"""Named layers of deformable convolution."""

import dataclasses
import zlib
from typing import Any

import numpy as np

from oxijax._convolution import PaddingLike, output_size, parse_padding
from ptx.kernels.deform_conv.catalog import NETWORKS

__all__ = ["BENCHMARK_CASES", "CASES", "GPU_BENCHMARK_CASES", "IMAGE_SIZE_CASES", "DeformConvCase"]


@dataclasses.dataclass(frozen=True)
class DeformConvCase:
    """A layer, NHWC; pairs are (height, width).

    Attributes:
      name: what the layer is known by in test names and tables.
      x: shape of the images, [N, H, W, C].
      out_channels: Co.
    """

    name: str
    x: tuple[int, int, int, int]
    out_channels: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: PaddingLike = "SAME"
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    offset_groups: int = 1
    mask: bool = True
    bias: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `oxijax.deform_conv` for this layer."""
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        image = self.x[1], self.x[2]
        window = self.kernel_size, self.strides
        pads = parse_padding(self.padding, image, *window, self.dilation)
        return output_size(image, *window, pads, self.dilation)

    @property
    def y(self) -> tuple[int, int, int, int]:
        """Shape of the output, [N, Ho, Wo, Co]."""
        return self.x[0], *self.out_size, self.out_channels

    def operands(self) -> tuple[Any, ...]:
        """X, offset, weight, mask and bias in float32, or None: the same at every call.

        Offsets are of the order of two pixels, so that some samples fall outside, and keep
        a distance from integers, where the function has kinks.
        """
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        samples = self.offset_groups * self.kernel_size[0] * self.kernel_size[1]
        pixels = (self.x[0], *self.out_size)
        in_group = self.x[3] // self.groups
        fan_in = in_group * self.kernel_size[0] * self.kernel_size[1]

        x = rng.standard_normal(self.x)
        floor = np.floor(2 * rng.standard_normal((*pixels, samples * 2)))
        offset = floor + rng.uniform(0.1, 0.9, floor.shape)
        weight = rng.standard_normal((*self.kernel_size, in_group, self.out_channels))
        mask = rng.uniform(0, 2, (*pixels, samples)) if self.mask else None
        bias = rng.standard_normal(self.out_channels) if self.bias else None
        arrays = (x, offset, weight / np.sqrt(fan_in), mask, bias)
        return tuple(None if a is None else a.astype(np.float32) for a in arrays)

    def grad_y(self) -> np.ndarray:
        """A gradient with respect to the output, in float32."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()) + 1)
        return rng.standard_normal(self.y, dtype=np.float32)


def _of_network(name: str, images: int | None = None) -> DeformConvCase:
    """A layer of `NETWORKS`, with its own number of images or another."""
    layer, (batch, height, width) = NETWORKS[name].config, NETWORKS[name].extent
    x = batch if images is None else images, height, width, layer.in_channels
    return DeformConvCase(
        name, x, layer.out_channels, offset_groups=layer.offset_groups, bias=layer.use_bias
    )


def _by_name(*cases: DeformConvCase) -> dict[str, DeformConvCase]:
    return {case.name: case for case in cases}


CASES = _by_name(
    DeformConvCase("v2", (2, 7, 6, 4), 5),
    DeformConvCase("v1", (2, 7, 6, 4), 5, mask=False),
    DeformConvCase("no-bias", (2, 7, 6, 4), 5, bias=False),
    DeformConvCase("groups", (2, 6, 5, 6), 4, groups=2),
    DeformConvCase("offset-groups", (2, 6, 5, 6), 5, offset_groups=3),
    DeformConvCase("groups-and-offset-groups", (2, 6, 5, 12), 8, groups=4, offset_groups=6),
    DeformConvCase("depthwise", (2, 6, 5, 6), 6, groups=6),
    DeformConvCase("offset-group-a-channel", (1, 6, 5, 5), 3, offset_groups=5),
    DeformConvCase("strided", (2, 9, 8, 4), 5, strides=(2, 3)),
    DeformConvCase("dilated", (2, 9, 8, 4), 5, dilation=(2, 3), padding=3),
    DeformConvCase("valid", (2, 7, 6, 4), 3, padding="VALID"),
    DeformConvCase("uneven-padding", (1, 6, 7, 4), 5, padding=((0, 2), (3, 1))),
    DeformConvCase("even-kernel", (2, 6, 5, 4), 5, kernel_size=(2, 4)),
    DeformConvCase("kernel-1x1", (2, 6, 5, 4), 3, kernel_size=(1, 1)),
    DeformConvCase("kernel-5x1", (2, 6, 5, 4), 3, kernel_size=(5, 1)),
    DeformConvCase("one-row", (2, 3, 9, 4), 3, padding=((0, 0), (1, 1))),
    DeformConvCase("one-column", (2, 9, 3, 4), 3, padding=((1, 1), (0, 0))),
    DeformConvCase("one-pixel", (2, 1, 1, 4), 3),
    DeformConvCase("one-channel", (2, 6, 5, 1), 1),
    DeformConvCase("batch-33", (33, 4, 3, 2), 5),
    DeformConvCase("batch-37", (37, 3, 4, 2), 3, mask=False),
    DeformConvCase("wide", (1, 5, 19, 64), 72),
    DeformConvCase("wide-groups", (2, 4, 5, 64), 64, groups=2, offset_groups=2),
    DeformConvCase("wide-in", (1, 4, 7, 72), 64, strides=(1, 2)),
    DeformConvCase("wide-narrow-offset-groups", (1, 5, 6, 32), 96, offset_groups=8),
    DeformConvCase("wide-160", (1, 5, 9, 160), 160, kernel_size=(3, 1), padding=((1, 1), (0, 0))),
    DeformConvCase("wide-5x5", (1, 4, 5, 32), 32, kernel_size=(5, 5), mask=False),
    DeformConvCase("depthwise-3-offset-groups", (1, 4, 5, 24), 24, groups=24, offset_groups=3),
    DeformConvCase("depthwise-multiplier-2", (2, 4, 5, 24), 48, groups=24, offset_groups=3),
    DeformConvCase(
        "depthwise-multiplier-4", (1, 3, 4, 64), 256, kernel_size=(5, 5), groups=64, mask=False
    ),
    DeformConvCase("depthwise-264", (1, 2, 3, 264), 264, kernel_size=(3, 1), groups=264),
    DeformConvCase(
        "depthwise-strided",
        (2, 9, 8, 6),
        6,
        strides=(2, 3),
        padding=((0, 2), (3, 1)),
        dilation=(2, 1),
        groups=6,
        offset_groups=2,
        mask=False,
        bias=False,
    ),
    DeformConvCase("depthwise-600-pixels", (3, 20, 10, 4), 4, kernel_size=(1, 1), groups=4),
    DeformConvCase("groups-of-2", (1, 4, 5, 32), 32, groups=16, offset_groups=4),
    DeformConvCase("groups-of-4-offset-groups-of-1", (1, 5, 4, 8), 6, groups=2, offset_groups=8),
    DeformConvCase("groups-of-4", (1, 4, 5, 16), 16, groups=4),
    DeformConvCase("groups-of-12", (1, 5, 6, 24), 16, groups=2, offset_groups=3),
)

BENCHMARK_CASES = _by_name(
    DeformConvCase("56x56x64", (2, 56, 56, 64), 64),
    DeformConvCase("28x28x256", (2, 28, 28, 256), 256),
    DeformConvCase("64x64x64-og8", (1, 64, 64, 64), 64, offset_groups=8),
    *(_of_network(name, images=1) for name in NETWORKS),
)

# The same layer for larger and larger images.
IMAGE_SIZE_CASES = _by_name(
    DeformConvCase("56x56", (1, 56, 56, 64), 64),
    DeformConvCase("112x112", (1, 112, 112, 64), 64),
    DeformConvCase("224x224", (1, 224, 224, 64), 64),
)

GPU_BENCHMARK_CASES = _by_name(*(_of_network(name) for name in NETWORKS))
