"""States in files."""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from oxijax._core.arguments import checks
from oxijax._core.install import install_command

__all__ = ["open_state"]


def open_state(state_dict: Any) -> Mapping[str, Any]:
    """A state that is given as a mapping or as the path of a safetensors file or an index."""
    if isinstance(state_dict, Mapping):
        return state_dict
    if not isinstance(state_dict, str | os.PathLike):
        raise TypeError(
            "state_dict must be a mapping or the path of a safetensors file or its index, got "
            f"{checks.shown(state_dict)}"
        )
    if not os.path.isfile(state_dict):
        raise ValueError(
            "state_dict must be a mapping or the path of a safetensors file or its index, and "
            f"there is no file {checks.shown(os.fspath(state_dict))}"
        )
    if os.fspath(state_dict).endswith(".json"):
        return _ShardedFiles(state_dict)
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


class _ShardedFiles(Mapping[str, np.ndarray]):
    """The arrays of several safetensors files, of which a JSON file says what is in which.

    Its weight_map has for each array the name of a file beside it, as in a
    "model.safetensors.index.json" of Hugging Face.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path, self._files = pathlib.Path(path), {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, RecursionError, KeyError, TypeError, IndexError) as error:
            raise ValueError(
                f"state_dict must be a JSON file with a weight_map, {str(self._path)!r} is none: "
                f"{error!r}"
            ) from error
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise ValueError(f"{str(self._path)!r} must have names of files in its weight_map")
        for name in found.values():  # files elsewhere are not what the index is of
            if name != os.path.basename(name):
                raise ValueError(f"{str(self._path)!r} must have files beside it, got {name!r}")
        self._file_of: dict[str, str] = found

    def __getitem__(self, name: str) -> np.ndarray:
        file = self._file_of[name]
        if file not in self._files:
            self._files[file] = open_state(self._path.with_name(file))
        try:
            return self._files[file][name]
        except KeyError:
            raise ValueError(f"{file!r} must have {name!r}, as {str(self._path)!r} says") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)
