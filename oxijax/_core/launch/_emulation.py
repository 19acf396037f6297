"""The emulated GPU: runs a call's kernel on host memory, through cuLaunchKernel's signature."""

import ctypes
import dataclasses
import functools
import itertools
import threading
import traceback
from collections.abc import Iterable, Sequence

import numpy as np

from oxijax._core.launch import _handler
from oxijax._core.process import is_stopping
from ptx.emulator import Buffer, EmulatorError
from ptx.emulator import launch as emulator_launch
from ptx.emulator.program import load as parse

__all__ = [
    "EmulatedArray",
    "describe",
    "handles",
    "launch_pointer",
    "load",
    "unload",
]


@dataclasses.dataclass(frozen=True)
class EmulatedArray:
    """A buffer of a call, as a kernel's argument.

    Attributes:
      buffer: its position among operands and results; of two that share memory the first.
      shape, dtype: of its elements.
      writable: whether the kernel may write it.
      initialized: whether it holds values before the launch.
    """

    buffer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    writable: bool
    initialized: bool


def load(text: str, arguments: Sequence[EmulatedArray | np.generic], schedule: int | None) -> int:
    """Makes a PTX module ready to be launched.

    Args:
      text: PTX with one kernel.
      arguments: the arguments of the kernel.
      schedule: as in `Emulation`.

    Returns:
      The handle that stands for the CUkernel.

    Raises:
      EmulatorError: the text is no PTX.
    """
    parse(text, None)  # what the driver would refuse
    handle = next(_handles)
    _loaded[handle] = _Loaded(text, tuple(arguments), schedule)
    return handle


def launch_pointer() -> int:
    """The address of the function that stands for cuLaunchKernel."""
    address = ctypes.cast(_launch_callback(), ctypes.c_void_p).value
    assert address is not None
    return address


def describe(otherwise: str = "KeyboardInterrupt") -> str:
    """The error of this thread's last launch; one that Ctrl-C ended at once has left none."""
    return _errors.pop(threading.get_native_id(), otherwise)


def handles() -> list[int]:
    """The handles of all loaded kernels."""
    return list(_loaded)


def unload(forgotten: Iterable[int]) -> None:
    """Frees modules, of which no call is found any more, and what the emulator keeps of others.

    A call that was found before, and is still to be launched, is told so.
    """
    for handle in forgotten:
        _loaded.pop(handle, None)
    parse.cache_clear()


# How a launch went: handler.c has two by these names.
LAUNCHED = 0
FORGOTTEN = -2
LAUNCH_FAILED = 719  # CUDA_ERROR_LAUNCH_FAILED

_handles = itertools.count(1)
_loaded: dict[int, "_Loaded"] = {}
_errors: dict[int, str] = {}  # by native thread: Python's own thread state ends with a callback
# Launches come at the same time where there are several devices. All are Python, which one thread
# runs at a time: in turn they take a third of the time in which they get in each other's way.
_running = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Loaded:
    text: str
    arguments: tuple[EmulatedArray | np.generic, ...]
    schedule: int | None

    def run(self, grid, block, dynamic_shared: int, parameters) -> None:
        """Runs the kernel; parameters: for each argument the address of its value."""
        buffers: dict[int, tuple[Buffer, np.ndarray]] = {}
        arguments = []
        for argument, parameter in zip(self.arguments, parameters, strict=True):
            if not isinstance(argument, EmulatedArray):
                arguments.append(argument)
                continue
            if argument.buffer not in buffers:
                memory = _host_array(parameter, argument.shape, argument.dtype)
                buffer = Buffer(memory, argument.writable, argument.initialized)
                buffers[argument.buffer] = buffer, memory
            arguments.append(buffers[argument.buffer][0])
        with _running:
            emulator_launch(
                self.text,
                grid,
                block,
                arguments,
                dynamic_shared=dynamic_shared,
                schedule=self.schedule,
                statistics=False,
                stop=is_stopping,
            )
        for buffer, memory in buffers.values():
            if buffer.writable:
                memory[...] = buffer.array


def _host_array(parameter: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array whose address lies at the address `parameter`."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    address = ctypes.c_void_p.from_address(parameter).value
    assert address is not None
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory.view(dtype).reshape(shape)


@functools.cache
def _launch_callback():
    return _handler.LAUNCH_FUNCTION(_launch)


def _launch(
    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra
) -> int:
    outcome = ctypes.c_int.from_address(extra)
    try:
        loaded = _loaded.get(function)
        if loaded is None:
            outcome.value = FORGOTTEN
            return 0
        addresses = parameters[: len(loaded.arguments)]
        loaded.run((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, addresses)
    except (EmulatorError, ValueError) as error:
        _errors[threading.get_native_id()] = f"{type(error).__name__}: {error}"
    except KeyboardInterrupt as error:
        _handler.note_interrupt(error)
        _errors[threading.get_native_id()] = "KeyboardInterrupt"
    except BaseException:  # nothing may pass through C; a fault of the emulator shows where
        _errors[threading.get_native_id()] = traceback.format_exc()
    else:
        outcome.value = LAUNCHED
        return 0
    outcome.value = LAUNCH_FAILED
    return 0
