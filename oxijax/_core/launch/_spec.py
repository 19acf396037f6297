"""What a call says of its kernel: JSON that means the same in every process."""

import dataclasses
import functools
import hashlib
import json
import types
import typing
from typing import Any

from oxijax._core.launch._emulation import Emulation
from ptx.isa.dtypes import DTYPES, DType
from ptx.kernel import KernelDefinition, Shapes
from ptx.registry import kernels

__all__ = ["VERSION", "Spec", "key_of", "registered"]

VERSION = 3  # of the specs: raised when an old spec would mean something else

_LONGEST = 1 << 16  # bytes of a spec


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is launched, but for the sizes of the buffers and the GPU.

    Which operands and results there are, and of which types, follows from kernel and configuration.

    Attributes:
      kernel: its name in `ptx.registry`.
      config: its configuration, a frozen dataclass.
      grouped: None, or the operands that a call has a copy of for each group. Then all its buffers
        have a leading dimension that counts groups; see `shapes`.
      emulation: the emulated GPU that it runs on; None for a real one.
    """

    kernel: str
    config: Any
    grouped: tuple[int, ...] | None = None
    emulation: Emulation | None = None

    def to_json(self) -> str:
        """The spec as text, which depends on nothing else.

        Raises:
          TypeError: the configuration holds a value that has no place in a spec.
        """
        text = self._written()
        if Spec.from_json(text) != self:
            raise TypeError(f"kernel {self.kernel}: a configuration that JSON alters: {text}")
        return text

    def _written(self) -> str:
        content: dict[str, Any] = {
            "kernel": self.kernel,
            "config": _encode_fields(self.config),
        }
        if self.grouped is not None:
            content["grouped"] = self.grouped
        if self.emulation is not None:
            content["emulation"] = _encode_fields(self.emulation)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes) -> "Spec":
        """The spec of a text, which may come from anywhere.

        Raises:
          KeyError: no such kernel is registered.
          TypeError: a field is missing, is one too many, or has another type than it is declared
            with, by name.
          ValueError: the text is none that `to_json` writes.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"a spec has {_LONGEST} bytes at most, got {len(text)}")
        try:
            text = text if isinstance(text, str) else text.decode()
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a spec is JSON: {error}") from None
        if not isinstance(content, dict) or not {"kernel", "config"} <= content.keys():
            raise ValueError("a spec is an object with kernel and config")
        kernel, emulation, grouped = (
            content.get(name) for name in ("kernel", "emulation", "grouped")
        )
        if not isinstance(kernel, str):
            raise TypeError(f"the kernel of a spec is its name, got {kernel!r}")
        spec = Spec(
            kernel=kernel,
            config=_decode_fields(_config_type(registered(kernel)), content["config"]),
            grouped=None if grouped is None else _decode(grouped),
            emulation=None if emulation is None else _decode_fields(Emulation, emulation),
        )
        _check_types(spec)
        written = spec._written()
        if written != text:
            raise ValueError(f"a spec is as it is written here: {written}")
        return spec

    def shapes(self, shapes: Shapes) -> Shapes:
        """What a kernel takes the shapes of the buffers for: it knows no groups.

        The first copy of what is copied, and groups of everything else behind each other.

        Raises:
          ValueError: buffers that are not grouped as the spec says.
        """
        if self.grouped is None:
            return shapes
        groups = {shape[0] if shape else 0 for shape in shapes}
        if len(groups) != 1 or not all(
            i in self.grouped or len(shape) > 1 for i, shape in enumerate(shapes)
        ):
            raise ValueError(f"buffers of one leading dimension are expected, got {list(shapes)}")
        return [
            shape[1:] if i in self.grouped else (shape[0] * shape[1], *shape[2:])
            for i, shape in enumerate(shapes)
        ]

    def __str__(self) -> str:
        return f"kernel {self.kernel}, {self.config}"


def key_of(spec: str | bytes) -> int:
    """A hash of a spec's text and version: 63 bits, as an MLIR integer attribute holds."""
    text = spec.encode() if isinstance(spec, str) else spec
    digest = hashlib.sha256(b"%d\n%b" % (VERSION, text)).digest()
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


def _decode_fields(config_type: type, fields: Any) -> Any:
    expected = {field.name for field in dataclasses.fields(config_type)}
    if not isinstance(fields, dict) or fields.keys() != expected:
        raise TypeError(f"{config_type.__name__} has the fields {', '.join(sorted(expected))}")
    decoded = {name: _decode(value) for name, value in fields.items()}
    config = config_type(**decoded)
    _check_types(config)
    return config


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, dict):
        name = value.get("dtype")
        if value.keys() != {"dtype"} or not isinstance(name, str) or name not in DTYPES:
            raise TypeError(f'a dtype is {{"dtype": NAME}}, got {value!r}')
        return DTYPES[name]
    return value


_hints = functools.cache(typing.get_type_hints)


def _check_types(config: Any) -> None:
    """Raises TypeError for a field of another type than it is declared with."""
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        if not _has_type(value, hint):
            expected = getattr(hint, "__name__", hint) if isinstance(hint, type) else hint
            raise TypeError(f"{name} must be {expected}, got {value!r}")


def _has_type(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_has_type(value, each) for each in arguments)
    if origin is tuple:
        each, *rest = arguments
        if rest == [...]:
            return isinstance(value, tuple) and all(_has_type(item, each) for item in value)
        return (
            isinstance(value, tuple)
            and len(value) == len(arguments)
            and all(map(_has_type, value, arguments))
        )
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, bool, str):
        return type(value) is hint
    return isinstance(value, hint)
