"""The C half's functions and structs: driver/callbacks.h declares the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import numpy as np

from ptx.emulator import KernelFacts

__all__ = [
    "LaunchRequest",
    "Memory",
    "add_kernel",
    "add_variable",
    "compute_capability",
    "device_count",
    "memories",
    "memory_at",
    "set_callbacks",
    "stop",
    "write_message",
]


class LaunchRequest(ctypes.Structure):
    """A kernel to be run."""

    _fields_ = (
        ("library", c_uint64),
        ("kernel", c_char_p),
        ("device", c_int32),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared", c_uint32),
        ("parameter_count", c_uint32),
        ("parameters", ctypes.POINTER(c_void_p)),
    )


class _MemoryRecord(ctypes.Structure):
    _fields_ = (("address", c_uint64), ("size", c_uint64), ("usable", c_uint32))


class Memory(NamedTuple):
    """Live memory: where it starts, its bytes, and whether the device may use it."""

    address: int
    size: int
    usable: bool


_LOAD = ctypes.CFUNCTYPE(c_int, c_uint64, c_int32, c_void_p, c_uint64, c_void_p, c_uint64)
_LAUNCH = ctypes.CFUNCTYPE(c_int, ctypes.POINTER(LaunchRequest), c_void_p, c_uint64)

_library = ctypes.CDLL("libcuda.so.1")
_SIZES = ctypes.POINTER(c_uint64)
_SIGNATURES = {
    "virtual_gpu_set_callbacks": (None, _LOAD, _LAUNCH),
    "virtual_gpu_add_kernel": (
        *(c_int, c_uint64, c_char_p, _SIZES, _SIZES),
        *(c_uint32, c_uint32, c_uint32, c_int32),
    ),
    "virtual_gpu_add_variable": (c_int, c_uint64, c_char_p, c_int, c_void_p, c_uint64),
    "virtual_gpu_memories": (c_uint64, c_int, ctypes.POINTER(_MemoryRecord), c_uint64),
    "virtual_gpu_memory_at": (c_int, c_uint64, c_int, ctypes.POINTER(_MemoryRecord)),
    "virtual_gpu_stop": (None,),
}
for _name, (_result, *_arguments) in _SIGNATURES.items():
    _function = getattr(_library, _name)
    _function.restype, _function.argtypes = _result, _arguments

_kept: list[object] = []  # the callbacks: C has no reference to them


def set_callbacks(
    load: Callable[[int, int, int, int, int, int], int], launch: Callable[[Any, int, int], int]
) -> None:
    """Registers what loads modules and runs kernels; see LoadCallback and LaunchCallback."""
    _kept[:] = [_LOAD(load), _LAUNCH(launch)]
    _library.virtual_gpu_set_callbacks(*_kept)


def device_count() -> int:
    """How many devices there are."""
    count = c_int()
    _library.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def compute_capability() -> int:
    """The SM version of the devices, for example 90: all are of one model."""
    major, minor = c_int(), c_int()
    _library.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), 0)
    return 10 * major.value + minor.value


def add_kernel(library: int, name: str, facts: KernelFacts, registers: int) -> None:
    """Tells the driver of a kernel of a module that is being loaded.

    Args:
      library: the module's number.
      name: the kernel's name.
      facts: the facts of the kernel that its text has.
      registers: the registers of a thread; 0 where they are not known.
    """
    sizes = facts.parameter_sizes
    count = len(sizes)
    # A number is aligned to its size, and an array of bytes to no more than divides its length.
    alignments = [size & -size for size in sizes]
    _library.virtual_gpu_add_kernel(
        *(library, name.encode(), (c_uint64 * count)(*sizes), (c_uint64 * count)(*alignments)),
        *(count, facts.static_shared, facts.max_threads, registers),
    )


def add_variable(library: int, name: str, device: int, data: np.ndarray) -> None:
    """Tells the driver of a variable of a module that is being loaded; `data` stay where they are.

    Raises:
      RuntimeError: the driver refuses.
    """
    address = data.ctypes.data
    if _library.virtual_gpu_add_variable(library, name.encode(), device, address, data.nbytes):
        raise RuntimeError(f"the driver refuses the variable {name}")


def memories(device: int) -> list[Memory]:
    """All live memory, as a device sees it."""
    capacity = 1024
    while True:
        records = (_MemoryRecord * capacity)()
        count = _library.virtual_gpu_memories(device, records, capacity)
        if count <= capacity:
            return [Memory(r.address, r.size, bool(r.usable)) for r in records[:count]]
        capacity = 2 * count


def memory_at(address: int, device: int) -> Memory | None:
    """The live memory that an address lies in, as a device sees it."""
    record = _MemoryRecord()
    if not _library.virtual_gpu_memory_at(address, device, ctypes.byref(record)):
        return None
    return Memory(record.address, record.size, bool(record.usable))


def stop() -> None:
    """Waits until all that has been asked for is done."""
    _library.virtual_gpu_stop()


def write_message(message: str, buffer: int, capacity: int) -> None:
    """Writes a C string, cut where it is too long."""
    data = message.encode()[: capacity - 1] + b"\0"
    ctypes.memmove(buffer, data, len(data))
