"""Registers the callbacks; the driver imports this when it is first given a module."""

from __future__ import annotations

import atexit
import ctypes
import os
import pathlib
import traceback

from ptx.emulator.errors import EmulatorError, MisalignedError, OutOfBoundsError, ReadOnlyError
from virtual_driver import driver, emulation, modules

_INVALID_PTX = 218  # CUDA_ERROR_INVALID_PTX
_NO_BINARY = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU
_ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
_MISALIGNED = 716  # CUDA_ERROR_MISALIGNED_ADDRESS
_LAUNCH_FAILED = 719  # CUDA_ERROR_LAUNCH_FAILED

_texts: dict[int, str] = {}


def _load(library: int, address: int, size: int, message: int, capacity: int) -> int:
    try:
        text = ctypes.string_at(address, size).decode()
        _dump(library, text)
        for kernel in modules.kernels(text):
            driver.add_kernel(library, kernel, registers=0)
        for variable in modules.variables(text):
            driver.add_variable(library, variable)
        _texts[library] = text
    except BaseException as error:  # nothing may pass through C
        driver.write_message(f"{type(error).__name__}: {error}", message, capacity)
        return _INVALID_PTX
    return 0


def _dump(library: int, text: str) -> None:
    """Writes a module into the folder VIRTUAL_GPU_DUMP, where there is one."""
    if folder := os.environ.get("VIRTUAL_GPU_DUMP"):
        (pathlib.Path(folder) / f"module{library}.ptx").write_text(text)


def _launch(request, message: int, capacity: int) -> int:
    wanted: driver.LaunchRequest = request.contents
    try:
        text, kernel = _texts[wanted.library], wanted.kernel.decode()
        declared = next(k for k in modules.kernels(text) if k.name == kernel)
        launch = emulation.Launch(
            text=text,
            kernel=kernel,
            grid=tuple(wanted.grid),
            block=tuple(wanted.block),
            shared=wanted.shared,
            parameters=[
                ctypes.string_at(wanted.parameters[i], parameter.size)
                for i, parameter in enumerate(declared.parameters)
            ],
            compiled="LLVM NVPTX Back-End" in text,
        )
        emulation.execute(launch, lambda address: driver.memory_at(address, wanted.device))
    except EmulatorError as error:
        driver.write_message(f"{type(error).__name__}: {error}", message, capacity)
        return _status(error)
    except BaseException:  # nothing may pass through C; a fault of the emulator shows where
        driver.write_message(traceback.format_exc()[-capacity + 1 :], message, capacity)
        return _LAUNCH_FAILED
    return 0


def _status(error: EmulatorError) -> int:
    if isinstance(error, OutOfBoundsError | ReadOnlyError):
        return _ILLEGAL_ADDRESS
    return _MISALIGNED if isinstance(error, MisalignedError) else _LAUNCH_FAILED


driver.set_callbacks(_load, _launch)
# Threads that run kernels are not to enter an interpreter that is ending.
atexit.register(driver.stop)
