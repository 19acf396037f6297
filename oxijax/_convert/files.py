"""States in files."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oxijax._core import arguments as arguments
from oxijax._core.install import install_command

__all__ = ["open_state"]


def open_state(state_dict: Any) -> Mapping[str, Any]:
    """A state that is given as a mapping or as the path of a safetensors file."""
    if isinstance(state_dict, Mapping):
        return state_dict
    if not isinstance(state_dict, str | os.PathLike):
        raise TypeError(
            "state_dict must be a mapping or the path of a safetensors file, got "
            f"{arguments.shown(state_dict)}"
        )
    if not os.path.isfile(state_dict):
        raise ValueError(
            "state_dict must be a mapping or the path of a safetensors file, and there is no file "
            f"{arguments.shown(os.fspath(state_dict))}"
        )
    return _SafetensorsFile(state_dict)


class _SafetensorsFile(Mapping[str, np.ndarray]):
    """The arrays of a safetensors file, each read when it is asked for."""

    def __init__(self, path: str | os.PathLike[str]):
        try:
            import safetensors
        except ImportError as error:
            command = install_command("convert", "safetensors")
            raise ImportError(f"state_dict as a file needs safetensors: {command}") from error
        try:
            self._file = safetensors.safe_open(path, framework="numpy")
        except (safetensors.SafetensorError, OSError) as error:
            raise ValueError(
                f"state_dict must be a safetensors file, {os.fspath(path)!r} is none: {error}"
            ) from error
        self._names = dict.fromkeys(self._file.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
