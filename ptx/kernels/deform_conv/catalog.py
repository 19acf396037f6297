"""Named configurations: every path of the chooser in `plan.py`, and layers that people train.

`python -m oxijax check` assembles each for every target. A name is that of a layer, a slash, and
the type, for example "R50-c3/bf16".
"""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.network_layer import NetworkLayer, distinct_configs

__all__ = ["CONFIGS", "LAUNCH_SIZES", "NETWORKS"]

Layer = DeformConvConfig
_ALIGNMENT = Layer(128, 64, offset_groups=16, use_bias=True)

_R50 = ("ResNet-50 in a detector, on images of 800 x 1344", "Zhu et al., 2019: conv3 to conv5")
_BASICVSR = ("Chan et al., 2022; mmagic: basicvsr_plusplus_net.py",)
# In ResNet a normalization follows the convolution, which has no bias. BasicVSR++ aligns two frames
# at a time, 128 channels, to 64.
NETWORKS = {
    "R50-c3": NetworkLayer(Layer(128, 128), (8, 100, 168), *_R50),
    "R50-c4": NetworkLayer(Layer(256, 256), (8, 50, 84), *_R50),
    "R50-c5": NetworkLayer(Layer(512, 512), (8, 25, 42), *_R50),
    "BasicVSR++": NetworkLayer(
        _ALIGNMENT, (1, 180, 320), "BasicVSR++, a video of 180 x 320", *_BASICVSR, trains=False
    ),
    "BasicVSR++-train": NetworkLayer(
        _ALIGNMENT, (8, 64, 64), "BasicVSR++, 8 crops of 64 x 64", *_BASICVSR
    ),
}

# Channels that are a multiple of 64 bytes are streamed, of halves and of TF32.
_STREAMED = {
    "narrow-output": Layer(64, 32),  # tiles of 64 x 32
    "partial-tiles": Layer(96, 96, use_bias=True),
    "groups": Layer(128, 128, groups=4),
    "offset-groups": Layer(128, 64, offset_groups=2, use_bias=True),
    "segments": Layer(192, 128, groups=2, offset_groups=3),  # several in a group of either kind
    "lanes-of-16": Layer(64, 64, offset_groups=4),
    "lanes-of-8": Layer(64, 96, offset_groups=8),
    "lanes-of-4": Layer(128, 64, groups=2, offset_groups=32),
    "lanes-of-4-wide": Layer(64, 64, offset_groups=16, use_bias=True),
    "5x5": Layer(64, 64, 5, 5, pad_h=2, pad_w=2),  # more taps than a table holds
    "small-grid": Layer(256, 256),
    "small-grid-lanes": Layer(64, 96, offset_groups=16),
    "wide-v1": Layer(64, 64, use_modulation=False, use_bias=True),
}
_TILED = {
    "16-channels": Layer(16, 16),
    "large-tiles": Layer(144, 144, use_bias=True),  # no multiple of 64 bytes of halves
    "v1": Layer(24, 40, 2, 3, pad_h=0, use_modulation=False, use_bias=True),
    "strides": Layer(24, 24, 3, 2, stride_h=2, stride_w=3, dilation_h=2, offset_groups=3),
    "groups-and-offset-groups": Layer(48, 24, groups=2, offset_groups=3),
    "groups-of-4": Layer(32, 32, groups=8),
    "odd-channels": Layer(13, 7, use_bias=True),
}
# Tiny groups take no tiles.
_DIRECT = {
    "depthwise": Layer(32, 32, groups=32),
    "depthwise-lanes": Layer(1024, 1024, groups=1024, use_bias=True),  # more than a warp's threads
    "depthwise-multiplier": Layer(24, 96, groups=24, offset_groups=3, use_modulation=False),
    "depthwise-5x5": Layer(64, 256, 5, 5, pad_h=2, pad_w=2, groups=64),  # weights in several lots
    "groups-of-3": Layer(12, 8, groups=4, offset_groups=6, stride_w=2),  # across offset groups
    "groups-and-offset-groups-of-4": Layer(64, 64, groups=16, offset_groups=16),
    "offset-groups-of-1": Layer(8, 6, groups=2, offset_groups=8),
    "3-channels": Layer(3, 3, use_bias=True),
}
_MIXED = {
    "mixed-types": Layer(64, 64),
    "mixed-types-lanes": Layer(64, 64, offset_groups=16),
    "mixed-types-depthwise": Layer(8, 8, groups=8),
}
_OTHER_TYPE = {f16: f32, bf16: f32, f32: f64, f64: f32}  # of the offsets


def _of_types(layers: dict[str, Layer], *types: DType) -> dict[str, Layer]:
    return {
        f"{name}/{dtype}": dataclasses.replace(layer, float_type=dtype)
        for name, layer in layers.items()
        for dtype in types
    }


def _exact(layers: dict[str, Layer]) -> dict[str, Layer]:
    return {
        f"{name}/f32-exact": dataclasses.replace(layer, float_type=f32, exact=True)
        for name, layer in layers.items()
    }


def _mixed(layer: Layer) -> Layer:
    offset_type = _OTHER_TYPE[layer.float_type]
    return dataclasses.replace(layer, offset_type=offset_type, mask_type=f16)


CONFIGS: dict[str, Layer] = {
    **_of_types(distinct_configs(NETWORKS) | _STREAMED, bf16, f16, f32),
    **_of_types(_TILED | _DIRECT, bf16, f16, f32, f64),
    **_exact(_TILED),
    **{n: _mixed(layer) for n, layer in _of_types(_MIXED, bf16, f16, f32, f64).items()},
}
# Configurations that stand for launches of few output pixels, whose forward tiles are smaller.
LAUNCH_SIZES = {
    name: {"n": 1, "h": 16, "w": 16, "p": 16, "q": 16}
    for name in CONFIGS
    if name.startswith("small-grid")
}
