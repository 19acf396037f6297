"""Kernels as they run: in the emulator, on the driver's live memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ptx.emulator import Allocation
from virtual_driver import driver, operands
from virtual_driver.loading import Library

__all__ = ["run"]

# XLA rounds up what it allocates to this. Its kernels load whole vectors, and load an element
# before they know that there is one.
_ROUNDED_TO = 256


def run(library: Library, request: driver.LaunchRequest) -> None:
    """Runs a kernel to its end.

    Raises:
      EmulatorError: the kernel does what it must not.
      ValueError: the launch is one that a driver would refuse.
    """
    module, kernel = library.modules[request.device], request.kernel.decode()
    sizes = module.facts(kernel).parameter_sizes
    parameters = [ctypes.string_at(request.parameters[i], size) for i, size in enumerate(sizes)]
    if library.compiled:
        own = {module.variable(name).address for name in module.variables}  # the module adds them
        live = driver.memories(request.device)
        allocations = [_allocation(_rounded(m)) for m in live if m.address not in own]
    else:
        allocations = _pointed_to(library, request, parameters)
    module.launch(
        kernel,
        tuple(request.grid),
        tuple(request.block),
        parameters,
        allocations,
        dynamic_shared=request.shared,
        lenient=library.compiled,
    )


def _allocation(memory: driver.Memory, **facts) -> Allocation:
    data = np.ctypeslib.as_array((ctypes.c_uint8 * memory.size).from_address(memory.address))
    barred = "" if memory.usable else "memory of another device, to which this one has no access"
    return Allocation(memory.address, data, barred=barred, **facts)


def _rounded(memory: driver.Memory) -> driver.Memory:
    """An allocation with as much more behind it as XLA counts on."""
    return memory._replace(size=-(-memory.size // _ROUNDED_TO) * _ROUNDED_TO)


def _pointed_to(
    library: Library, request: driver.LaunchRequest, parameters: Sequence[bytes]
) -> list[Allocation]:
    """The memory that parameters point to: all of each allocation, or where it is known which
    bytes a call gives the kernel, these alone.
    """
    windows = operands.windows(library.text, request, parameters)
    found: dict[int, Allocation] = {}
    for position, value in enumerate(parameters):
        if len(value) != 8:
            continue
        address = int.from_bytes(value, "little")
        memory = driver.memory_at(address, request.device)
        if memory is None:
            continue
        if position not in windows:
            found.setdefault(memory.address, _allocation(memory))
            continue
        window = windows[position]
        size = min(window.size, memory.address + memory.size - address)
        found[address] = _allocation(
            driver.Memory(address, size, memory.usable),
            writable=window.writable,
            initialized=window.initialized,
            name=window.name,
        )
    return list(found.values())
