"""Runs when Python starts on the virtual GPU: JAX is to believe that there is a device.

JAX looks for /dev/nvidia0 before it tries its CUDA plugin; nothing of its own switches that off.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

_MODULE = "jax._src.hardware_utils"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds that one module as all others do, and changes it after it has been loaded."""

    def find_spec(self, fullname, path, target=None):
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                module.has_visible_nvidia_gpu = lambda: True  # pyright: ignore

            spec.loader.exec_module = load_and_change  # pyright: ignore
        return spec


sys.meta_path.insert(0, _Finder())
