"""States in files."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from oxijax._core.arguments import checks
from oxijax._core.install import install_command

__all__ = ["open_state"]


def open_state(state_dict: Any) -> Mapping[str, Any]:
    """A state that is given as a mapping or as the path of a safetensors file."""
    if isinstance(state_dict, Mapping):
        return state_dict
    if not isinstance(state_dict, str | os.PathLike):
        raise TypeError(
            "state_dict must be a mapping or the path of a safetensors file, got "
            f"{checks.shown(state_dict)}"
        )
    if not os.path.isfile(state_dict):
        raise ValueError(
            "state_dict must be a mapping or the path of a safetensors file, and there is no file "
            f"{checks.shown(os.fspath(state_dict))}"
        )
    return _SafetensorsFile(state_dict)


# Types of one byte that NumPy has by ml_dtypes, by the names that files have for them.
_DTYPES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


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
        self._path = os.fspath(path)
        self._names = dict.fromkeys(self._file.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        dtype = self._file.get_slice(name).get_dtype()
        if dtype in _DTYPES:
            return self._read(name, np.dtype(_DTYPES[dtype]))
        try:
            return self._file.get_tensor(name)
        except Exception as error:  # of several kinds, for a type that NumPy does not have
            raise TypeError(
                f"{self._path!r} must have arrays that NumPy can hold, got {dtype} for {name!r}"
            ) from error

    def _read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """An array of a type that safetensors does not make NumPy's arrays of."""
        with open(self._path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            place = json.loads(file.read(size))[name]
            start, stop = place["data_offsets"]
            file.seek(8 + size + start)
            return np.frombuffer(file.read(stop - start), dtype).reshape(place["shape"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
