"""JSON of kernel configurations, which means the same in every process."""

import dataclasses
import functools
import importlib
import types
import typing
from typing import Any

from ptx.definition import KernelDefinition
from ptx.isa.dtypes import DTYPES, DType
from ptx.registry import kernels

__all__ = [
    "check_types",
    "config_type",
    "decode",
    "decode_fields",
    "encode_fields",
    "registered",
]


def registered(name: str) -> KernelDefinition:
    """The kernel called `name`, of `ptx.kernels` or another module; KeyError if there is none."""
    importlib.import_module("ptx.kernels")  # late: what asks for no kernel has no need of them
    known = kernels()
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
        return {"dtype": str(value)}
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
    decoded = {name: decode(value, _hints(kind)[name]) for name, value in fields.items()}
    config = kind(**decoded)
    check_types(config)
    return config


def decode(value: Any, hint: Any = None) -> Any:
    """A value of a field, from JSON; a dataclass is one that the field's type names."""
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
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


def check_types(config: Any) -> None:
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
