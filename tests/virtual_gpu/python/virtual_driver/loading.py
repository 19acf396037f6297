"""Modules as they are loaded: what a device refuses, and what the driver is told of the rest."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

from ptx.emulator import EmulatorError, LoadedModule
from virtual_driver import assembler, driver

__all__ = ["Library", "RefusedError", "load"]

_INVALID_PTX = 218  # CUDA_ERROR_INVALID_PTX
_NO_BINARY = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU
_UNSUPPORTED_VERSION = 222  # CUDA_ERROR_UNSUPPORTED_PTX_VERSION

# The newest PTX that the drivers of CUDA versions know. Source: PTX ISA, "Release Notes".
_NEWEST_PTX = {12090: (8, 8), 13000: (9, 0)}


class RefusedError(Exception):
    """The driver refuses a module; has the CUresult."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Library:
    """A loaded module.

    Attributes:
      modules: the module of each device; the same one where it has no variables.
      compiled: whether XLA has made it: what such kernels do on purpose, and ours must not, is no
        fault then.
      text: its PTX.
    """

    modules: dict[int, LoadedModule]
    compiled: bool
    text: str


def load(number: int, device: int, text: str) -> Library:
    """Loads a module, and tells the driver of its kernels and variables.

    Args:
      number: the module's number.
      device: the one that it is for; -1 for all.
      text: its PTX.

    Raises:
      RefusedError: a device would not load it.
    """
    _dump(number, text)
    compiled = "LLVM NVPTX Back-End" in text
    if not compiled:  # what XLA has compiled is machine code to a driver, of any version of PTX
        _check_version(text)
    _check_target(text)
    registers = {} if compiled else _assemble(text)
    devices = range(driver.device_count()) if device < 0 else [device]
    try:
        module = LoadedModule(text)
        for kernel in module.kernels:
            driver.add_kernel(number, kernel, module.facts(kernel), registers.get(kernel, 0))
        modules = {}
        for ordinal in devices:
            modules[ordinal] = LoadedModule(text) if modules and module.variables else module
    except EmulatorError as error:
        raise RefusedError(_INVALID_PTX, f"{type(error).__name__}: {error}") from error
    for ordinal, loaded in modules.items():
        for name in loaded.variables:
            if len(data := loaded.variable(name).data):
                driver.add_variable(number, name, ordinal, data)
    return Library(modules, compiled, text)


def _dump(number: int, text: str) -> None:
    """Writes a module into the folder VIRTUAL_GPU_DUMP, where there is one."""
    if folder := os.environ.get("VIRTUAL_GPU_DUMP"):
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"module{number}.ptx").write_text(text)


def _directive(text: str, name: str) -> str:
    found = re.search(rf"^\s*\.{name}\s+([\w.]+)", text, re.MULTILINE)
    if found is None:
        raise RefusedError(_INVALID_PTX, f"the module has no .{name}")
    return found[1]


def _check_version(text: str) -> None:
    version = _directive(text, "version")
    major, minor = version.split(".")
    newest = _NEWEST_PTX[int(os.environ.get("VIRTUAL_GPU_CUDA", 13000))]
    if (int(major), int(minor)) > newest:
        known = ".".join(map(str, newest))
        raise RefusedError(_UNSUPPORTED_VERSION, f".version {version} is above {known}")


def _check_target(text: str) -> None:
    target, sm = _directive(text, "target"), driver.compute_capability()
    wanted = int(re.sub(r"\D", "", target))
    runs = wanted == sm if target.endswith("a") else wanted <= sm
    if not runs:
        raise RefusedError(_NO_BINARY, f"PTX for {target} does not run on a device of sm_{sm}")


def _assemble(text: str) -> dict[str, int]:
    """The registers of each kernel, where there is a real assembler to ask."""
    path = os.environ.get("VIRTUAL_GPU_PTXAS")
    if not path:
        return {}
    try:
        return assembler.registers(pathlib.Path(path), text, driver.compute_capability())
    except ValueError as error:
        raise RefusedError(_INVALID_PTX, str(error)) from error
