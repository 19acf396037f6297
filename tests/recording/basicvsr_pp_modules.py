"""BasicVSR++ in PyTorch, with the names and the arithmetic of MMEditing's `BasicVSRPlusPlus`.

Sizes that are constants there are arguments: `outer_blocks`, `high_channels`, `deform_groups` and
`flow_widths`. What is left out changes no result: features kept in the memory of the CPU, and flows
that are reused where a video is followed by its mirror image.
"""

# pyright: reportMissingImports=false
import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from recording.deform_conv_modules import SecondOrderDeformableAlignment

__all__ = ["CONSTANTS", "BasicVSRPlusPlus"]

# Of ImageNet's images, which SPyNet has in its state.
CONSTANTS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def warp(x, flow, padding_mode: str = "zeros"):
    """Images [N, C, H, W], read where a flow [N, 2, H, W] says."""
    height, width = x.shape[2:]
    ys, xs = torch.meshgrid(
        torch.arange(height, dtype=x.dtype), torch.arange(width, dtype=x.dtype), indexing="ij"
    )
    grid_x = 2 * (xs + flow[:, 0]) / max(width - 1, 1) - 1
    grid_y = 2 * (ys + flow[:, 1]) / max(height - 1, 1) - 1
    grid = torch.stack([grid_x, grid_y], dim=-1)
    return functional.grid_sample(x, grid, padding_mode=padding_mode, align_corners=True)


def resize(x, size, align_corners: bool = False):
    return functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=align_corners)


class _ConvModule(nn.Module):
    def __init__(self, inputs: int, outputs: int, activated: bool):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 7, padding=3)
        self.activated = activated

    def forward(self, x):
        return self.conv(x).relu() if self.activated else self.conv(x)


class _BasicModule(nn.Module):
    def __init__(self, widths: Sequence[int]):
        super().__init__()
        convolutions = [_ConvModule(i, o, True) for i, o in itertools.pairwise((8, *widths))]
        self.basic_module = nn.Sequential(*convolutions, _ConvModule(widths[-1], 2, False))

    def forward(self, x):
        return self.basic_module(x)


class SPyNet(nn.Module):
    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.basic_module = nn.ModuleList([_BasicModule(widths) for _ in range(6)])
        for name, values in CONSTANTS.items():
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1))

    def forward(self, images, others):
        height, width = images.shape[2:]
        size = [(n + 31) // 32 * 32 for n in (height, width)]
        flow = resize(self.pyramid(resize(images, size), resize(others, size)), (height, width))
        return flow * flow.new_tensor([width / size[1], height / size[0]]).view(1, 2, 1, 1)

    def pyramid(self, images, others):
        levels = [((images - self.mean) / self.std, (others - self.mean) / self.std)]
        for _ in range(5):
            levels.append(tuple(functional.avg_pool2d(x, 2) for x in levels[-1]))
        n, _, height, width = levels[-1][0].shape
        flow = images.new_zeros(n, 2, height, width)
        for number, (module, (x, other)) in enumerate(
            zip(self.basic_module, reversed(levels), strict=True)
        ):
            if number > 0:
                flow = 2 * resize(flow, x.shape[2:], align_corners=True)
            moved = warp(other, flow, "border")
            flow = flow + module(torch.cat([x, moved, flow], dim=1))
        return flow


class _ResidualBlock(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(self.conv1(x).relu())


class _ResidualBlocks(nn.Module):
    def __init__(self, inputs: int, features: int, blocks: int):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, features, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Sequential(*(_ResidualBlock(features) for _ in range(blocks))),
        )

    def forward(self, x):
        return self.main(x)


class _PixelShuffle(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.upsample_conv = nn.Conv2d(inputs, 4 * outputs, 3, padding=1)

    def forward(self, x):
        return functional.pixel_shuffle(self.upsample_conv(x), 2)


class BasicVSRPlusPlus(nn.Module):
    """Videos [N, T, 3, H, W] to videos [N, T, 3, 4 H, 4 W]."""

    def __init__(
        self,
        mid_channels: int = 64,
        num_blocks: int = 7,
        max_residue_magnitude: float = 10,
        outer_blocks: int = 5,
        high_channels: int = 64,
        deform_groups: int = 16,
        flow_widths: Sequence[int] = (32, 64, 32, 16),
    ):
        super().__init__()
        features = mid_channels
        self.spynet = SPyNet(flow_widths)
        self.feat_extract = _ResidualBlocks(3, features, outer_blocks)
        self.deform_align, self.backbone = nn.ModuleDict(), nn.ModuleDict()
        for i, name in enumerate(("backward_1", "forward_1", "backward_2", "forward_2")):
            self.deform_align[name] = SecondOrderDeformableAlignment(
                *(2 * features, features, 3),
                max_residue_magnitude=max_residue_magnitude,
                padding=1,
                deform_groups=deform_groups,
            )
            self.backbone[name] = _ResidualBlocks((2 + i) * features, features, num_blocks)
        self.reconstruction = _ResidualBlocks(5 * features, features, outer_blocks)
        self.upsample1 = _PixelShuffle(features, features)
        self.upsample2 = _PixelShuffle(features, high_channels)
        self.conv_hr = nn.Conv2d(high_channels, high_channels, 3, padding=1)
        self.conv_last = nn.Conv2d(high_channels, 3, 3, padding=1)

    def forward(self, lqs):
        t = lqs.shape[1]
        frames = lqs.unbind(1)
        features = {"spatial": [self.feat_extract(frame) for frame in frames]}
        for name in self.backbone:
            # The frames' numbers, as they come; each but the first has one before it.
            order = list(range(t)) if name.startswith("forward") else list(reversed(range(t)))
            flows = [
                self.spynet(frames[now], frames[before])
                for before, now in itertools.pairwise(order)
            ]
            features[name] = self.propagate(name, features, order, flows)
        y = [
            self.upsample(torch.cat([each[i] for each in features.values()], dim=1))
            + resize(frame, [4 * n for n in frame.shape[2:]])
            for i, frame in enumerate(frames)
        ]
        return torch.stack(y, dim=1)

    def propagate(self, name, features, order, flows):
        """The features of a branch, by frames."""
        found = []
        for i, number in enumerate(order):
            current = features["spatial"][number]
            aligned = torch.zeros_like(current)
            if i > 0:
                aligned = self.align(name, current, found, flows[:i])
            known = [each[number] for each in features.values()]
            found.append(aligned + self.backbone[name](torch.cat([*known, aligned], dim=1)))
        return [found[order.index(number)] for number in range(len(order))]

    def align(self, name, current, found, flows):
        """What was found for the last two frames, where the present one needs it."""
        before, flow_1 = found[-1], flows[-1]
        before_last, flow_2 = torch.zeros_like(before), torch.zeros_like(flow_1)
        if len(found) > 1:
            before_last = found[-2]
            flow_2 = flow_1 + warp(flows[-2], flow_1)
        seen = [warp(before, flow_1), current, warp(before_last, flow_2)]
        return self.deform_align[name](
            torch.cat([before, before_last], dim=1), torch.cat(seen, dim=1), flow_1, flow_2
        )

    def upsample(self, x):
        x = self.reconstruction(x)
        x = functional.leaky_relu(self.upsample1(x), 0.1)
        x = functional.leaky_relu(self.upsample2(x), 0.1)
        return self.conv_last(functional.leaky_relu(self.conv_hr(x), 0.1))
