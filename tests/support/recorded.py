"""Recorded results of PyTorch's modules, as the files of `tests/data` have them."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from support.paths import DATA

__all__ = ["Recorded", "read_recorded"]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recorded module.

    Attributes:
      kind: the name of its class.
      config: its arguments.
      state: the module's state.
      initial: the part of a new module's state that is not random.
      inputs: the inputs, by the module's names.
      grad_y: the gradient of its result.
      results: "y", and the gradients "d..." by the inputs' names.
    """

    kind: str
    config: Mapping[str, Any]
    state: Mapping[str, np.ndarray]
    initial: Mapping[str, np.ndarray]
    inputs: Mapping[str, np.ndarray]
    grad_y: np.ndarray
    results: Mapping[str, np.ndarray]


def read_recorded(name: str) -> dict[str, Recorded]:
    """The modules of a file, by "class/case"."""
    with np.load(DATA / name) as data:
        arrays = dict(data)

    def part(case: str, name: str) -> dict[str, np.ndarray]:
        start = f"{case}/{name}/"
        return {key[len(start) :]: value for key, value in arrays.items() if key.startswith(start)}

    found = {}
    for case in sorted(key.removesuffix("/config") for key in arrays if key.endswith("/config")):
        config: dict[str, Any] = json.loads(str(arrays[f"{case}/config"]))
        results = {f"d{name}": value for name, value in part(case, "gradients").items()}
        results |= {"y": arrays[f"{case}/y"]}
        state, initial, inputs = (part(case, name) for name in ("state", "initial", "inputs"))
        kind, grad_y = case.split("/")[0], arrays[f"{case}/grad_y"]
        found[case] = Recorded(kind, config, state, initial, inputs, grad_y, results)
    return found
