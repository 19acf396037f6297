"""Calls of kernels in the emulator, whose operands are drawn and whose results are known."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ptx.definition import KernelDefinition
from ptx.isa.targets import TARGETS
from ptx.launch import Launch
from ptx.testing.call import Outcome, numpy_dtype, run

__all__ = ["EmulatedCall"]


@dataclasses.dataclass(frozen=True)
class EmulatedCall:
    """A call of one of a family's kernels.

    Attributes:
      definitions: the family's kernels, by name.
      kernel: one of their names.
      config: the configuration.
      seed: of the operands.
      target: the architecture that the kernel is for.
      small: whether the kernel has the plan of so small a launch; else that of a large one.
    """

    definitions: ClassVar[Mapping[str, KernelDefinition[Any]]]

    kernel: str
    config: Any
    _: dataclasses.KW_ONLY
    seed: int = 0
    target: str = "sm_80"
    small: bool = False

    @property
    def definition(self) -> KernelDefinition[Any]:
        """The kernel."""
        return self.definitions[self.kernel]

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions that the configuration does not know, by name."""
        raise NotImplementedError

    @property
    def plan(self) -> Any:
        """The kernel's plan."""
        sizes = self.sizes if self.small else None
        return self.definition.plan(self.config, TARGETS[self.target], sizes)

    @property
    def launch(self) -> Launch:
        """The kernel's launch."""
        return self.launch_of(self.definition.shapes(self.config, self.sizes))

    def launch_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Launch:
        """The launch for operands and results of some shapes, as they lie in memory, by name."""
        definition = self.definition
        names = (*definition.operands(self.config), *definition.results(self.config))
        ordered = [shapes[name] for name in names]
        return definition.launch(self.config, self.target, ordered, plan=self.plan)

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        return self.launch.text

    @property
    def every_operand(self) -> Mapping[str, np.ndarray]:
        """All that the family's kernels may take, in float64 or whole numbers, by name."""
        raise NotImplementedError

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The kernel's operands, by name, with dimensions in the order of their `dims`."""
        operands = self.every_operand
        return {
            name: operands[name].astype(numpy_dtype(parameter.dtype_of(self.config)), order="C")
            for name, parameter in self.definition.operands(self.config).items()
        }

    def outcome(self, operands: Mapping[str, np.ndarray] | None = None, **options: Any) -> Outcome:
        """What the kernel does; the emulator raises if that is a fault.

        Args:
          operands: other ones than `arrays`.
          **options: of `ptx.testing.call.launch`.
        """
        given = self.arrays if operands is None else operands
        options = {"plan": self.plan, **options}
        return run(self.definition, self.config, self.target, given, self.sizes, **options)
