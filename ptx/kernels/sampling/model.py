"""Layers whose kernels are modelled; see `ptx.model`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ptx.definition import KernelDefinition
from ptx.isa.dtypes import f32
from ptx.kernels.sampling.backward_points import BACKWARD_POINTS
from ptx.kernels.sampling.backward_value import BACKWARD_VALUE
from ptx.kernels.sampling.catalog import TIMED
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.forward import FORWARD
from ptx.kernels.sampling.geometry import HEIGHT, WIDTH, Window
from ptx.model import Modelled, floor_us, model
from ptx.replay import Machine
from ptx.testing.call import numpy_dtype

__all__ = ["MODEL", "SamplingModel", "centers"]

_SPREAD = 2.0  # standard deviation of points around their query, in pixels
_OFFSETS = 0.5  # of offsets in a window


@dataclasses.dataclass(frozen=True)
class SamplingModel:
    """The kernels of the family, whose launches are modelled. Locations are in float32.

    Attributes:
      kernels: those that are modelled, by what users call them; "forward" is one.
      layers: of networks: the configuration, but for the dtype, and numbers of images and queries.
    """

    kernels: Mapping[str, KernelDefinition[SamplingConfig]]
    layers: Mapping[str, tuple[SamplingConfig, tuple[int, int]]]

    def model(
        self, name: str, config: SamplingConfig, batch: tuple[int, int], machine: Machine
    ) -> Modelled:
        """Models one launch.

        Args:
          name: of the kernel.
          config: the sum.
          batch: numbers of images and queries.
          machine: the GPU.
        """
        config, kernel = _mixed(config), self.kernels[name]
        shapes = self.shapes(kernel, config, batch)
        operands = {
            operand: _values(operand, config, shapes[operand]).astype(
                numpy_dtype(parameter.dtype_of(config))
            )
            for operand, parameter in kernel.operands(config).items()
        }
        return model(kernel, config, operands, shapes, machine)

    def floor_us(self, config: SamplingConfig, batch: tuple[int, int], machine: Machine) -> float:
        """Microseconds that no kernel can beat: forward's operands and result through memory once.

        Backward, the same tensors are read and written, in other roles.
        """
        forward, config = self.kernels["forward"], _mixed(config)
        moved = forward.moved_bytes(config, self.shapes(forward, config, batch))
        return floor_us(0, moved, machine.sheet.peak(config.float_type).tflops, machine)

    def shapes(
        self,
        kernel: KernelDefinition[SamplingConfig],
        config: SamplingConfig,
        batch: tuple[int, int],
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of a kernel's arrays in memory, by name."""
        n, q = batch
        return kernel.shapes(config, {"n": n, "q": q})


def centers(levels: Sequence[tuple[int, int]]) -> np.ndarray:
    """The centres of the pixels of all levels in order, as (x, y) from 0 to 1."""
    places = [
        (np.indices(size)[::-1].reshape(2, -1).T + 0.5) / (size[WIDTH], size[HEIGHT])
        for size in levels
    ]
    return np.concatenate(places).astype(np.float32)


def _mixed(config: SamplingConfig) -> SamplingConfig:
    """The configuration with locations as layers make them, not in half precision."""
    return dataclasses.replace(config, location_type=f32)


def _values(name: str, config: SamplingConfig, shape: tuple[int, ...]) -> np.ndarray:
    """An operand: locations near their queries, others random; large ones repeat themselves."""
    random = np.random.default_rng(0)
    drawn = random.standard_normal(min(math.prod(shape), _DISTINCT), np.float32)
    values = np.resize(drawn, shape)
    if name == "zeros":
        return np.zeros(shape, np.float32)
    if name != "locations":
        return values
    if isinstance(config.geometry, Window):
        return _OFFSETS * values
    size = np.repeat([(s[WIDTH], s[HEIGHT]) for s in config.levels], config.points, axis=0)
    queries = shape[1]
    places = random.random((queries, 2), np.float32)
    if queries == config.pixels:
        places = centers(config.levels)
    return places[:, None, None] + _SPREAD / size.astype(np.float32) * values


_DISTINCT = 1_000_003  # no multiple of the size of an image

MODEL = SamplingModel(
    kernels={
        "forward": FORWARD,
        "backward_value": BACKWARD_VALUE,
        "backward_points": BACKWARD_POINTS,
    },
    layers=TIMED,
)
