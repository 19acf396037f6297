"""Kernels on a real GPU from programs whose arrays are on the CPU.

Inside `device_launches` what `oxijax.testing.emulate_gpu` would run in the emulator runs on GPU 0.
Every buffer is copied into an allocation of its own, of exactly its size, so that memcheck sees an
access that leaves it; in XLA's own pool of memory it would not.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from oxijax._core.gpu.driver import driver
from oxijax._core.launch import _emulation
from oxijax._core.launch._handler import LAUNCH_FUNCTION
from oxijax.testing import emulate_gpu
from ptx.launch import Launch, entry_name

__all__ = ["device_launches"]

_POISON = 0xFF  # NaN in every floating-point type


@contextlib.contextmanager
def device_launches() -> Iterator[list[str]]:
    """Yields the names of the kernels that have run, as they run."""
    ran: list[str] = []

    def run(self, grid, block, dynamic_shared, parameters) -> None:
        with driver()._primary_context(driver()._handles[0]):
            _run(self, grid, block, dynamic_shared, parameters)
        ran.append(entry_name(self.text))

    with (
        # Held throughout: a primary context that nobody holds is destroyed.
        driver()._primary_context(driver()._handles[0]),
        mock.patch.object(_emulation._Loaded, "run", run),
        emulate_gpu(driver().target(0).name),
    ):
        yield ran


def _run(loaded: Any, grid, block, dynamic_shared: int, parameters) -> None:
    """As `_Loaded.run`, with cuLaunchKernel."""
    kernel = driver().load(Launch(grid, block, (), loaded.text, dynamic_shared), 0)
    memory: dict[int, tuple[int, np.ndarray, bool]] = {}
    values: list[Any] = []
    try:
        for argument, parameter in zip(loaded.arguments, parameters, strict=True):
            if isinstance(argument, np.generic):
                scalar = (ctypes.c_uint8 * 8).from_buffer_copy(argument.tobytes().ljust(8, b"\0"))
                values.append(scalar)
                continue
            if argument.buffer not in memory:
                host = _emulation._host_array(parameter, argument.shape, argument.dtype)
                address = _allocate(host, argument.initialized)
                memory[argument.buffer] = address, host, argument.writable
            values.append(ctypes.c_uint64(memory[argument.buffer][0]))
        _launch(kernel, grid, block, dynamic_shared, values)
        for address, host, writable in memory.values():
            if writable and host.size:
                _call("cuMemcpyDtoH", host.ctypes.data, address, host.nbytes)
    finally:
        for address, _, _ in memory.values():
            if address:
                _call("cuMemFree", address)


def _allocate(host: np.ndarray, initialized: bool) -> int:
    if not host.size:
        return 0
    address = int(_call("cuMemAlloc", host.nbytes))
    if initialized:
        _call("cuMemcpyHtoD", address, host.ctypes.data, host.nbytes)
    else:
        _call("cuMemsetD8", address, _POISON, host.nbytes)
    return address


def _launch(kernel: int, grid, block, dynamic_shared: int, values: list[Any]) -> None:
    places = [ctypes.addressof(value) for value in values]
    launch = LAUNCH_FUNCTION(driver().launch_pointer)
    parameters = (ctypes.c_void_p * len(places))(*places)
    status = launch(kernel, *grid, *block, dynamic_shared, None, parameters, None)
    if status:
        raise RuntimeError(f"cuLaunchKernel: {driver().describe(status)}")
    _call("cuCtxSynchronize")


def _call(function: str, *arguments: Any) -> Any:
    results = driver()._call(function, *arguments)
    return results[0] if results else None
