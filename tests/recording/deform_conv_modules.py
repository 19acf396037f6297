"""Modules with deformable convolutions, as PyTorch's libraries have them, by torchvision.

Their arguments, the names in their states and what they compute are those of the modules that they
are named for; `torchvision.ops.DeformConv2d` needs no twin. How they are initialised is not: states
are loaded.
"""

# pyright: reportMissingImports=false
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torchvision.ops import deform_conv2d

__all__ = [
    "ASPPDeformable",
    "DeformConv2dPack",
    "DeformableConv2d",
    "ModulatedDeformConv2dPack",
    "SecondOrderDeformableAlignment",
]


class _DeformConv(nn.Module):
    """Weights, and mmcv's way to name the geometry."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        deform_groups: int = 1,
        bias: bool = True,
    ):
        super().__init__()
        shape = out_channels, in_channels // groups, kernel_size, kernel_size
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.samples = deform_groups * kernel_size**2
        self.geometry = {"stride": stride, "padding": padding, "dilation": dilation}

    def convolve(self, x, offset, mask=None):
        return deform_conv2d(x, offset, self.weight, self.bias, mask=mask, **self.geometry)


class DeformConv2dPack(_DeformConv):
    """mmcv's deformable convolution v1, which predicts its offsets and has no bias."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, **options: Any):
        super().__init__(in_channels, out_channels, kernel_size, bias=False, **options)
        self.conv_offset = nn.Conv2d(in_channels, 2 * self.samples, kernel_size, **self.geometry)

    def forward(self, x):
        return self.convolve(x, self.conv_offset(x))


class ModulatedDeformConv2dPack(_DeformConv):
    """mmcv's deformable convolution v2, which predicts offsets and logits of its mask."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, bias: bool = True,
        **options: Any,
    ):  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, bias=bias, **options)
        self.conv_offset = nn.Conv2d(in_channels, 3 * self.samples, kernel_size, **self.geometry)

    def forward(self, x):
        first, second, logits = self.conv_offset(x).chunk(3, dim=1)
        return self.convolve(x, torch.cat([first, second], dim=1), logits.sigmoid())


class SecondOrderDeformableAlignment(_DeformConv):
    """The alignment of BasicVSR++: what is predicted is added to two optical flows.

    The first half of the offset groups reads features of the frame before, with the first flow, and
    the second half those of the frame before it, with the second.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *,
        max_residue_magnitude: float = 10, **options: Any,
    ):  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, **options)
        self.max_residue_magnitude = max_residue_magnitude
        convolutions = [nn.Conv2d(3 * out_channels + 4, out_channels, 3, padding=1)]
        convolutions += [nn.Conv2d(out_channels, out_channels, 3, padding=1) for _ in range(2)]
        parts = [part for conv in convolutions for part in (conv, nn.LeakyReLU(0.1))]
        self.conv_offset = nn.Sequential(
            *parts, nn.Conv2d(out_channels, 3 * self.samples, 3, padding=1)
        )

    def forward(self, x, extra_feat, flow_1, flow_2):
        features = self.conv_offset(torch.cat([extra_feat, flow_1, flow_2], dim=1))
        first, second, logits = features.chunk(3, dim=1)
        residue = self.max_residue_magnitude * torch.cat([first, second], dim=1).tanh()
        # Flows are (x, y) and offsets (y, x).
        flows = [flow.flip(1).repeat(1, self.samples // 2, 1, 1) for flow in (flow_1, flow_2)]
        return self.convolve(x, residue + torch.cat(flows, dim=1), logits.sigmoid())


class DeformableConv2d(nn.Module):
    """BiRefNet's: a convolution for the offsets, one for the mask, and one that has the weights."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1,
        padding: int = 1, bias: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.geometry = {"stride": stride, "padding": padding}
        sizes = {"offset_conv": 2 * kernel_size**2, "modulator_conv": kernel_size**2}
        for name, features in sizes.items():
            self.add_module(name, nn.Conv2d(in_channels, features, kernel_size, **self.geometry))
        self.regular_conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, bias=bias, **self.geometry
        )

    def forward(self, x):
        return deform_conv2d(
            x,
            self.offset_conv(x),
            self.regular_conv.weight,
            self.regular_conv.bias,
            mask=2 * self.modulator_conv(x).sigmoid(),
            **self.geometry,
        )


class _ASPPModuleDeformable(nn.Module):
    def __init__(self, in_channels: int, planes: int, kernel_size: int):
        super().__init__()
        self.atrous_conv = DeformableConv2d(
            in_channels, planes, kernel_size, padding=kernel_size // 2
        )
        self.bn = nn.BatchNorm2d(planes)

    def forward(self, x):
        return self.bn(self.atrous_conv(x)).relu()


class ASPPDeformable(nn.Module):
    """BiRefNet's pyramid pooling, whose branches differ in the size of their kernels.

    `planes`, the channels of a branch, is no argument there but 256.
    """

    def __init__(
        self, in_channels: int, out_channels: int, parallel_block_sizes: Sequence[int] = (1, 3, 7),
        planes: int = 256,
    ):  # fmt: skip
        super().__init__()
        self.aspp1 = _ASPPModuleDeformable(in_channels, planes, 1)
        self.aspp_deforms = nn.ModuleList(
            [_ASPPModuleDeformable(in_channels, planes, size) for size in parallel_block_sizes]
        )
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(in_channels, planes, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
        )
        branches = 2 + len(parallel_block_sizes)
        self.conv1 = nn.Conv2d(branches * planes, out_channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        branches = [branch(x) for branch in (self.aspp1, *self.aspp_deforms)]
        mean = self.global_avg_pool(x).expand(-1, -1, *x.shape[2:])
        return self.bn1(self.conv1(torch.cat([*branches, mean], dim=1))).relu()
