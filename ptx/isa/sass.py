"""The machine code (SASS) that ptxas has made of a kernel, loop by loop."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import re
import subprocess
import tempfile
from typing import Any

from ptx.isa.assembler import cubin, find_tool
from ptx.isa.targets import Target, as_target

__all__ = ["Instruction", "Loop", "Sass", "disassemble", "find_nvdisasm", "opcode"]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of the machine code, with what ptxas tells the scheduler about it.

    Attributes:
      text: the instruction as nvdisasm prints it.
      line: the line of the PTX text that it comes from; 0 where ptxas does not say.
      target: the instruction that it branches to, counted from the beginning of the kernel; None
        for one that does not branch.
      stall: cycles that the warp waits before its next instruction.
      write_barrier: the counter that is held until the result is written; None for no counter.
      read_barrier: the counter that is held until the operands are read; None for no counter.
      wait: the counters that must be free before it issues.

    Source: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018,
      section 2, for the fields of the 128 bits.
    """

    text: str
    line: int = 0
    target: int | None = None
    stall: int = 0
    write_barrier: int | None = None
    read_barrier: int | None = None
    wait: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of the machine code.

    Attributes:
      first, last: its first and last instruction, counted from the beginning of the kernel.
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
      instructions: all instructions, in the order of the code.
      loops: the loops, in the order in which they begin, the outer first.
    """

    instructions: tuple[Instruction, ...]
    loops: tuple[Loop, ...]

    @property
    def straight(self) -> tuple[str, ...]:
        """The instructions outside of loops."""
        inside = {i for loop in self.loops for i in range(loop.first, loop.last + 1)}
        return tuple(s.text for i, s in enumerate(self.instructions) if i not in inside)


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
    """The opcode of an instruction, without its predicate, such as "LDG.E.128.CONSTANT"."""
    return re.sub(r"^@!?U?P[T\d]+\s+", "", instruction).split()[0]


def parse(printed: str) -> Sass:
    """Reads what `nvdisasm -c -hex -gp` prints of one kernel. See `disassemble`."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    line = 0
    for printed_line in printed.splitlines():
        if label := re.match(r"(\.L_\w+):", printed_line):
            labels[label[1]] = len(code)
        elif found := re.search(r'//## File "\.nv_debug_ptx_txt", line (\d+)', printed_line):
            line = int(found[1])
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", printed_line):
            code.append(Instruction(found[1], line))
        elif found := re.fullmatch(r"\s*/\* (0x[0-9a-f]{16}) \*/", printed_line):
            code[-1] = dataclasses.replace(code[-1], **_control(int(found[1], 16)))
    code = [dataclasses.replace(i, target=_target(i.text, labels)) for i in code]
    if padding := [n for n, i in enumerate(code) if i.target == n]:
        # After the end of a kernel come a branch to itself and no-ops.
        del code[padding[-1] :]
    instructions = [i.text for i in code]
    targets = [i.target for i in code]

    # What ptxas moves behind the end, such as shuffles of warps that have parted, comes back by a
    # branch that is no loop's.
    ends = [n for n, instruction in enumerate(instructions) if instruction == "EXIT"]
    back = {(to, i) for i, to in enumerate(targets) if to is not None and to <= i}
    spans = sorted(span for span in back if not any(span[0] <= end < span[1] for end in ends))
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
    return Sass(tuple(code), tuple(loops))


_WHEEL = "nvidia-cuda-nvdisasm"
_TENSOR = ("HMMA", "DMMA")
_NO_BARRIER = 7


@functools.lru_cache(maxsize=64)
def _printed(nvdisasm: pathlib.Path, text: str, target: Target) -> str:
    with tempfile.TemporaryDirectory(prefix="ptx-") as folder:
        file = pathlib.Path(folder) / "kernel.cubin"
        file.write_bytes(cubin(text, target, lines=True))
        ran = subprocess.run([nvdisasm, "-c", "-hex", "-gp", file], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"nvdisasm fails: {ran.stderr.strip()}")
    return ran.stdout


def _control(upper: int) -> dict[str, Any]:
    """What the upper 64 bits of an instruction say to the scheduler."""
    write, read = upper >> 46 & 7, upper >> 49 & 7
    return {
        "stall": upper >> 41 & 15,
        "write_barrier": None if write == _NO_BARRIER else write,
        "read_barrier": None if read == _NO_BARRIER else read,
        "wait": tuple(n for n in range(6) if upper >> 52 + n & 1),
    }


def _target(instruction: str, labels: dict[str, int]) -> int | None:
    """Where a branch goes; None for any other instruction.

    ptxas also branches by calls that never return.
    """
    found = re.search(r"\b(?:BRA|CALL\.REL\.NOINC)\b.*?(\.L_\w+)", instruction)
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
