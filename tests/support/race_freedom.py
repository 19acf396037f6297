"""Proofs over all schedules: sentryward, an independent static verifier, on one launch of a kernel.

It follows programs whose control and whose addresses depend on nothing but the launch, and
addresses that are sums of a pointer and of products of 64 bits. `with_plain_addresses` writes the
same program so. Where something depends on data, `with_more_accesses` writes a program that makes
every access that the first one makes, and more: if it is free of races, so is the first one.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock

import ptx.emulator
from ptx.emulator import Buffer, Report
from ptx.launch import entry_name

__all__ = ["Call", "Launched", "launched", "verdict", "with_more_accesses", "with_plain_addresses"]

SECONDS = 100  # for one proof


class Call(Protocol):
    """A call of a kernel with operands, which the emulator can run."""

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        ...

    def run(self, text: str) -> Report:
        """Runs a text in place of the kernel's; raises if the results are wrong."""
        ...


class Launched(NamedTuple):
    """What the emulator was asked to launch; arguments are buffers and numbers."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Sequence[Any]
    dynamic_shared: int


def launched(call: Call, text: str) -> Launched:
    """Runs a text in the emulator, where it has to solve the call; how that launched it."""
    found: list[Launched] = []
    emulate = ptx.emulator.launch

    def launch(text: str, grid: Any, block: Any, arguments: Any, **options: Any) -> Report:
        found.append(Launched(grid, block, arguments, options["dynamic_shared"]))
        return emulate(text, grid, block, arguments, **options)

    with mock.patch.object(ptx.emulator, "launch", launch):
        call.run(text)
    (only,) = found
    return only


def verdict(text: str, how: Launched, folder: Path) -> str:
    """What sentryward finds in a launch of a text; pointers are taken to be to distinct arrays."""
    import sentryward  # on Linux on x86-64 alone

    parameters = re.findall(r"\.param \.(\w+) (\w+)", text)
    values = [
        {"parameter": name, "type": dtype, "value": int(value)}
        for (dtype, name), value in zip(parameters, how.arguments, strict=True)
        if not isinstance(value, Buffer)
    ]
    configuration = {
        "schema": "spverify.kernel-input/v1",
        "entry": entry_name(text),
        "launch": {
            "grid_dim": list(how.grid),
            "block_dim": list(how.block),
            "cluster_dim": [1, 1, 1],
            "dynamic_shared_bytes": how.dynamic_shared,
        },
        "arguments": values,
    }
    (folder / "kernel.ptx").write_text(text)
    (folder / "input.json").write_text(json.dumps(configuration))
    result = sentryward.verify(
        folder / "kernel.ptx", input=folder / "input.json", timeout_seconds=SECONDS
    )
    if result["result"] in ("race_free", "potential_race"):
        return result["result"]
    codes = [diagnostic["code"] for diagnostic in result["diagnostics"]]
    return ": ".join([result["result"], ", ".join(codes)])


# ---- the same program

_PRODUCT = re.compile(
    r"(mul|mad)\.(wide\.[su]32|lo\.[su]64)\s+(\S+), (\S+), ([^\s,;]+)(?:, (\S+))?;"
)


def with_plain_addresses(text: str) -> str:
    """Each product of 64 bits as conversions, a product of two such numbers and a sum."""
    count = 0

    def plain(match: re.Match[str]) -> str:
        nonlocal count
        name, kind, result, *factors, summand = match.groups()
        lines = []
        if kind.startswith("wide"):
            sign = kind[5]
            for index, factor in enumerate(factors):
                if factor.startswith("%"):
                    factors[index] = f"%factor{count}"
                    lines.append(f"cvt.{sign}64.{sign}32 %factor{count}, {factor};")
                    count += 1
        product = f"%factor{count}" if name == "mad" else result
        lines.append(f"mul.lo.u64 {product}, {', '.join(factors)};")
        if name == "mad":
            lines.append(f"add.s64 {result}, {product}, {summand};")
        count += 1
        return "\n    ".join(lines)

    text = _PRODUCT.sub(plain, text)
    return text.replace("{\n", f"{{\n    .reg .b64 %factor<{count + 1}>;\n", 1)


# ---- a program that does more

_INSTRUCTION = re.compile(
    r"\s*(?:@!?(?P<guard>%\w+)\s+)?(?P<name>[a-z][\w.:]*)\s*(?P<operands>.*);"
)
_REGISTER = re.compile(r"%\w+")
_SYNCHRONISATION = ("bar", "barrier", "cp.async.commit_group", "cp.async.wait_group")


class _Instruction(NamedTuple):
    guard: str
    name: str
    results: list[str]
    sources: list[str]


def _parse(line: str) -> _Instruction | None:
    found = _INSTRUCTION.fullmatch(line.partition("//")[0].rstrip())
    if found is None:
        return None
    name, operands = found["name"], found["operands"]
    if name.startswith(("st.", "red.", "cp.", "bra", "bar", "ret")):
        return _Instruction(found["guard"] or "", name, [], _REGISTER.findall(operands))
    first = re.match(r"\{[^}]*\}|[^,]*", operands)
    assert first is not None
    results = _REGISTER.findall(first[0])
    return _Instruction(
        found["guard"] or "", name, results, _REGISTER.findall(operands[first.end() :])
    )


def with_more_accesses(text: str) -> str:
    """A text that makes every access of another one, in the same order, and more.

    What depends on what was loaded is done in any case: guarded loads, copies of fewer bytes than
    there is room for, and branches over code that does not synchronise. A loop that runs as often
    as data says runs once, as no other thread sees what it does. Two kinds of accesses cannot
    race, and are replaced or left out: of an array that the kernel only reads, the first element
    is read instead of one that depends on data; and atomic additions to an array that nothing else
    touches. What the text computes has no meaning.

    Raises:
      ValueError: something depends on data in another way.
    """
    lines = text.split("\n")
    unknown, bases = _dependent_on_data(lines), _bases(lines)
    labels = {line.strip()[:-1]: number for number, line in enumerate(lines) if _is_label(line)}
    accessed = collections.defaultdict(set)
    for line, instruction in _instructions(lines):
        if re.match(r"(ld|st|red|atom)\.global|cp\.async\.c[ag]", instruction.name):
            accessed[_base(line, bases)].add(instruction.name.split(".")[0])
    result = lines.copy()
    for number, line in enumerate(lines):
        instruction = _parse(line)
        if instruction is None:
            continue
        name, guarded = instruction.name, instruction.guard in unknown
        if name == "bra" and guarded:
            target = labels[_target(line)]
            _check_branch(lines[min(number, target) : max(number, target)], loop=target < number)
            line = ""
        elif name.startswith("red.global.add."):
            if accessed[_base(line, bases)] != {"red"}:
                raise ValueError(f"an array is touched by more than atomic additions: {line}")
            line = ""
        elif name.startswith("ld.global.nc."):
            if guarded:
                line = line.replace(line[: line.index("ld.")], "")
            if unknown.intersection(instruction.sources):
                line = re.sub(r"\[.*\]", f"[{_base(line, bases)}]", line)
        elif ".shared.global" in name and instruction.sources[-1] in unknown:
            line = re.sub(r", %\w+;", ";", line)
        result[number] = line
    return "\n".join(result)


def _check_branch(skipped: Sequence[str], loop: bool) -> None:
    """Raises ValueError if code may not be run once, whether or not it would have been."""
    for line, instruction in _instructions(skipped):
        shared = re.match(r"st|red|cp|ld\.shared|ldmatrix", instruction.name)
        if instruction.name.startswith(_SYNCHRONISATION) or (loop and shared):
            raise ValueError(f"data decides whether this runs: {line}")


def _is_label(line: str) -> bool:
    return re.fullmatch(r"\s*\$\w+:", line) is not None


def _dependent_on_data(lines: Sequence[str]) -> set[str]:
    """Registers whose values depend on what is loaded."""
    unknown: set[str] = set()
    known = -1
    while known != len(unknown):
        known = len(unknown)
        region = ""  # the label where code ends that a branch on data leads over
        for line in lines:
            if _is_label(line) and line.strip()[:-1] == region:
                region = ""
            instruction = _parse(line)
            if instruction is None:
                continue
            loads = re.match(r"ld\.(global|shared)|ldmatrix|vote|shfl|mma", instruction.name)
            if instruction.name == "bra" and instruction.guard in unknown and not region:
                region = _target(line)
            used = {instruction.guard, *instruction.sources}
            if loads or region or used & unknown:
                unknown.update(instruction.results)
    return unknown


def _bases(lines: Sequence[str]) -> dict[str, str]:
    """The pointer that each register of an address is a sum with."""
    bases: dict[str, str] = {}
    for _, instruction in _instructions(lines):
        if instruction.name.startswith("cvta."):
            bases[instruction.results[0]] = instruction.results[0]
        elif instruction.name.startswith(("add.", "selp.", "mov.")):
            for source in instruction.sources:
                if source in bases:
                    bases[instruction.results[0]] = bases[source]
    return bases


def _base(line: str, bases: Mapping[str, str]) -> str:
    """The pointer of the array in global memory that an instruction accesses."""
    (base,) = {bases[r] for r in re.findall(r"\[(%\w+)", line) if r in bases}
    return base


def _target(line: str) -> str:
    """The label that a branch leads to."""
    return line.split()[-1].rstrip(";")


def _instructions(lines: Sequence[str]) -> Iterator[tuple[str, _Instruction]]:
    yield from ((line, i) for line in lines if (i := _parse(line)) is not None)
