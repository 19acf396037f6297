"""The layers whose kernels are modelled; see `ptx.model`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptx.definition import KernelDefinition, Sizes
from ptx.isa.dtypes import f32
from ptx.kernels.layer_model import OFFSET_DEVIATION, LayerModel, Operands, normal_values
from ptx.kernels.network_layer import NetworkLayer
from ptx.kernels.sampling.backward_points import BACKWARD_POINTS
from ptx.kernels.sampling.backward_value import BACKWARD_VALUE
from ptx.kernels.sampling.catalog import NETWORKS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.forward import FORWARD
from ptx.kernels.sampling.geometry import Grid, Window
from ptx.kernels.sampling.windows import WINDOWS_BACKWARD_VALUE, WINDOWS_FORWARD, WindowsConfig
from ptx.model import floor_us
from ptx.replay import Machine
from ptx.testing.call import numpy_dtype

__all__ = ["MODEL", "VOLUMES", "WINDOWS", "centers"]


class _SamplingModel(LayerModel):
    """Weighted sums of samples; an extent is the numbers of images and queries."""

    def sizes(self, kernel: KernelDefinition, config: Any, extent: tuple) -> Sizes:
        return dict(zip("nq", extent, strict=True))

    def operands(self, kernel: KernelDefinition, config: Any, extent: tuple) -> Operands:
        """Places that the layer reads, other operands random; large ones repeat themselves."""
        shapes, operands = self.shapes(kernel, config, extent), {}
        for name, parameter in kernel.operands(config).items():
            random = np.random.default_rng(0)
            values = np.resize(normal_values(random, shapes[name]), shapes[name])
            if name == "zeros":
                values = np.zeros_like(values)
            elif name == "locations":
                values = _locations(config, values, random)
            elif name == "centers":  # anywhere in the image
                values = random.random(shapes[name]) * (np.array(config.size[::-1]) - 1)
            operands[name] = values.astype(numpy_dtype(parameter.dtype_of(config)))
        return operands


def _locations(
    config: SamplingConfig, values: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Locations that deviate from their queries by random values."""
    if isinstance(config.geometry, Window):
        return OFFSET_DEVIATION * values
    sizes = [size[::-1] for size in config.levels]
    queries = values.shape[1]
    points = random.random((queries, config.dims), np.float32)
    if queries == config.pixels:
        points = centers(config.levels)
    pixel = np.repeat(sizes, config.points, axis=0).astype(np.float32)
    return points[:, None, None] + OFFSET_DEVIATION / pixel * values


def centers(levels: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The centres of the pixels of all levels in order, as (x, y), say, from 0 to 1."""
    points = [
        (np.indices(size)[::-1].reshape(len(size), -1).T + 0.5) / size[::-1] for size in levels
    ]
    return np.concatenate(points).astype(np.float32)


_KERNELS = {
    "forward": FORWARD,
    "backward_value": BACKWARD_VALUE,
    "backward_points": BACKWARD_POINTS,
}
MODEL = _SamplingModel(
    kernels=_KERNELS,
    layers={  # with locations and weights as layers make them, not in half precision
        name: dataclasses.replace(
            layer, config=dataclasses.replace(layer.config, location_type=f32, weight_type=f32)
        )
        for name, layer in NETWORKS.items()
    },
)


def _warp(side: int, channels: int) -> NetworkLayer:
    """A field of features that a flow warps."""
    grid = Grid(coordinates="unit")
    config = SamplingConfig(
        1, channels, ((side,) * 3,), (1,), grid, location_type=f32, use_weights=False
    )
    return NetworkLayer(config, (1, side**3), f"a volume of {side}", "grid_sample at its pixels")


VOLUMES = _SamplingModel(
    kernels=_KERNELS,
    layers={f"volume-{side}x{n}": _warp(side, n) for side, n in ((64, 1), (64, 8), (128, 8))},
)


class _WindowsModel(_SamplingModel):
    """Windows of images of one channel; an extent is the numbers of images and windows of each."""

    def floor_us(self, config: WindowsConfig, extent: tuple, machine: Machine) -> float:
        """Microseconds in which memory has the pixels of all windows, not of the images."""
        elements = math.prod(size + 1 for size in config.window) + math.prod(config.window)
        center = config.dims * (config.location_type or config.float_type).bytes
        moved = math.prod(extent) * (elements * config.float_type.bytes + center)
        return floor_us(0, moved, machine.sheet.peak(config.float_type).tflops, machine)


WINDOWS = _WindowsModel(
    kernels={"forward": WINDOWS_FORWARD, "backward_value": WINDOWS_BACKWARD_VALUE},
    layers={
        "RAFT": NetworkLayer(
            WindowsConfig(1, (46, 62), (4, 4), location_type=f32), (8 * 46 * 62, 1),
            "RAFT, 8 pairs of images of 368 x 496", "Teed and Deng, 2020: section 3.2",
        )
    },
)  # fmt: skip
