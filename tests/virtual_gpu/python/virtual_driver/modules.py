"""What a PTX module declares: its kernels and their parameters, and its variables.

Only declarations are read here, so that modules load whatever their instructions are.
"""

from __future__ import annotations

import dataclasses
import re
import struct

__all__ = ["KernelDeclaration", "Parameter", "Variable", "kernels", "target", "variables"]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: bytes that it takes, and what its address is a multiple of."""

    size: int
    alignment: int


@dataclasses.dataclass(frozen=True)
class KernelDeclaration:
    """What a launch has to know of a kernel.

    Attributes:
      name: of the entry.
      parameters: in their order.
      static_shared: bytes of a block.
      max_threads: of a block, as `.maxntid` or `.reqntid` allow.
    """

    name: str
    parameters: tuple[Parameter, ...]
    static_shared: int
    max_threads: int


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of a module in global memory, with the bytes that it holds at first."""

    name: str
    value: bytes


def target(text: str) -> str:
    """The name of the target that a module is for, for example "sm_90a"."""
    found = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    if found is None:
        raise ValueError("the module has no .target")
    return found[1]


def kernels(text: str) -> list[KernelDeclaration]:
    """The kernels of a module."""
    text = _without_comments(text)
    shared = _shared_variables(text[: _first_body(text)])
    found = list(_ENTRY.finditer(text))
    ends = [entry.start() for entry in found[1:]] + [len(text)]
    declared = []
    for entry, end in zip(found, ends, strict=True):
        body = text[entry.end() : end]
        used = {
            n: size for n, size in shared.items() if re.search(rf"(?<!\w){re.escape(n)}\b", body)
        }
        sizes = {**used, **_shared_variables(body)}
        declared.append(
            KernelDeclaration(
                entry["name"],
                tuple(_parameter(p) for p in (entry["parameters"] or "").split(",") if p.strip()),
                _laid_out(list(sizes.values())),
                _max_threads(entry["directives"]),
            )
        )
    return declared


def variables(text: str) -> list[Variable]:
    """The variables of a module in global and constant memory."""
    return [
        Variable(v["name"], _initial_bytes(v["type"], v["count"], v["values"]))
        for v in _VARIABLE.finditer(_without_comments(text))
    ]


_ENTRY = re.compile(
    r"\.entry\s+(?P<name>[\w$]+)\s*(\((?P<parameters>[^)]*)\))?(?P<directives>[^{]*)\{"
)
_SHARED = re.compile(
    r"\.shared\s+(\.align\s+(?P<alignment>\d+)\s+)?\.(?P<type>[busf]\d+)\s+"
    r"(?P<name>[\w$]+)\s*(\[(?P<count>\d+)\])?\s*;"
)
_VARIABLE = re.compile(
    r"^[^\S\n]*(\.(visible|weak|common)\s+)?\.(global|const)\s+(\.align\s+\d+\s+)?"
    r"\.(?P<type>[busf]\d+)\s+(?P<name>[\w$]+)\s*(\[(?P<count>\d+)\])?\s*"
    r"(=\s*(?P<values>\{[^}]*\}|[^;]*))?;",
    re.MULTILINE,
)
_PARAMETER = re.compile(
    r"\.param\s+(\.align\s+(?P<alignment>\d+)\s+)?\.(?P<type>[busf]\d+)\s+"
    r"(\.ptr\s*(\.(global|shared|const|local)\s*)?(\.align\s+\d+\s+)?)?"
    r"(?P<name>[\w$]+)\s*(\[(?P<count>\d+)\])?\s*$"
)


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL)


def _first_body(text: str) -> int:
    found = _ENTRY.search(text)
    return len(text) if found is None else found.start()


def _width(kind: str) -> int:
    return int(kind[1:]) // 8


def _parameter(text: str) -> Parameter:
    found = _PARAMETER.match(text.strip())
    if found is None:
        raise ValueError(f"not understood as a parameter: {text.strip()!r}")
    width = _width(found["type"])
    return Parameter(width * int(found["count"] or 1), int(found["alignment"] or width))


def _shared_variables(text: str) -> dict[str, tuple[int, int]]:
    """For each the bytes that it takes and its alignment."""
    return {
        v["name"]: (
            _width(v["type"]) * int(v["count"] or 1),
            int(v["alignment"] or _width(v["type"])),
        )
        for v in _SHARED.finditer(text)
    }


def _laid_out(sizes: list[tuple[int, int]]) -> int:
    """The bytes of variables one after the other."""
    end = 0
    for size, alignment in sizes:
        end = -(-end // alignment) * alignment + size
    return end


def _max_threads(directives: str) -> int:
    found = re.search(
        r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives
    )
    if found is None:
        return 1024
    x, y, z = (int(value or 1) for value in found.groups())
    return x * y * z


def _initial_bytes(kind: str, count: str | None, values: str | None) -> bytes:
    width = _width(kind)
    size = width * int(count or 1)
    words = re.split(r"[,\s]+", (values or "").strip("{} \t\n"))
    return b"".join(_number(word, width) for word in words if word).ljust(size, b"\0")


def _number(word: str, width: int) -> bytes:
    """The bytes of a number in PTX: 0f and 0d are floats by their bits."""
    if word[:2].lower() in ("0f", "0d"):
        return int(word[2:], 16).to_bytes(width, "little")
    if "." in word:
        return struct.pack("<d" if width == 8 else "<f", float(word))
    return (int(word.rstrip("U"), 0) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
