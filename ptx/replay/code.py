"""The machine code of a kernel, as a simulated SM runs it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import re
from collections.abc import Sequence

from ptx.emulator.program import Program, load
from ptx.emulator.syntax import Register
from ptx.isa.sass import Instruction, disassemble, opcode
from ptx.isa.targets import Target

__all__ = ["Code", "Kind", "Pipe", "Step", "compile_code"]


class Kind(enum.Enum):
    """What an instruction does besides its arithmetic."""

    OTHER = enum.auto()
    SHARED = enum.auto()  # memory, loaded, stored or both
    LOAD = enum.auto()
    STORE = enum.auto()
    ADD = enum.auto()  # atomically, to global memory
    COPY = enum.auto()  # from global to shared memory, asynchronously
    COMMIT = enum.auto()  # the copies so far are a group
    WAIT = enum.auto()  # for groups of copies
    BARRIER = enum.auto()
    BRANCH = enum.auto()
    EXIT = enum.auto()


class Pipe(enum.IntEnum):
    """What executes an instruction. Each of the SM's four parts has one of each but the last."""

    NONE = 0  # only the issue slot
    FMA = 1  # 32-bit floating-point arithmetic
    IMAD = 2  # integer multiplication, and moves that are made of it; a half of FMA
    ALU = 3  # integers, bits, comparisons
    HALF = 4
    UNIFORM = 5
    SPECIAL = 6  # conversions, reciprocals
    DOUBLE = 7
    TENSOR = 8
    MEMORY = 9  # the queue to the unit that all four parts share


@dataclasses.dataclass(frozen=True)
class Step:
    """An instruction.

    Attributes:
      kind, pipe: what it is.
      opcode: of the instruction.
      line: of the PTX text.
      stall, write_barrier, read_barrier, wait: see `Instruction`; -1 for no counter.
      target: of a branch.
      inverted: whether the branch goes where the PTX text's does not.
      skips: whether the branch is around an instruction that the PTX text only has a predicate for.
      counted: whether this is the first instruction of its line, which counts the visits to it.
      pending: of `DEPBAR`, how many groups of copies may not be done yet.
      products: multiplications on tensor cores, of a warp and of halves; half as many of TF32
        take as long, and a quarter of f64.
    """

    kind: Kind
    pipe: Pipe
    opcode: str
    line: int
    stall: int
    write_barrier: int
    read_barrier: int
    wait: tuple[int, ...]
    target: int = -1
    conditional: bool = False
    inverted: bool = False
    skips: bool = False
    counted: bool = True
    pending: int = 0
    products: float = 0.0


@dataclasses.dataclass(frozen=True)
class Code:
    """A kernel's machine code.

    Attributes:
      steps: its instructions.
      branch_lines: lines of the PTX text that branch here too.
      access_lines: those that access memory here too.
    """

    steps: tuple[Step, ...]
    branch_lines: frozenset[int]
    access_lines: frozenset[int]


def compile_code(text: str, target: Target) -> Code:
    """Reads the machine code that ptxas makes of a PTX text with one kernel."""
    instructions = disassemble(text, target).instructions
    ways = _Ways(load(text, None), instructions)
    steps = tuple(_step(i, n, ways) for n, i in enumerate(instructions))
    return Code(
        steps,
        frozenset(s.line for s in steps if s.conditional and not s.skips),
        frozenset(s.line for s in steps if s.kind in _MEMORY.values()),
    )


