"""The layers whose kernels are modelled; see `ptx.model`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ptx.definition import KernelDefinition, Sizes
from ptx.isa.dtypes import f32
from ptx.kernels.layer_model import OFFSET_DEVIATION, LayerModel, Operands, normal_values
from ptx.kernels.sampling.backward_points import BACKWARD_POINTS
from ptx.kernels.sampling.backward_value import BACKWARD_VALUE
from ptx.kernels.sampling.catalog import NETWORKS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.forward import FORWARD
from ptx.kernels.sampling.geometry import Window
from ptx.testing.call import numpy_dtype

__all__ = ["MODEL", "centers"]


class _SamplingModel(LayerModel):
    """Weighted sums of samples; an extent is the numbers of images and queries."""

    def sizes(self, kernel: KernelDefinition, config: SamplingConfig, extent: tuple) -> Sizes:
        return dict(zip("nq", extent, strict=True))

    def operands(self, kernel: KernelDefinition, config: SamplingConfig, extent: tuple) -> Operands:
        """Locations near their queries, other operands random; large ones repeat themselves."""
        shapes, operands = self.shapes(kernel, config, extent), {}
        for name, parameter in kernel.operands(config).items():
            random = np.random.default_rng(0)
            values = np.resize(normal_values(random, shapes[name]), shapes[name])
            if name == "zeros":
                values = np.zeros_like(values)
            elif name == "locations":
                values = _locations(config, values, random)
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


MODEL = _SamplingModel(
    kernels={
        "forward": FORWARD,
        "backward_value": BACKWARD_VALUE,
        "backward_points": BACKWARD_POINTS,
    },
    layers={  # with locations and weights as layers make them, not in half precision
        name: dataclasses.replace(
            layer, config=dataclasses.replace(layer.config, location_type=f32, weight_type=f32)
        )
        for name, layer in NETWORKS.items()
    },
)
