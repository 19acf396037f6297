"""Named convolutions: what is assembled for every target."""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.common import is_direct
from ptx.kernels.network_layer import NetworkLayer

__all__ = ["CONFIGS", "LAUNCH_SIZES", "RESNET50"]

Config = ConvConfig


def _one(channels: int, outputs: int, stride: int = 1) -> Config:
    return Config(channels, outputs, 1, 1, stride, stride, 0, 0)


def _three(channels: int, stride: int = 1) -> Config:
    return Config(channels, channels, stride_h=stride, stride_w=stride)


# The distinct layers of ResNet-50, with strides in the 3x3 layers: name -> (layer, height and width
# of its input).
_RESNET50 = {
    "conv1": (Config(3, 64, 7, 7, 2, 2, 3, 3), 224),
    "conv2-in": (_one(64, 64), 56),
    "conv2-3x3": (_three(64), 56),
    "conv2-out": (_one(64, 256), 56),
    "conv2-back": (_one(256, 64), 56),
    "conv3-in": (_one(256, 128), 56),
    "conv3-3x3-s2": (_three(128, 2), 56),
    "conv3-3x3": (_three(128), 28),
    "conv3-out": (_one(128, 512), 28),
    "conv3-back": (_one(512, 128), 28),
    "conv3-shortcut": (_one(256, 512, 2), 56),
    "conv4-in": (_one(512, 256), 28),
    "conv4-3x3-s2": (_three(256, 2), 28),
    "conv4-3x3": (_three(256), 14),
    "conv4-out": (_one(256, 1024), 14),
    "conv4-back": (_one(1024, 256), 14),
    "conv4-shortcut": (_one(512, 1024, 2), 28),
    "conv5-in": (_one(1024, 512), 14),
    "conv5-3x3-s2": (_three(512, 2), 14),
    "conv5-3x3": (_three(512), 7),
    "conv5-out": (_one(512, 2048), 7),
    "conv5-back": (_one(2048, 512), 7),
    "conv5-shortcut": (_one(1024, 2048, 2), 14),
}
RESNET50 = {
    name: NetworkLayer(
        config, (32, size, size), "ResNet-50, on 32 images of 224 x 224", "He et al., 2015"
    )
    for name, (config, size) in _RESNET50.items()
}

# Each path of the kernels has configurations with a bias, and others without.
_VARIANTS = {
    "odd": Config(5, 7),
    "three": Config(3, 64, 7, 7, 2, 2, 3, 3, use_bias=True),
    "groups": Config(24, 40, 2, 3, 1, 2, 0, 1, 2, 1, groups=2, use_bias=True),
    "depthwise": Config(32, 32, groups=32, use_bias=True),
    "depthwise-s2": Config(32, 32, stride_h=2, stride_w=2, groups=32),  # as in MobileNet
    "depthwise-7x7": Config(96, 96, 7, 7, pad_h=3, pad_w=3, groups=96, use_bias=True),  # ConvNeXt
    "depthwise-multiplier": Config(21, 42, 5, 5, 2, 3, 1, 2, 1, 2, groups=21, use_bias=True),
    "depthwise-1d": Config(16, 16, 1, 40, 1, 1, 0, 39, 1, 2, groups=16),
    "groups-of-3": Config(9, 6, groups=3),
    "groups-of-4": Config(16, 16, groups=4, use_bias=True),
    "wide": Config(128, 128, use_bias=True),
    "thin": Config(32, 32, stride_h=2, stride_w=2),
    "1d": Config(64, 64, 1, 40, pad_h=0, pad_w=20, use_bias=True),
}


def _all() -> dict[str, Config]:
    configs = {
        f"{name}/{dtype}": dataclasses.replace(config, float_type=dtype)
        for name, config in _VARIANTS.items()
        for dtype in (bf16, f16, f32, f64)
    }
    for name, config in _VARIANTS.items():
        if not is_direct(config):  # those multiply f32 as f32 in any case
            configs[f"{name}/f32-exact"] = dataclasses.replace(config, exact=True)
    for dtype in (bf16, f16, f32):  # others have the same tiles for all sizes
        configs[f"small-grid/{dtype}"] = Config(128, 128, float_type=dtype)
    for name, (config, _) in _RESNET50.items():
        configs[f"ResNet50-{name}/bf16"] = dataclasses.replace(config, float_type=bf16)
    return configs


CONFIGS = _all()
# What stands for launches of few pixels.
LAUNCH_SIZES = {
    name: {"n": 1, "h": 8, "w": 8, "p": 8, "q": 8}
    for name in CONFIGS
    if name.startswith("small-grid/")
}
