"""The bytes that a call gives a kernel of oxijax, and whether they are operands or results.

A driver cannot know: a launch has addresses, and XLA puts several buffers into one allocation. So
the function in which oxijax checks a launch before it loads it is watched, with VIRTUAL_GPU_STRICT
set, and what it is called with is kept by what the driver will see of it.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Mapping, Sequence

import numpy as np

from virtual_driver.driver import LaunchRequest

__all__ = ["Window", "watch", "windows"]


@dataclasses.dataclass(frozen=True)
class Window:
    """The bytes from a parameter's address on that the kernel may touch.

    Attributes:
      size: the number of bytes.
      writable: whether they are a result's.
      initialized: whether they hold values before the launch.
      name: the name of the bytes in errors.
    """

    size: int
    writable: bool
    initialized: bool
    name: str


# By text, grid and block; then by the scalars, each with its position.
_Scalars = tuple[tuple[int, bytes], ...]
_known: dict[tuple, dict[_Scalars, Mapping[int, Window]]] = {}


def watch(module: types.ModuleType) -> None:
    """Watches `oxijax._core.launch._resolve`, if the virtual GPU is to be strict."""
    if not os.environ.get("VIRTUAL_GPU_STRICT"):
        return
    check, arguments_of = module._check_launch, module._emulated_arguments

    def check_and_keep(launch, call) -> None:
        check(launch, call)
        _keep(launch.text, launch.grid, launch.block, arguments_of(launch, call))

    module._check_launch = check_and_keep  # pyright: ignore


def _keep(text: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence) -> None:
    scalars, found = {}, {}
    for position, argument in enumerate(arguments):
        if isinstance(argument, np.generic):
            scalars[position] = argument.tobytes()
        else:
            size = int(np.prod(argument.shape, dtype=np.int64)) * argument.dtype.itemsize
            name = f"buffer {argument.buffer} of the call"
            found[position] = Window(size, argument.writable, argument.initialized, name)
    known = _known.setdefault((text, tuple(grid), tuple(block)), {})
    if known.setdefault(tuple(sorted(scalars.items())), found) != found:
        raise ValueError("two calls that look the same to a driver have buffers of other sizes")


def windows(text: str, request: LaunchRequest, parameters: Sequence[bytes]) -> Mapping[int, Window]:
    """The windows of a launch's parameters, by position; none where nothing is known of it."""
    known = _known.get((text, tuple(request.grid), tuple(request.block)), {})
    for scalars, found in known.items():
        if all(parameters[position] == value for position, value in scalars):
            return found
    return {}
