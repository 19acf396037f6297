"""Layers of networks whose kernels `ptx.model` models."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from ptx.definition import KernelDefinition, Sizes
from ptx.kernels.network_layer import NetworkLayer
from ptx.model import Image, Modelled, floor_us, model
from ptx.replay import Machine
from ptx.testing.call import numpy_dtype

__all__ = ["OFFSET_DEVIATION", "ConvLayerModel", "LayerModel", "Operands", "normal_values"]

# The standard deviation of offsets from their taps, and of points from their queries, in pixels.
OFFSET_DEVIATION = 2.0

Operands = dict[str, np.ndarray]  # by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerModel(abc.ABC):
    """A family of kernels, whose launches on a layer's input are modelled.

    Attributes:
      kernels: the kernels that are modelled, by what users call them; "forward" is one.
      layers: layers of networks.
    """

    kernels: Mapping[str, KernelDefinition]
    layers: Mapping[str, NetworkLayer]

    def kernels_of(self, layer: str) -> list[str]:
        """The kernels that run on a layer, by name."""
        return [name for name in self.kernels if name == "forward" or self.layers[layer].trains]

    @abc.abstractmethod
    def sizes(self, kernel: KernelDefinition, config: Any, extent: Any) -> Sizes:
        """The sizes of the dimensions that the configuration leaves open."""

    @abc.abstractmethod
    def operands(self, kernel: KernelDefinition, config: Any, extent: Any) -> Operands:
        """Random operands of a kernel, by name."""

    def products(self, config: Any, extent: Any) -> int:
        """Multiplications on tensor cores that the results are made of."""
        return 0

    def model(self, name: str, config: Any, extent: Any, machine: Machine) -> Modelled:
        """Models one launch.

        Args:
          name: the kernel.
          config: the layer's configuration; a convolution's padding is the same on all sides.
          extent: the input's extent: of a convolution the number of images, their height and
            width; of a weighted sum of samples the numbers of images and queries.
          machine: the GPU.

        Raises:
          ValueError: there is no such kernel.
        """
        if name not in self.kernels:
            raise ValueError(f"modelled are {', '.join(self.kernels)}, not {name}")
        kernel = self.kernels[name]
        shapes = self.shapes(kernel, config, extent)
        later_bytes = 0
        if name == "backward_weight":
            for result, parameter in kernel.results(config).items():
                later_bytes += math.prod(shapes[result]) * parameter.dtype_of(config).bytes
        operands = self.operands(kernel, config, extent)
        return model(kernel, config, operands, shapes, machine, later_bytes=later_bytes)

    def floor_us(self, config: Any, extent: Any, machine: Machine) -> float:
        """Microseconds that no kernel of a layer can beat: see `ptx.model.floor_us`.

        Backward, the same tensors are read and written, in other roles.
        """
        forward = self.kernels["forward"]
        moved = forward.moved_bytes(config, self.shapes(forward, config, extent))
        tflops = machine.sheet.peak(config.float_type).tflops
        return floor_us(self.products(config, extent), moved, tflops, machine)

    def shapes(self, kernel: KernelDefinition, config: Any, extent: Any) -> dict[str, tuple]:
        """The shapes of a kernel's arrays in memory, by name."""
        return kernel.shapes(config, self.sizes(kernel, config, extent))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvLayerModel(LayerModel):
    """A family of convolutions; the extent of an input is that of its images.

    Attributes:
      parts: (configuration, output pixels) -> the parts of the gradient to the weights.
    """

    parts: Callable[[Any, int], int]
    deviations: ClassVar[Mapping[str, float]] = {}  # of an operand's values, where it is not 1

    def sizes(self, kernel: KernelDefinition, config: Any, extent: Image) -> Sizes:
        n, h, w = extent
        p, q = config.output_size(h, w)
        return {"n": n, "h": h, "w": w, "p": p, "q": q, "s": self.parts(config, n * p * q)}

    def operands(self, kernel: KernelDefinition, config: Any, extent: Image) -> Operands:
        """Random operands of a kernel, by name. Integers are left out."""
        random, operands = np.random.default_rng(0), {}
        shapes = self.shapes(kernel, config, extent)
        for name, parameter in kernel.operands(config).items():
            dtype = parameter.dtype_of(config)
            if not dtype.is_integer:
                values = self.deviations.get(name, 1.0) * normal_values(random, shapes[name])
                operands[name] = np.resize(values.astype(numpy_dtype(dtype)), shapes[name])
        return operands

    def products(self, config: Any, extent: Image) -> int:
        pixels = extent[0] * math.prod(config.output_size(*extent[1:]))
        return pixels * config.taps * config.in_channels_per_group * config.out_channels


def normal_values(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The distinct values of an array, as float32: a large one repeats them."""
    return random.standard_normal(min(math.prod(shape), _DISTINCT), np.float32)


_DISTINCT = 1_000_003  # no multiple of the size of an image
