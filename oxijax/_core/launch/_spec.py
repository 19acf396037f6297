"""The spec of a call: its kernel and configuration, in JSON that every process reads alike."""

import dataclasses
import functools
import hashlib
import importlib
import json
import types
import typing
from typing import Any

from oxijax._core.process import Emulation
from ptx import registry
from ptx.definition import KernelDefinition, Shapes
from ptx.isa.dtypes import DTYPES, DType

__all__ = [
    "VERSION",
    "Spec",
    "config_type",
    "decode_fields",
    "encode_fields",
    "key_of",
    "registered",
]

VERSION = 4  # of the specs: raised when an old spec would mean something else

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
            "config": encode_fields(self.config),
        }
        if self.grouped is not None:
            content["grouped"] = self.grouped
        if self.emulation is not None:
            content["emulation"] = encode_fields(self.emulation)
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
            raise ValueError(f"invalid JSON in a kernel's spec: {error}") from None
        if not isinstance(content, dict) or not {"kernel", "config"} <= content.keys():
            raise ValueError("a spec is an object with kernel and config")
        kernel, emulation, grouped = (
            content.get(name) for name in ("kernel", "emulation", "grouped")
        )
        if not isinstance(kernel, str):
            raise TypeError(f"the kernel of a spec is its name, got {kernel!r}")
        spec = Spec(
            kernel=kernel,
            config=decode_fields(config_type(registered(kernel)), content["config"]),
            grouped=None if grouped is None else _decode(grouped),
            emulation=None if emulation is None else decode_fields(Emulation, emulation),
        )
        _check_types(spec)
        written = spec._written()
        if written != text:
            raise ValueError(f"the spec is not canonical; expected {written}")
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
    """The kernel called `name`, of `ptx.kernels` or another module; KeyError if there is none."""
    importlib.import_module("ptx.kernels")  # late: what asks for no kernel has no need of them
    known = registry.KERNELS
    if name not in known:
        raise KeyError(
            f"no kernel {name!r} is registered; import the module that has it. There are "
            f"{', '.join(known) or 'none'}"
        )
    return known[name]


def config_type(kernel: KernelDefinition) -> type:
    """The class of a kernel's configurations."""
    return type(next(iter(kernel.configs.values())))


def encode_fields(config: Any) -> dict[str, Any]:
    """The fields of a frozen dataclass, as JSON has them.

    A field whose metadata says `optional` is left out where it has its default: so what was written
    before there was such a field means what it did.

    Raises:
      TypeError: a value that has no place in JSON.
    """
    return {
        field.name: _encode(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if not (_is_optional(field) and getattr(config, field.name) == field.default)
    }


def _is_optional(field: dataclasses.Field[Any]) -> bool:
    return field.metadata.get("optional", False)


def _encode(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, DType):
        return {"dtype": value.name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: encode_fields(value)}
    raise TypeError(f"{type(value).__name__} {value!r} has no place in a kernel's spec")


def decode_fields(kind: type, fields: Any) -> Any:
    """The dataclass whose fields these are.

    Raises:
      TypeError: a field is missing, is one too many, or has another type than it is declared with.
    """
    expected = {field.name for field in dataclasses.fields(kind)}
    needed = {field.name for field in dataclasses.fields(kind) if not _is_optional(field)}
    if not isinstance(fields, dict) or not needed <= fields.keys() <= expected:
        raise TypeError(f"{kind.__name__} has the fields {', '.join(sorted(expected))}")
    decoded = {name: _decode(value, _hints(kind)[name]) for name, value in fields.items()}
    config = kind(**decoded)
    _check_types(config)
    return config


def _decode(value: Any, hint: Any = None) -> Any:
    """A value of a field, from JSON; a dataclass is one that the field's type names."""
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, dict):
        kinds = {getattr(kind, "__name__", ""): kind for kind in typing.get_args(hint) or (hint,)}
        for name in kinds.keys() & value.keys():
            if dataclasses.is_dataclass(kinds[name]) and len(value) == 1:
                return decode_fields(kinds[name], value[name])
        name = value.get("dtype")
        if value.keys() != {"dtype"} or not isinstance(name, str) or name not in DTYPES:
            raise TypeError(f'a dtype is {{"dtype": NAME}}, got {value!r}')
        return DTYPES[name]
    return value


_hints = functools.cache(typing.get_type_hints)


def _check_types(config: Any) -> None:
    """Raises TypeError for a field of another type than it is declared with."""
    hints = _hints(type(config))
    for name in (field.name for field in dataclasses.fields(config)):
        value, hint = getattr(config, name), hints[name]
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
