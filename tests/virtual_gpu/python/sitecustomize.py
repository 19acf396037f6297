"""Runs when Python starts on the virtual GPU: changes some modules once they have been loaded.

JAX looks for /dev/nvidia0 before it tries its CUDA plugin, which no setting of its own changes.
JAX and its plugin load NVIDIA's own libraries, where they are installed, rather than the virtual
GPU's: the paths to them are part of the plugin.
oxijax knows which of a kernel's buffers are results, and a driver does not.
"""

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType


def _show_a_device(hardware_utils: ModuleType) -> None:
    hardware_utils.has_visible_nvidia_gpu = lambda: True  # pyright: ignore


def _load_libraries(jaxlib: ModuleType) -> None:
    """Loads all of the virtual GPU's: whoever asks for one by its name from now on gets that."""
    del jaxlib
    for library in os.listdir(os.environ["VIRTUAL_GPU_LIBRARIES"]):
        ctypes.CDLL(library)


def _load_no_others(plugin: ModuleType) -> None:
    plugin._load_nvidia_libraries = lambda: None  # pyright: ignore


def _watch_launches(resolve: ModuleType) -> None:
    from virtual_driver import operands

    operands.watch(resolve)


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "jax._src.hardware_utils": _show_a_device,
    "jaxlib": _load_libraries,
    "jax_plugins.xla_cuda12": _load_no_others,
    "jax_plugins.xla_cuda13": _load_no_others,
    "oxijax._core.launch._resolve": _watch_launches,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds these modules as all others are found, and changes them after they have been loaded."""

    def find_spec(self, fullname, path, target=None):
        if fullname not in _CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                _CHANGES[fullname](module)

            spec.loader.exec_module = load_and_change  # pyright: ignore
        return spec


sys.meta_path.insert(0, _Finder())
if os.environ.get("VIRTUAL_GPU_SANITIZE"):
    # A sanitizer is for this process: the shell that runs the assembler does not start with it.
    os.environ.pop("LD_PRELOAD", None)
