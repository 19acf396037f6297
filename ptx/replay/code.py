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

__all__ = ["ACCESSES", "Code", "Kind", "Pipe", "Step", "compile_code"]


class Kind(enum.Enum):
    """The effect of an instruction, besides its arithmetic."""

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
    """The unit that executes an instruction; each of the SM's four parts has all but the last."""

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
      kind, pipe: its effect, and the unit that executes it.
      opcode: its opcode.
      line: its line in the PTX text.
      stall, write_barrier, read_barrier, wait: see `Instruction`; -1 for no counter.
      target: the number of the instruction that a branch goes to; -1 for none.
      conditional: whether a branch, or the end, is for some lanes only.
      inverted: whether the branch goes where the PTX text's does not.
      skips: whether the branch is around an instruction that the PTX text only has a predicate for.
      counted: whether this is the first instruction of its line, which counts the visits to it.
      pending: how many groups of copies may be unfinished after a `DEPBAR`.
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
      access_lines: lines that access memory here too.
    """

    steps: tuple[Step, ...]
    branch_lines: frozenset[int]
    access_lines: frozenset[int]


def compile_code(text: str, target: Target) -> Code:
    """Reads the machine code that ptxas makes of a PTX text with one kernel."""
    instructions = _without_slow_paths(disassemble(text, target).instructions)
    branches = _Branches(load(text, None), instructions)
    steps = tuple(_step(i, n, branches) for n, i in enumerate(instructions))
    return Code(
        steps,
        frozenset(s.line for s in steps if s.conditional and not s.skips),
        frozenset(s.line for s in steps if s.kind in ACCESSES),
    )


# Of a branch, or the end, for some lanes only: `@P0 BRA`, `BRA.U !UP1`.
_CONDITION = re.compile(r"@|\S+ !?U?P\d")


def _without_slow_paths(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The same, without the subroutines that ptxas calls for rare operands.

    Of a division, for example, these are operands of extreme magnitude; of a shuffle, warps whose
    lanes have parted, which no kernel's have where it shuffles. The PTX text has one
    instruction for it, and a trace does not say which way it went: the usual one. A call of a label
    in the kernel is a branch like others.
    """
    found = list(instructions)

    def calls(number: int) -> bool:
        for instruction in instructions[number:]:
            name = opcode(instruction.text)
            if instruction.target is not None or name == "EXIT":
                return False
            if name.startswith("CALL"):
                return True
        return False

    for number, instruction in enumerate(instructions):
        if instruction.target is None or not instruction.text.startswith(("@", "BRA.DIV")):
            continue
        if calls(instruction.target):
            found[number] = dataclasses.replace(instruction, text="NOP", target=None)
        elif calls(number + 1):
            always = instruction.text.partition(" ")[2]
            found[number] = dataclasses.replace(instruction, text=always)
    reached, to_visit = set[int](), [0]
    while to_visit:
        number = to_visit.pop()
        if number in reached or number >= len(found):
            continue
        reached.add(number)
        instruction = found[number]
        if instruction.target is not None:
            to_visit.append(instruction.target)
        ends = instruction.target is not None or opcode(instruction.text) == "EXIT"
        if not ends or _CONDITION.match(instruction.text):
            to_visit.append(number + 1)
    return [
        i if number in reached else dataclasses.replace(i, text="NOP", target=None)
        for number, i in enumerate(found)
    ]


_PIPES = {
    Pipe.FMA: "FFMA FMUL FADD FFMA2 FMUL2 FADD2",
    Pipe.HALF: "HFMA2 HADD2 HMUL2 HSETP2 HMNMX2",
    Pipe.IMAD: "IMAD IDP IMUL",
    Pipe.DOUBLE: "DFMA DADD DMUL DSETP DMNMX",
    Pipe.TENSOR: "HMMA DMMA IMMA",
    Pipe.SPECIAL: "MUFU F2I I2F F2F FRND POPC FLO BREV",
    Pipe.ALU: (
        "IADD3 IADD LOP3 LOP SHF SHL SHR LEA ISETP FSETP SEL FSEL PRMT FMNMX IMNMX MOV VIADD "
        "VIMNMX VIADDMNMX PLOP3 R2P P2R BMSK SGXT IABS F2FP CS2R VOTE FCHK I2FP F2IP I2IP FMNMX3 "
        "FSET"
    ),
    Pipe.MEMORY: (
        "S2R SHFL LDC LDCU S2UR MATCH REDUX LDS STS LDSM ATOMS LDG STG RED REDG ATOMG LDGSTS "
        "LDL STL"
    ),
    Pipe.NONE: ("BRA BSSY BSYNC EXIT NOP WARPSYNC BREAK DEPBAR BAR LDGDEPBAR R2UR YIELD BMOV"),
}
_KINDS = {
    Kind.SHARED: "LDS STS LDSM ATOMS",
    Kind.LOAD: "LDG",
    Kind.STORE: "STG",
    Kind.ADD: "RED REDG ATOMG",
    Kind.COPY: "LDGSTS",
    Kind.COMMIT: "LDGDEPBAR",
    Kind.WAIT: "DEPBAR",
    Kind.BARRIER: "BAR",
    Kind.EXIT: "EXIT",
}
_PIPE_OF = {name: pipe for pipe, names in _PIPES.items() for name in names.split()}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}