_PIPES: tuple[tuple[Pipe, tuple[str, ...]], ...] = (
    (Pipe.FMA, ("FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2")),
    (Pipe.HALF, ("HFMA2", "HADD2", "HMUL2", "HSETP2", "HMNMX2")),
    (Pipe.IMAD, ("IMAD", "IDP", "IMUL")),
    (Pipe.DOUBLE, ("DFMA", "DADD", "DMUL", "DSETP", "DMNMX")),
    (Pipe.TENSOR, ("HMMA", "DMMA", "IMMA")),
    (Pipe.SPECIAL, ("MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "FLO", "BREV")),
    (
        Pipe.ALU,
        (
            "IADD3", "IADD", "LOP3", "LOP", "SHF", "SHL", "SHR", "LEA", "ISETP", "FSETP", "SEL",
            "FSEL", "PRMT", "FMNMX", "IMNMX", "MOV", "VIADD", "VIMNMX", "VIADDMNMX", "PLOP3",
            "R2P", "P2R", "BMSK", "SGXT", "IABS", "F2FP", "CS2R", "VOTE", "FCHK", "I2FP", "F2IP",
            "I2IP", "FMNMX3", "FSET",
        ),
    ),
    (Pipe.MEMORY, ("S2R", "SHFL", "LDC", "LDCU", "S2UR", "MATCH", "REDUX")),
    (Pipe.NONE, (
        "BRA", "BSSY", "BSYNC", "EXIT", "NOP", "WARPSYNC", "BREAK", "DEPBAR", "BAR", "LDGDEPBAR",
        "R2UR", "YIELD",
    )),
)  # fmt: skip
_PIPE = {name: pipe for pipe, names in _PIPES for name in names}

_MEMORY = {
    "LDS": Kind.SHARED,
    "STS": Kind.SHARED,
    "LDSM": Kind.SHARED,
    "ATOMS": Kind.SHARED,
    "LDG": Kind.LOAD,
    "STG": Kind.STORE,
    "RED": Kind.ADD,
    "REDG": Kind.ADD,
    "ATOMG": Kind.ADD,
    "LDGSTS": Kind.COPY,
}


def _step(instruction: Instruction, number: int, ways: _Ways) -> Step:
    name = opcode(instruction.text)
    base = name.partition(".")[0]
    kind, pipe, pending = Kind.OTHER, Pipe.NONE, 0
    if base in _MEMORY:
        kind, pipe = _MEMORY[base], Pipe.MEMORY
    elif instruction.target is not None:
        kind = Kind.BRANCH
    elif base == "EXIT":
        kind = Kind.EXIT
    elif base == "BAR":
        kind = Kind.BARRIER
    elif base == "LDGDEPBAR":
        kind = Kind.COMMIT
    elif base == "DEPBAR":
        kind = Kind.WAIT
        pending = int(instruction.text.split(",")[1].split()[0], 16)
    elif base in _PIPE:
        pipe = _PIPE[base]
    elif base.startswith("U"):
        pipe = Pipe.UNIFORM
    else:
        raise ValueError(f"the model does not know the instruction {instruction.text}")
    conditional = kind in (Kind.BRANCH, Kind.EXIT) and ways.is_conditional(instruction)
    line = ways.branch_line(number) if conditional else instruction.line
    skips = conditional and not ways.is_branch(line)
    return Step(
        kind=kind,
        pipe=pipe,
        opcode=name,
        line=line,
        stall=max(1, instruction.stall),
        write_barrier=-1 if instruction.write_barrier is None else instruction.write_barrier,
        read_barrier=-1 if instruction.read_barrier is None else instruction.read_barrier,
        wait=instruction.wait,
        target=-1 if instruction.target is None else instruction.target,
        conditional=conditional,
        inverted=conditional and not skips and ways.is_inverted(number, line),
        skips=skips,
        counted=kind in (Kind.BRANCH, Kind.EXIT) or not ways.has_skip(line),
        pending=pending,
        products=_products(name) if pipe is Pipe.TENSOR else 0.0,
    )


def _products(name: str) -> float:
    """Multiplications of halves that take as long as an instruction of the tensor cores."""
    for shape, products in _PRODUCTS.items():
        if name.startswith(shape):
            return products * (2 if "TF32" in name else 1)
    raise ValueError(f"the model does not know the instruction {name}")


_PRODUCTS = {
    "HMMA.16816": 2048, "HMMA.1688": 1024, "HMMA.1684": 512,
    "DMMA.8x8x4": 4 * 256, "DMMA.16x8x4": 4 * 512, "DMMA.16x8x8": 4 * 1024,
    "DMMA.16x8x16": 4 * 2048,
}  # fmt: skip


class _Ways:
    """Which way of a branch in the PTX text is which in the machine code."""

    def __init__(self, program: Program, instructions: Sequence[Instruction]):
        self._instructions = instructions
        self._lines = [i.line for i in program.source.instructions]
        self._blocks = program.blocks
        self._block_of = {
            self._lines[index]: number
            for number, block in enumerate(program.blocks)
            for index in range(block.start, block.stop)
        }
        self._branches = {
            self._lines[block.stop - 1]
            for block in program.blocks
            if block.stop > block.start and block.target is not None
        }
        source = program.source.instructions
        self._guarded = {i.line for i in source if i.guard and i.line not in self._branches}
        # What writes the predicate of one branch alone -> the branch.
        guards = collections.Counter(i.guard.index for i in source if i.guard)
        deciding = {i.guard.index: i.line for i in source if i.guard and i.line in self._branches}
        self._deciding = {
            i.line: deciding[i.operands[0].index]
            for i in source
            if i.operands
            and isinstance(i.operands[0], Register)
            and i.operands[0].index in deciding
            and guards[i.operands[0].index] == 1
        }
        self._named = {
            self._deciding.get(i.line, i.line) for i in instructions if i.target is not None
        }
        self._skips = {
            i.line
            for i in instructions
            if (i.target is not None or opcode(i.text) == "EXIT") and i.line in self._guarded
        }

    def is_conditional(self, instruction: Instruction) -> bool:
        """Whether a branch, or the end, is for some lanes only: `@P0 BRA`, `BRA.U !UP1`."""
        return bool(re.match(r"@|\S+ !?U?P\d", instruction.text))

    def is_branch(self, line: int) -> bool:
        """Whether a line of the PTX text is a branch, or the end of some threads."""
        return line in self._branches

    def branch_line(self, number: int) -> int:
        """The line of the PTX text's branch, or of the instruction with a predicate.

        The machine code may name what makes the branch's predicate, or some line before it.
        """
        instruction = self._instructions[number]
        line = self._deciding.get(instruction.line, instruction.line)
        if line in self._branches or line in self._guarded:
            return line
        back = instruction.target is not None and instruction.target <= number
        later = [n for n in self._branches - self._named if n > line and self._goes_back(n) == back]
        found = min(later, default=line)
        self._named.add(found)  # others come in the same order
        return found

    def _goes_back(self, line: int) -> bool:
        number = self._block_of[line]
        target = self._blocks[number].target
        return target is not None and target <= number

    def has_skip(self, line: int) -> bool:
        """Whether ptxas has put a branch around the instruction of a line."""
        return line in self._skips

    def is_inverted(self, number: int, line: int) -> bool:
        """Whether the machine code jumps where the branch of a line goes on."""
        instruction = self._instructions[number]
        here = self._block_of[line]
        block = self._blocks[here]
        assert block.target is not None, instruction
        back = block.target <= here
        if instruction.target is not None and instruction.target <= number:
            return not back  # a loop goes on
        if back:
            return True  # a loop ends
        # What the text jumps over, and what comes after it.
        over = self._region(here + 1, block.target)
        after = self._region(block.target, len(self._blocks))
        there = set() if instruction.target is None else self._way(instruction.target)
        next_ = self._way(number + 1)
        same = len(there & after) + len(next_ & over)
        other = len(there & over) + len(next_ & after)
        if same == other:
            raise ValueError(f"which way goes {instruction}? {same}")
        return other > same

    def _region(self, first: int, end: int) -> set[int]:
        """The lines of some blocks."""
        return {
            self._lines[index]
            for block in self._blocks[first:end]
            for index in range(block.start, block.stop)
        }

    def _way(self, number: int) -> set[int]:
        """The lines of the instructions from one on, up to a branch.

        Those where warps come together again do not count: they are of the branch before them.
        """
        lines = set()
        for instruction in self._instructions[number:]:
            if opcode(instruction.text) not in ("BSSY", "BSYNC"):
                lines.add(instruction.line)
            if instruction.target is not None:
                break
        return lines
