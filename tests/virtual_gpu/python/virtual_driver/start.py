"""Registers the callbacks; the driver imports this when it is first given a module."""

from __future__ import annotations

import atexit
import ctypes
import gc
import traceback

from ptx.emulator import EmulatorError, MisalignedError, OutOfBoundsError, ReadOnlyError
from virtual_driver import driver, loading, running

_INVALID_PTX = 218  # CUDA_ERROR_INVALID_PTX
_ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
_MISALIGNED = 716  # CUDA_ERROR_MISALIGNED_ADDRESS
_LAUNCH_FAILED = 719  # CUDA_ERROR_LAUNCH_FAILED

_libraries: dict[int, loading.Library] = {}


def _load(number: int, device: int, address: int, size: int, message: int, capacity: int) -> int:
    try:
        text = ctypes.string_at(address, size).decode()
        _libraries[number] = loading.load(number, device, text)
    except loading.RefusedError as error:
        driver.write_message(str(error), message, capacity)
        return error.status
    except BaseException:  # nothing may pass through C; a fault of the virtual GPU shows where
        driver.write_message(traceback.format_exc(), message, capacity)
        return _INVALID_PTX
    return 0


def _launch(request, message: int, capacity: int) -> int:
    wanted = request.contents
    try:
        running.run(_libraries[wanted.library], wanted)
    except (EmulatorError, ValueError) as error:
        driver.write_message(f"{type(error).__name__}: {error}", message, capacity)
        return _status(error)
    except BaseException:  # as above; the end of it says most
        driver.write_message(traceback.format_exc()[1 - capacity :], message, capacity)
        return _LAUNCH_FAILED
    return 0


def _status(error: Exception) -> int:
    if isinstance(error, OutOfBoundsError | ReadOnlyError):
        return _ILLEGAL_ADDRESS
    return _MISALIGNED if isinstance(error, MisalignedError) else _LAUNCH_FAILED


# XLA holds a lock of the device while it has a module loaded, and takes it to free the kernels of a
# program. A program that the garbage collector frees in a callback, or in another thread while one
# waits for the interpreter, would wait for that lock, and for ever. On a GPU no Python runs there.
gc.disable()
driver.set_callbacks(_load, _launch)
# Threads that run kernels are not to enter an interpreter that is ending.
atexit.register(driver.stop)