ACCESSES = frozenset({Kind.SHARED, Kind.LOAD, Kind.STORE, Kind.ADD, Kind.COPY})


def _step(instruction: Instruction, number: int, branches: _Branches) -> Step:
    name = opcode(instruction.text)
    base = name.partition(".")[0]
    kind, pipe = _KIND_OF.get(base, Kind.OTHER), _PIPE_OF.get(base)
    if instruction.target is not None:
        kind, pipe = Kind.BRANCH, Pipe.NONE
    elif pipe is None and base.startswith("U"):
        pipe = Pipe.UNIFORM
    elif pipe is None:
        raise ValueError(f"the model does not know the instruction {instruction.text}")
    ends_block = kind in (Kind.BRANCH, Kind.EXIT)
    conditional = ends_block and bool(_CONDITION.match(instruction.text))
    line = branches.line_of(number) if conditional else instruction.line
    skips = conditional and line not in branches.lines
    pending = instruction.text.split(",")[1].split()[0] if kind is Kind.WAIT else "0"
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
        inverted=conditional and not skips and branches.is_inverted(number, line),
        skips=skips,
        counted=ends_block or instruction.line not in branches.skipped_lines,
        pending=int(pending, 16),
        products=_products(name) if pipe is Pipe.TENSOR else 0.0,
    )


def _products(name: str) -> float:
    """Multiplications of halves that take as long as an instruction of the tensor cores."""
    for shape, products in _PRODUCTS.items():
        if name.startswith(shape):
            return products * (2 if "TF32" in name else 1)
    raise ValueError(f"the model does not know the instruction {name}")


_PRODUCTS = {
    "HMMA.16816": 2048,
    "HMMA.1688": 1024,
    "HMMA.1684": 512,
    "DMMA.8x8x4": 4 * 256,
    "DMMA.16x8x4": 4 * 512,
    "DMMA.16x8x8": 4 * 1024,
    "DMMA.16x8x16": 4 * 2048,
}


class _Branches:
    """The branches of the PTX text, and which way of each is which in the machine code.

    Attributes:
      lines: lines of the PTX text that are branches, or ends of some threads.
      skipped_lines: lines whose instruction ptxas has put a branch around.
    """

    def __init__(self, program: Program, instructions: Sequence[Instruction]):
        self._instructions = instructions
        source = program.source.instructions
        self._blocks = program.blocks
        self._block_lines = [[i.line for i in source[b.start : b.stop]] for b in program.blocks]
        self._block_of = {
            line: number for number, lines in enumerate(self._block_lines) for line in lines
        }
        self.lines = {
            lines[-1]
            for block, lines in zip(program.blocks, self._block_lines, strict=True)
            if lines and block.target is not None
        }
        guarded = [(i.line, i.guard.index) for i in source if i.guard]
        self._guarded_lines = {line for line, _ in guarded} - self.lines
        # What writes the predicate of one branch alone -> the branch.
        guards = collections.Counter(register for _, register in guarded)
        deciding = {register: line for line, register in guarded if line in self.lines}
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
        self.skipped_lines = {
            i.line
            for i in instructions
            if (i.target is not None or opcode(i.text) == "EXIT") and i.line in self._guarded_lines
        }

    def line_of(self, number: int) -> int:
        """The line of the PTX text's branch, or of the instruction with a predicate.

        The machine code may name what makes the branch's predicate, or some line before it.
        """
        instruction = self._instructions[number]
        line = self._deciding.get(instruction.line, instruction.line)
        if line in self.lines or line in self._guarded_lines:
            return line
        back = instruction.target is not None and instruction.target <= number
        later = [n for n in self.lines - self._named if n > line and self._goes_back(n) == back]
        found = min(later, default=line)
        self._named.add(found)  # others come in the same order
        return found

    def _goes_back(self, line: int) -> bool:
        number = self._block_of[line]
        target = self._blocks[number].target
        return target is not None and target <= number

    def is_inverted(self, number: int, line: int) -> bool:
        """Whether the machine code jumps where the branch of a line goes on."""
        instruction = self._instructions[number]
        own = self._block_of[line]
        target = self._blocks[own].target
        assert target is not None, instruction
        back = self._goes_back(line)
        if instruction.target is not None and instruction.target <= number:
            return not back  # a loop goes on
        if back:
            return True  # a loop ends
        # What the text jumps over, and what comes after it.
        over = set[int]().union(*self._block_lines[own + 1 : target])
        after = set[int]().union(*self._block_lines[target:])
        jumped = set() if instruction.target is None else self._way(instruction.target)
        not_jumped = self._way(number + 1)
        same = len(jumped & after) + len(not_jumped & over)
        other = len(jumped & over) + len(not_jumped & after)
        if same == other:
            raise ValueError(f"which way goes {instruction}? {same}")
        return other > same

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
