"""The kernels that exist, by name.

A module that has a kernel registers it when it is imported, so that `python -m oxijax check` can
assemble every one of them for every target, and calls can find it by its name.
"""

from typing import TypeVar

from ptx.definition import KernelDefinition

__all__ = ["KERNELS", "register"]

Definition = TypeVar("Definition", bound=KernelDefinition)


#: Every kernel that the modules imported so far have registered, by name.
KERNELS: dict[str, KernelDefinition] = {}


def register(kernel: Definition) -> Definition:
    """Adds a kernel to the registry, and returns it.

    Raises:
      ValueError: its name is taken.
    """
    if kernel.name in KERNELS:
        raise ValueError(f"a kernel called {kernel.name!r} is registered already")
    KERNELS[kernel.name] = kernel
    return kernel
