"""What ptxas has made of a kernel: its machine code (SASS), loop by loop."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import re
import subprocess
import tempfile

from ptx.isa.assembler import cubin, find_tool
from ptx.isa.targets import Target, as_target

__all__ = ["Loop", "Sass", "disassemble", "find_nvdisasm", "opcode"]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of the machine code.

    Attributes:
      first, last: of its instructions, counted from the beginning of the kernel.
      depth: 0 for one that no other loop contains.
      own: its instructions, but for those of the loops inside it.
      rare: those of them that a warp skips unless one of its threads votes to execute them
        (`VOTE.ANY`, and a branch on it): the case that hardly any warp has.
      has_tensor: whether it, or a loop inside it, multiplies on tensor cores.
    """

    first: int
    last: int
    depth: int
    own: tuple[str, ...]
    rare: tuple[str, ...]
    has_tensor: bool

    def count(self, *prefixes: str) -> int:
        """How many of its own instructions have an opcode that begins so."""
        return sum(opcode(i).startswith(prefixes) for i in self.own)

    @property
    def opcodes(self) -> dict[str, int]:
        """How many there are of each of its own opcodes, the most frequent first."""
        return dict(collections.Counter(opcode(i) for i in self.own).most_common())


@dataclasses.dataclass(frozen=True)
class Sass:
    """The machine code of one kernel.

    Attributes:
      instructions: as nvdisasm prints them.
      loops: in the order in which they begin, the outer first.
    """

    instructions: tuple[str, ...]
    loops: tuple[Loop, ...]

    @property
    def main_loop(self) -> Loop:
        """The innermost loop with tensor-core instructions.

        Raises:
          ValueError: there is none, or more than one.
        """
        found = [loop for loop in self.loops if loop.count(*_TENSOR)]
        if len(found) != 1:
            raise ValueError(f"one loop with tensor-core instructions is expected, got {found}")
        return found[0]

    @property
    def straight(self) -> tuple[str, ...]:
        """The instructions outside of loops."""
        inside = {i for loop in self.loops for i in range(loop.first, loop.last + 1)}
        return tuple(s for i, s in enumerate(self.instructions) if i not in inside)


def disassemble(text: str, target: Target | str) -> Sass:
    """Assembles a PTX text that has one kernel, and reads the machine code.

    Raises:
      AssemblyError: ptxas rejects the text.
      ToolNotFoundError: there is no ptxas here, or no nvdisasm.
      ValueError: loops that are not nested.

    Source: CUDA Binary Utilities, "nvdisasm".
    """
    target = as_target(target)
    return parse(_printed(find_nvdisasm(), text, target))


def find_nvdisasm() -> pathlib.Path:
    """The nvdisasm on PATH, else the one of an installed wheel; raises as `find_tool`."""
    return find_tool("nvdisasm", [_WHEEL])


def opcode(instruction: str) -> str:
    """Of an instruction, without its predicate: "LDG.E.128.CONSTANT" for example."""
    return re.sub(r"^@!?U?P[T\d]+\s+", "", instruction).split()[0]


def parse(printed: str) -> Sass:
    """Reads what `nvdisasm -c` prints of one kernel. See `disassemble`."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in printed.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            instructions.append(found[1])
    targets = [_target(instruction, labels) for instruction in instructions]
    if padding := [i for i, target in enumerate(targets) if target == i]:
        # After the end of a kernel come a branch to itself and no-ops.
        del instructions[padding[-1] :], targets[padding[-1] :]

    spans = sorted({(to, i) for i, to in enumerate(targets) if to is not None and to <= i})
    for first, last in spans:
        if any(first < other <= last < end for other, end in spans):
            raise ValueError(f"the loop at {first} to {last} is cut by another: {spans}")
    rare = _behind_votes(instructions, targets)
    loops = []
    for first, last in sorted(spans, key=lambda span: (span[0], -span[1])):
        inner = [s for s in spans if first <= s[0] and s[1] <= last and s != (first, last)]
        own = set(range(first, last + 1)).difference(*(range(a, b + 1) for a, b in inner))
        loops.append(
            Loop(
                first=first,
                last=last,
                depth=sum(a <= first and last <= b for a, b in spans) - 1,
                own=tuple(instructions[i] for i in sorted(own)),
                rare=tuple(instructions[i] for i in sorted(own & rare)),
                has_tensor=any(
                    opcode(i).startswith(_TENSOR) for i in instructions[first : last + 1]
                ),
            )
        )
    return Sass(tuple(instructions), tuple(loops))


_WHEEL = "nvidia-cuda-nvdisasm"
_TENSOR = ("HMMA", "DMMA")


@functools.lru_cache(maxsize=64)
def _printed(nvdisasm: pathlib.Path, text: str, target: Target) -> str:
    with tempfile.TemporaryDirectory(prefix="ptx-") as folder:
        file = pathlib.Path(folder) / "kernel.cubin"
        file.write_bytes(cubin(text, target))
        ran = subprocess.run([nvdisasm, "-c", file], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"nvdisasm fails: {ran.stderr.strip()}")
    return ran.stdout


def _target(instruction: str, labels: dict[str, int]) -> int | None:
    """Where a branch goes; None for any other instruction."""
    found = re.search(r"\bBRA\b.*?(\.L_\w+)", instruction)
    return labels.get(found[1]) if found else None


def _behind_votes(instructions: list[str], targets: list[int | None]) -> set[int]:
    """Instructions between a branch that a vote decides, and where it goes."""
    behind: set[int] = set()
    votes: set[str] = set()  # predicates that hold the result of one
    for i, (instruction, target) in enumerate(zip(instructions, targets, strict=True)):
        if vote := re.search(r"\bVOTE\.ANY (P\d)", instruction):
            votes.add(vote[1])
            continue
        guard = re.match(r"@!(P\d)\s", instruction)
        if target is not None and target > i and guard and guard[1] in votes:
            behind.update(range(i + 1, target))
        elif written := re.match(r"(?:@\S+\s+)?\S*(?:SETP|LOP3|R2P|PLOP3)\S*\s+(P\d)", instruction):
            votes.discard(written[1])
    return behind
