"""The kernels that exist, by name.

A module that has a kernel registers it when it is imported, so that `python -m oxijax check` can
assemble every one of them for every target, and calls can find it by its name.
"""

import types
from collections.abc import Mapping
from typing import TypeVar

from ptx.definition import KernelDefinition

__all__ = ["kernels", "register"]

Definition = TypeVar("Definition", bound=KernelDefinition)


def register(kernel: Definition) -> Definition:
    """Adds a kernel to the registry, and returns it.

    Raises:
      ValueError: its name is taken.
    """
    if kernel.name in _KERNELS:
        raise ValueError(f"a kernel called {kernel.name!r} is registered already")
    _KERNELS[kernel.name] = kernel
    return kernel


def kernels() -> Mapping[str, KernelDefinition]:
    """Every kernel that the modules imported so far have registered, by name."""
    return types.MappingProxyType(dict(_KERNELS))


_KERNELS: dict[str, KernelDefinition] = {}
