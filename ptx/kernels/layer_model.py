"""What `ptx.model` is told of layers: what both families of convolutions share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ptx.isa.targets import Target
from ptx.kernel import Instance, KernelDefinition
from ptx.launch import Launch
from ptx.model import BlockWork, Device, Image, Work, floor, launch_work, tensor_core_atom

__all__ = ["LayerModel"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerModel:
    """A family of kernels, whose launches on a layer's images are modelled.

    Attributes:
      prefix: what the names of its kernels begin with.
      kernels: the rest of the names of those that are modelled.
      forward: the forward kernel of the family.
      parts: (configuration, output pixels) -> the parts of the gradient to the weights.
      block: (kernel's name without the prefix, instance, launch) -> what a block does; ValueError
        where that is not known.
      additions: (the same name and instance) -> the atomic additions of a launch.
    """

    prefix: str
    kernels: tuple[str, ...]
    forward: KernelDefinition[Any]
    parts: Callable[[Any, int], int]
    block: Callable[[str, Instance, Launch], BlockWork]
    additions: Callable[[str, Instance], float] = lambda name, instance: 0.0

    def launch(
        self, kernel: KernelDefinition[Any], config: Any, target: Target, images: Image
    ) -> Launch:
        """The launch of a kernel on images; the arguments are those of `work`."""
        return kernel.launch(config, target, list(self._shapes(kernel, config, images).values()))

    def work(
        self, kernel: KernelDefinition[Any], config: Any, target: Target, images: Image
    ) -> Work:
        """What one launch does.

        Args:
          kernel: one of `kernels`.
          config: one whose products run on tensor cores, with the same padding on all sides.
          target: the GPU.
          images: number, height and width of the input.

        Raises:
          ValueError: another kernel or configuration, or SASS that does not multiply as often as
            the plan says: then the model no longer describes the kernel.
        """
        name = kernel.name.removeprefix(self.prefix)
        if name not in self.kernels:
            raise ValueError(f"modelled are {', '.join(self.kernels)}, not {kernel.name}")
        tensor_core_atom(kernel, config, target)
        shapes = self._shapes(kernel, config, images)
        instance = kernel.instance(config, target, list(shapes.values()))
        launched = self.launch(kernel, config, target, images)
        later_bytes = 0.0
        if name == "backward_weight":
            for parts, result in kernel.results(config).items():
                later_bytes += math.prod(shapes[parts]) * result.dtype_of(config).bytes
        return launch_work(
            kernel,
            config,
            target,
            launched,
            self.block(name, instance, launched),
            memory_bytes=kernel.moved_bytes(config, shapes),
            additions=self.additions(name, instance),
            later_bytes=later_bytes,
        )

    def floor_us(self, config: Any, images: Image, device: Device) -> float:
        """Microseconds that no kernel of a layer can beat: see `ptx.model.floor`."""
        pixels = images[0] * math.prod(config.output_size(*images[1:]))
        products = pixels * config.taps * config.in_channels_per_group * config.out_channels
        # Backward, the same tensors are read and written, in other roles.
        memory = self.forward.moved_bytes(config, self._shapes(self.forward, config, images))
        return floor(products, memory, 2 / config.float_type.bytes, device)

    def _shapes(
        self, kernel: KernelDefinition[Any], config: Any, images: Image
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of a kernel's arrays on images, with the same padding on all sides."""
        n, h, w = images
        p, q = config.output_size(h, w)
        parts = self.parts(config, n * p * q)
        return kernel.shapes(config, {"n": n, "h": h, "w": w, "p": p, "q": q, "s": parts})
