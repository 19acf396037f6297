"""What a call says of its kernel: JSON that means the same in every process."""

import dataclasses
import hashlib
import json
from typing import Any

import jax
import numpy as np

from oxijax._core.launch._emulation import Emulation
from ptx.isa.dtypes import DTYPES, DType
from ptx.kernel import KernelDefinition, Shapes
from ptx.registry import kernels

__all__ = ["VERSION", "Spec", "key_of", "registered"]

VERSION = 2  # of the specs: raised when an old spec would mean something else


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is launched, but for the sizes of the buffers and the GPU.

    Attributes:
      kernel: its name in `ptx.registry`.
      config: its configuration, a frozen dataclass.
      operands: dtype of each operand.
      results: dtype of each result.
      aliases: (operand, result) pairs that share a buffer.
      grouped: None, or the operands that a call has a copy of for each group. Then all its buffers
        have a leading dimension that counts groups; see `shapes`.
      emulation: the emulated GPU that it runs on; None for a real one.
    """

    kernel: str
    config: Any
    operands: tuple[np.dtype, ...]
    results: tuple[np.dtype, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    grouped: tuple[int, ...] | None = None
    emulation: Emulation | None = None

    def to_json(self) -> str:
        """The spec as text, which depends on nothing else.

        Raises:
          TypeError: the configuration holds a value that has no place in a spec.
        """
        content = {
            "kernel": self.kernel,
            "config": _encode_fields(self.config),
            "operands": [dtype.name for dtype in self.operands],
            "results": [dtype.name for dtype in self.results],
            "aliases": self.aliases,
        }
        if self.grouped is not None:
            content["grouped"] = self.grouped
        if self.emulation is not None:
            content["emulation"] = dataclasses.asdict(self.emulation)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        if Spec.from_json(text) != self:
            raise TypeError(f"kernel {self.kernel}: a configuration that JSON alters: {text}")
        return text

    @staticmethod
    def from_json(text: str) -> "Spec":
        """The spec of a text.

        Raises:
          KeyError: no such kernel is registered.
        """
        content = json.loads(text)
        emulation, grouped = content.get("emulation"), content.get("grouped")
        return Spec(
            kernel=content["kernel"],
            config=_decode_fields(_config_type(registered(content["kernel"])), content["config"]),
            operands=tuple(jax.numpy.dtype(name) for name in content["operands"]),
            results=tuple(jax.numpy.dtype(name) for name in content["results"]),
            aliases=tuple((operand, result) for operand, result in content["aliases"]),
            grouped=None if grouped is None else tuple(grouped),
            emulation=None if emulation is None else Emulation(**emulation),
        )

    def shapes(self, shapes: Shapes) -> Shapes:
        """What a kernel takes the shapes of the buffers for: it knows no groups.

        The first copy of what is copied, and groups of everything else behind each other.
        """
        if self.grouped is None:
            return shapes
        return [
            shape[1:] if i in self.grouped else (shape[0] * shape[1], *shape[2:])
            for i, shape in enumerate(shapes)
        ]

    def __str__(self) -> str:
        return f"kernel {self.kernel}, {self.config}"


def key_of(spec: str) -> int:
    """A hash of a spec's text and version: 63 bits, as an MLIR integer attribute holds."""
    digest = hashlib.sha256(f"{VERSION}\n{spec}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def registered(name: str) -> KernelDefinition:
    """The kernel called `name`; KeyError if there is none."""
    known = kernels()
    if name not in known:
        raise KeyError(
            f"no kernel {name!r} is registered; import the module that has it. There are "
            f"{', '.join(known) or 'none'}"
        )
    return known[name]


def _config_type(kernel: KernelDefinition) -> type:
    return type(next(iter(kernel.configs.values())))


def _encode_fields(config: Any) -> dict[str, Any]:
    return {
        field.name: _encode(getattr(config, field.name)) for field in dataclasses.fields(config)
    }


def _encode(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, DType):
        return {"dtype": str(value)}
    raise TypeError(f"{type(value).__name__} {value!r} has no place in a kernel's spec")


def _decode_fields(config_type: type, fields: dict[str, Any]) -> Any:
    return config_type(**{name: _decode(value) for name, value in fields.items()})


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, dict):
        return DTYPES[value["dtype"]]
    return value
