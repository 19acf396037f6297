"""The C half's functions and structs: driver/callbacks.h declares the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from virtual_driver.modules import KernelDeclaration, Variable

__all__ = [
    "LaunchRequest",
    "Memory",
    "add_kernel",
    "add_variable",
    "describe_address",
    "memory_at",
    "set_callbacks",
    "stop",
    "variable_address",
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


_LOAD = ctypes.CFUNCTYPE(c_int, c_uint64, c_void_p, c_uint64, c_void_p, c_uint64)
_LAUNCH = ctypes.CFUNCTYPE(c_int, ctypes.POINTER(LaunchRequest), c_void_p, c_uint64)

_library = ctypes.CDLL("libcuda.so.1")
_SIZES = ctypes.POINTER(c_uint64)
_SIGNATURES = {
    "virtual_gpu_set_callbacks": (None, _LOAD, _LAUNCH),
    "virtual_gpu_add_kernel": (
        *(c_int, c_uint64, c_char_p, _SIZES, _SIZES),
        *(c_uint32, c_uint32, c_uint32, c_int32),
    ),
    "virtual_gpu_add_variable": (c_int, c_uint64, c_char_p, c_char_p, c_uint64),
    "virtual_gpu_variable": (c_uint64, c_uint64, c_char_p, c_int),
    "virtual_gpu_memory_at": (c_int, c_uint64, c_int, ctypes.POINTER(_MemoryRecord)),
    "virtual_gpu_describe_address": (None, c_uint64, c_char_p, c_uint64),
    "virtual_gpu_stop": (None,),
}
for _name, (_result, *_arguments) in _SIGNATURES.items():
    _function = getattr(_library, _name)
    _function.restype, _function.argtypes = _result, _arguments

_kept: list[object] = []  # the callbacks: C has no reference to them


def set_callbacks(
    load: Callable[[int, int, int, int, int], int], launch: Callable[[object, int, int], int]
) -> None:
    """Registers what loads modules and runs kernels; see LoadCallback and LaunchCallback."""
    _kept[:] = [_LOAD(load), _LAUNCH(launch)]
    _library.virtual_gpu_set_callbacks(*_kept)


def add_kernel(library: int, kernel: KernelDeclaration, registers: int) -> None:
    """Tells the driver of a kernel of a module that is being loaded.

    Args:
      library: the module's number.
      kernel: what its text declares.
      registers: of a thread; 0 where nobody knows.
    """
    count = len(kernel.parameters)
    sizes = (c_uint64 * count)(*(p.size for p in kernel.parameters))
    alignments = (c_uint64 * count)(*(p.alignment for p in kernel.parameters))
    _library.virtual_gpu_add_kernel(
        *(library, kernel.name.encode(), sizes, alignments, count),
        *(kernel.static_shared, kernel.max_threads, registers),
    )


def add_variable(library: int, variable: Variable) -> None:
    """Tells the driver of a variable of a module that is being loaded."""
    name, value = variable.name.encode(), variable.value
    _library.virtual_gpu_add_variable(library, name, value, len(value))


def variable_address(library: int, name: str, device: int) -> int:
    """Where a module's variable lies in a device's memory; 0 where there is none."""
    return _library.virtual_gpu_variable(library, name.encode(), device)


def memory_at(address: int, device: int) -> Memory | None:
    """The live memory that an address lies in, as a device sees it."""
    record = _MemoryRecord()
    if not _library.virtual_gpu_memory_at(address, device, ctypes.byref(record)):
        return None
    return Memory(record.address, record.size, bool(record.usable))


def describe_address(address: int) -> str:
    """What is, or was, at an address."""
    text = ctypes.create_string_buffer(256)
    _library.virtual_gpu_describe_address(address, text, len(text))
    return text.value.decode()


def stop() -> None:
    """Waits until all that has been asked for is done."""
    _library.virtual_gpu_stop()


def write_message(message: str, buffer: int, capacity: int) -> None:
    """Writes a C string, cut where it is too long."""
    data = message.encode()[: capacity - 1] + b"\0"
    ctypes.memmove(buffer, data, len(data))
