"""Named configurations: every path of the kernels, and layers that people train.

A name is that of a layer, a slash, and the type, for example "DDETR-encoder/bf16".
"""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.kernels.network_layer import NetworkLayer, distinct_configs
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import Across, Grid, Window

__all__ = ["CONFIGS", "NETWORKS"]

Layer = SamplingConfig


def _window(heads: int, channels: int, size: int, window: Window | None = None, **fields):
    window = window or Window((size, size))
    return Layer(heads, channels, ((size, size),), (len(window.taps),), window, **fields)


def _grid(channels: int, grid: Grid, *sizes: int) -> Layer:
    return Layer(1, channels, (sizes or (5, 6),), (1,), grid, use_weights=False)


_DDETR = Layer(8, 32, ((100, 167), (50, 84), (25, 42), (13, 21)), (4, 4, 4, 4), normalize=True)
_DDETR_SOURCE = ("Deformable DETR, an image of 800 x 1333", "Zhu et al., 2021: section 5")
_INTERNIMAGE = ("InternImage-T, 8 images of 224 x 224", "Wang et al., 2023: table 1")
# In encoders a query is a pixel, in decoders an object. All of them take a softmax of the weights.
NETWORKS = {
    "DDETR-encoder": NetworkLayer(_DDETR, (1, _DDETR.pixels), *_DDETR_SOURCE),
    "DDETR-decoder": NetworkLayer(_DDETR, (1, 300), *_DDETR_SOURCE),
    "RT-DETR-decoder": NetworkLayer(
        Layer(8, 32, ((80, 80), (40, 40), (20, 20)), (4, 4, 4), normalize=True), (1, 300),
        "RT-DETR, an image of 640 x 640", "Zhao et al., 2024: section 5", trains=False,
    ),
    "InternImage-T-1": NetworkLayer(
        _window(4, 16, 56, normalize=True), (8, 56 * 56), *_INTERNIMAGE
    ),
    "InternImage-T-3": NetworkLayer(
        _window(16, 16, 14, normalize=True), (8, 14 * 14), *_INTERNIMAGE
    ),
}  # fmt: skip

_NO_CENTER = Window((7, 7), (5, 3), padding=(2, 1), offset_scale=1.5, remove_center=True)
_LAYERS = {
    "attention": Layer(2, 32, ((5, 7), (3, 4)), (4, 4)),
    "window": _window(4, 16, 7),
    "softmax": Layer(2, 64, ((5, 7), (3, 4), (1, 1)), (9, 1, 3), normalize=True),
    "softmax-many-points": Layer(1, 1, ((6, 6),), (200,), normalize=True),
    "nearest": Layer(3, 24, ((6, 5), (2, 2)), (3, 4), Across(nearest=True)),
    "no-center": _window(2, 8, 7, dataclasses.replace(_NO_CENTER, dilation=(2, 1))),
    "v4": _window(4, 16, 7, Window((7, 7), strides=(2, 1)), normalize=True),
    "packed": _window(3, 16, 7, normalize=True, packed=True, use_weights=False),
    "packed-pairs": _window(2, 8, 7, _NO_CENTER, packed=True, use_weights=False),
    "grid": _grid(3, Grid()),
    "grid-corners": _grid(40, Grid(align_corners=True, padding_mode="border")),
    "grid-reflection": _grid(4, Grid(padding_mode="reflection")),
    "grid-reflection-corners": _grid(4, Grid(align_corners=True, padding_mode="reflection")),
    "grid-nearest": _grid(16, Grid(nearest=True, padding_mode="border")),
    "line": _grid(4, Grid(coordinates="pixel", padding_mode="border"), 9),
    "volume": _grid(8, Grid(coordinates="unit"), 4, 5, 6),
    "volumes": Layer(2, 16, ((4, 5, 6), (2, 3, 3)), (4, 2), normalize=True),
    "volume-nearest": _grid(
        1,
        Grid(coordinates="pixel", align_corners=True, padding_mode="reflection", nearest=True),
        3,
        4,
        5,
    ),
    "30-channels": Layer(2, 30, ((4, 4),), (3,)),
    "71-channels": Layer(2, 71, ((4, 4), (2, 3)), (2, 9)),
    "1025-channels": Layer(1, 1025, ((3, 3),), (4,)),
}
_MIXED = {"mixed-types": _LAYERS["softmax"], "mixed-types-grid": _LAYERS["grid-corners"]}
_OTHER_TYPE = {f16: f32, bf16: f32, f32: f64, f64: f32}  # of the locations


def _of_types(layers: dict[str, Layer], *types: DType) -> dict[str, Layer]:
    return {
        f"{name}/{dtype}": dataclasses.replace(layer, float_type=dtype)
        for name, layer in layers.items()
        for dtype in types
    }


def _mixed(layer: Layer) -> Layer:
    return dataclasses.replace(layer, location_type=_OTHER_TYPE[layer.float_type], weight_type=f16)


CONFIGS: dict[str, Layer] = {
    **_of_types(distinct_configs(NETWORKS) | _LAYERS, bf16, f16, f32, f64),
    **{name: _mixed(layer) for name, layer in _of_types(_MIXED, bf16, f16, f32, f64).items()},
}
