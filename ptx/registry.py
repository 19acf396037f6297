"""The kernels that exist: name, named configurations, and the function that writes the PTX.

A module that has a kernel registers it when it is imported, so that `python -m oxijax check`
can assemble every one of them for every target.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ptx.isa.targets import TARGETS, Target
from ptx.kernel import KernelDefinition, Written
from ptx.launch import Launch

__all__ = ["Geometry", "RegisteredKernel", "Shapes", "kernels", "register"]

Config = TypeVar("Config")
Shapes = Sequence[tuple[int, ...]]  # of a call's operands, then of its results
Geometry = Callable[[Config, Target, Shapes], Launch]


@dataclasses.dataclass(frozen=True, eq=False)
class RegisteredKernel(Generic[Config]):
    """One kernel of the registry.

    Attributes:
      name: of the kernel, unique in the registry.
      configs: configurations by name; those that are assembled and tested.
      generate: writes the PTX of a configuration for a target.
      needs: the lowest target that has the kernel's instructions.
      dynamic_shared: bytes of dynamic shared memory of one block.
      launch: the launch that a call with buffers of given shapes is; None for a kernel that is
        not called from JAX.
    """

    name: str
    configs: Mapping[str, Config]
    generate: Callable[[Config, Target], str]
    needs: str
    dynamic_shared: Callable[[Config, Target], int]
    launch: Geometry[Config] | None = None

    def config(self, name: str) -> Config:
        """The configuration called `name`; ValueError, which lists all, if there is none."""
        if name not in self.configs:
            names = ", ".join(self.configs)
            raise ValueError(f"kernel {self.name} has the configurations {names}, not {name!r}")
        return self.configs[name]

    def write_named(self, config: str, target: Target) -> Written:
        chosen = self.config(config)
        return Written(self.generate(chosen, target), self.dynamic_shared(chosen, target))

    def ptx(self, config: str, target: Target) -> str:
        """The PTX of the configuration called `config` for a target.

        Raises:
          UnsupportedError: the target lacks an instruction.
          ValueError: the kernel has no such configuration.
        """
        return self.generate(self.config(config), target)


def register(
    name: str,
    configs: Mapping[str, Config],
    generate: Callable[[Config, Target], str],
    needs: str = "sm_75",
    dynamic_shared: Callable[[Config, Target], int] = lambda config, target: 0,
    launch: Geometry[Config] | None = None,
) -> RegisteredKernel[Config]:
    """Adds a kernel to the registry.

    Args:
      name: of the kernel.
      configs: configurations by name, at least one.
      generate: function (configuration, target) -> PTX, which raises UnsupportedError where the
        target lacks an instruction.
      needs: the lowest target for which `generate` must not raise, for example "sm_80".
      dynamic_shared: function (configuration, target) -> bytes of dynamic shared memory.
      launch: function (configuration, target, shapes of the operands and results) -> Launch;
        without it the kernel cannot be called from JAX.

    Returns:
      The kernel's entry.

    Raises:
      ValueError: the name is taken, there is no configuration, or `needs` is no target.
    """
    if name in _KERNELS:
        raise ValueError(f"a kernel called {name!r} is registered already")
    if not configs:
        raise ValueError(f"kernel {name!r} needs at least one configuration")
    if needs not in TARGETS:
        raise ValueError(f"needs of kernel {name!r} must be a target, got {needs!r}")
    frozen = types.MappingProxyType(dict(configs))
    kernel = RegisteredKernel(name, frozen, generate, needs, dynamic_shared, launch)
    _KERNELS[name] = kernel
    return kernel


def add(kernel: KernelDefinition) -> KernelDefinition:
    """Adds a kernel to the registry; ValueError if its name is taken."""
    if kernel.name in _KERNELS:
        raise ValueError(f"a kernel called {kernel.name!r} is registered already")
    _KERNELS[kernel.name] = kernel  # pyright: ignore[reportArgumentType]
    return kernel


def kernels() -> Mapping[str, Any]:
    """Every kernel that the modules imported so far have registered, by name."""
    return types.MappingProxyType(dict(_KERNELS))


_KERNELS: dict[str, RegisteredKernel] = {}
