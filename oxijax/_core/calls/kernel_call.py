"""The description of a kernel's launch, and the launches that a function makes."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from ptx.definition import Instance, KernelDefinition
from ptx.isa.targets import Target

__all__ = ["KernelCall", "emulated_gpu", "is_emulated", "note", "noted_calls"]


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """All that the choice of a kernel's plan may depend on.

    Attributes:
      gpu: its name, as the driver has it; `emulated_gpu` of an emulated one.
      target: that its PTX is written for.
      kernel: the kernel.
      config: its configuration.
      shapes: the shapes of operands and results in memory, of one device's part of a call.
    """

    gpu: str
    target: Target
    kernel: KernelDefinition[Any]
    config: Any
    shapes: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def instance(self) -> Instance:
        """The call with the plan that the kernel itself chooses."""
        return self.kernel.instance(self.config, self.target, self.shapes)

    def __str__(self) -> str:
        arrays = [*self.kernel.operands(self.config), *self.kernel.results(self.config)]
        shown = (f"{name}{list(shape)}" for name, shape in zip(arrays, self.shapes, strict=True))
        return f"{self.kernel.name}: {', '.join(shown)}"


def emulated_gpu(target: str) -> str:
    """The name under which plans are found for an emulated GPU: no driver has such a one."""
    return _EMULATED + target


def is_emulated(gpu: str) -> bool:
    """Whether it is the name of an emulated GPU."""
    return gpu.startswith(_EMULATED)


@contextlib.contextmanager
def noted_calls() -> Iterator[list[KernelCall]]:
    """Yields a list of the calls that are resolved within the block, by any thread, each once.

    A call that has been resolved before is not resolved again, unless that is forgotten first.
    """
    calls: list[KernelCall] = []
    _lists.append(calls)
    try:
        yield calls
    finally:
        _lists[:] = [other for other in _lists if other is not calls]


def note(call: KernelCall) -> None:
    """Adds a call to the lists of all who want to know."""
    for calls in list(_lists):
        if call not in calls:
            calls.append(call)


_EMULATED = "emulated "
_lists: list[list[KernelCall]] = []
