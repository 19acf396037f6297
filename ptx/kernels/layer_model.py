"""Layers of networks whose kernels `ptx.model` models: what the families of convolutions share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ptx.definition import KernelDefinition, Sizes
from ptx.model import Image, Modelled, floor_us, model
from ptx.replay import Machine
from ptx.testing.call import numpy_dtype

__all__ = ["Given", "LayerModel"]


@dataclasses.dataclass(frozen=True)
class Given:
    """Operands of a kernel that are no random numbers, and whose sizes no image has.

    Attributes:
      sizes: (sizes that are known) -> those of the other dimensions.
      operands: (configuration, images) -> the operands, by name.
    """

    sizes: Callable[[Sizes], Sizes]
    operands: Callable[[Any, Image], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerModel:
    """A family of kernels, whose launches on a layer's images are modelled.

    Attributes:
      kernels: those that are modelled, by what users call them; "forward" is one.
      layers: of networks: the configuration, but for the dtype, and the images.
      parts: (configuration, output pixels) -> the parts of the gradient to the weights.
      spread: the standard deviation of an operand's normal values, by name; 1 of others.
      given: the operands that are not random, by the kernel's own name.
    """

    kernels: Mapping[str, KernelDefinition[Any]]
    layers: Mapping[str, tuple[Any, Image]]
    parts: Callable[[Any, int], int]
    spread: Mapping[str, float] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Given] = dataclasses.field(default_factory=dict)

    def model(self, name: str, config: Any, images: Image, machine: Machine) -> Modelled:
        """Models one launch.

        Args:
          name: of the kernel.
          config: with the same padding on all sides.
          images: number, height and width of the input.
          machine: the GPU.

        Raises:
          ValueError: there is no such kernel.
        """
        if name not in self.kernels:
            raise ValueError(f"modelled are {', '.join(self.kernels)}, not {name}")
        kernel = self.kernels[name]
        shapes = self.shapes(kernel, config, images)
        later_bytes = 0
        if name == "backward_weight":
            for parts, result in kernel.results(config).items():
                later_bytes += math.prod(shapes[parts]) * result.dtype_of(config).bytes
        operands = self.operands(kernel, config, shapes)
        if kernel.name in self.given:
            operands |= self.given[kernel.name].operands(config, images)
        return model(kernel, config, operands, shapes, machine, later_bytes=later_bytes)

    def floor_us(self, config: Any, images: Image, machine: Machine) -> float:
        """Microseconds that no kernel of a layer can beat: see `ptx.model.floor_us`.

        Backward, the same tensors are read and written, in other roles.
        """
        forward = self.kernels["forward"]
        pixels = images[0] * math.prod(config.output_size(*images[1:]))
        products = pixels * config.taps * config.in_channels_per_group * config.out_channels
        moved = forward.moved_bytes(config, self.shapes(forward, config, images))
        return floor_us(products, moved, machine.sheet.peak(config.float_type).tflops, machine)

    def shapes(
        self, kernel: KernelDefinition[Any], config: Any, images: Image
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of a kernel's arrays in memory, by name."""
        n, h, w = images
        p, q = config.output_size(h, w)
        parts = self.parts(config, n * p * q)
        sizes = {"n": n, "h": h, "w": w, "p": p, "q": q, "s": parts}
        if kernel.name in self.given:
            sizes |= self.given[kernel.name].sizes(sizes)
        return kernel.shapes(config, sizes)

    def operands(
        self, kernel: KernelDefinition[Any], config: Any, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        """Random operands of a kernel; large ones repeat themselves. Integers are left out."""
        random, operands = np.random.default_rng(0), {}
        for name, parameter in kernel.operands(config).items():
            if parameter.dtype_of(config).is_integer:
                continue
            size = min(math.prod(shapes[name]), _DISTINCT)
            values = self.spread.get(name, 1.0) * random.standard_normal(size, np.float32)
            dtype = numpy_dtype(parameter.dtype_of(config))
            operands[name] = np.resize(values.astype(dtype), shapes[name])
        return operands


_DISTINCT = 1_000_003  # no multiple of the size of an image
