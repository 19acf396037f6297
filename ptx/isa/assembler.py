"""The assembly of PTX with ptxas, which says what a kernel costs and what a target rejects."""

import dataclasses
import functools
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from ptx.isa.targets import Target, as_target

__all__ = [
    "Assembled",
    "AssemblyError",
    "Diagnostic",
    "ToolNotFoundError",
    "assemble",
    "cubin",
    "find_ptxas",
    "find_tool",
    "ptxas_version",
]


@dataclasses.dataclass(frozen=True)
class Assembled:
    """The report of ptxas on one kernel for one target.

    Attributes:
      kernel: name of the entry function.
      target: the GPU that it was assembled for.
      ptx_version: the text's `.version`, as (major, minor).
      registers: registers of one thread.
      spill_stores: bytes of one thread that registers were too few for, written to memory.
      spill_loads: bytes of one thread that are read back.
      shared_bytes: static shared memory of one block.
      local_bytes: stack frame of one thread.
      constant_bytes: constant banks; some versions of ptxas leave out the parameters.
      barriers: named barriers of one block.
      threads_per_block: the text's `.reqntid` or `.maxntid`; None where it has neither.
      warnings: ptxas's warnings and remarks on performance, those on the whole file included.
    """

    kernel: str
    target: Target
    ptx_version: tuple[int, int]
    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    local_bytes: int
    constant_bytes: int
    barriers: int
    threads_per_block: int | None
    warnings: tuple[str, ...] = ()

    @property
    def spills(self) -> int:
        """Bytes that spilled registers store and load."""
        return self.spill_stores + self.spill_loads

    def blocks_per_sm(self, threads: int | None = None, dynamic_shared: int = 0) -> int:
        """Blocks (CTAs) that one SM holds at the same time.

        Args:
          threads: threads of one block; None takes `threads_per_block`.
          dynamic_shared: bytes of dynamic shared memory of one block.

        Raises:
          ValueError: the number of threads is not known, or is not one that a block can have.

        Source: CUDA C++ programming guide, "Hardware Multithreading"; registers are given out in
        units of 256 to a warp, shared memory in units of 128 bytes (sm_75: 256).
        """
        threads = self.threads_per_block if threads is None else threads
        if threads is None:
            raise ValueError(f"kernel {self.kernel} has no .reqntid or .maxntid: give threads")
        target = self.target
        if not 1 <= threads <= target.threads_per_block:
            most = target.threads_per_block
            raise ValueError(f"a block on {target} has 1 to {most} threads, got {threads=}")
        warps = -(-threads // 32)
        warp_registers = _round_up(32 * self.registers, 256)
        # An SM is four partitions, each with its registers; warps of a block go round them.
        resident_warps = 4 * (target.registers_per_sm // 4 // warp_registers)
        blocks = min(
            target.blocks_per_sm, target.threads_per_sm // (32 * warps), resident_warps // warps
        )
        shared = self.shared_bytes + dynamic_shared
        if shared > target.shared_per_block:
            return 0
        reserved, unit = (1024, 128) if target.sm >= 80 else (0, 256)
        shared = _round_up(shared + reserved, unit)
        return min(blocks, target.shared_per_sm // shared) if shared else blocks


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One complaint of ptxas.

    Attributes:
      message: the words of ptxas.
      line: 1-based line of the PTX text; None where the complaint is about no single line.
      text: the text of that line.
    """

    message: str
    line: int | None = None
    text: str | None = None


class AssemblyError(Exception):
    """ptxas rejects a text.

    The message shows each rejected line of PTX with its number and what ptxas says of it.

    Attributes:
      target: the GPU that it was assembled for.
      diagnostics: ptxas's complaints.
    """

    def __init__(self, target: Target, diagnostics: tuple[Diagnostic, ...]):
        self.target = target
        self.diagnostics = diagnostics
        super().__init__(f"ptxas rejects the PTX for {target}:\n{_show(diagnostics)}")


class ToolNotFoundError(Exception):
    """A program of the CUDA toolkit is missing; the message says how to install it."""


def assemble(text: str, target: Target | str) -> dict[str, Assembled]:
    """Assembles every kernel of a PTX text for one target.

    Args:
      text: PTX.
      target: the GPU, or the name of one of `ptx.TARGETS`.

    Returns:
      The report on each kernel, by its name, in the order of the text.

    Raises:
      AssemblyError: ptxas rejects the text.
      ToolNotFoundError: there is no ptxas here.
      ValueError: no such target, or no kernel in the text.
    """
    target = as_target(target)
    if not _ENTRY.search(_without_comments(text)):
        raise ValueError("the PTX has no kernel: no line with .entry")
    return {kernel.kernel: kernel for kernel in _assemble(find_ptxas(), text, target)}


def cubin(text: str, target: Target, *, lines: bool = False) -> bytes:
    """The machine code of a PTX text for one target, an ELF file.

    Args:
      text: PTX.
      target: the GPU.
      lines: whether the file also says which line of the text each instruction comes from. The
        instructions are the same.

    Raises:
      AssemblyError: ptxas rejects the text.
      ToolNotFoundError: there is no ptxas here.
    """
    return _run(find_ptxas(), text, target, *["-lineinfo"] * lines)[1]


def find_ptxas() -> pathlib.Path:
    """The ptxas on PATH, else the one of an installed wheel; raises as `find_tool`."""
    return find_tool("ptxas", _WHEELS)


def find_tool(name: str, wheels: Sequence[str]) -> pathlib.Path:
    """A program of the CUDA toolkit: the one on PATH, else that of the first wheel that has it.

    Args:
      name: the program's name.
      wheels: names of Python packages.

    Raises:
      ToolNotFoundError: neither has it.
    """
    if on_path := shutil.which(name):
        return pathlib.Path(on_path)
    for wheel in wheels:
        try:
            files = importlib.metadata.files(wheel) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.stem == name and file.parent.name == "bin":
                return pathlib.Path(str(file.locate())).resolve()
    raise ToolNotFoundError(
        f"no {name} on PATH, and none of the wheels {', '.join(wheels)} is here: "
        f"pip install {wheels[0]}"
    )


def ptxas_version() -> str:
    """The version of the ptxas that `assemble` runs, for example "13.0.88".

    Raises:
      ToolNotFoundError: there is no ptxas here.
    """
    ptxas = find_ptxas()
    printed = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\bV(\d+(?:\.\d+)+)", printed.stdout)
    if not found:
        raise RuntimeError(f"{ptxas} --version names no version: {printed.stdout!r}")
    return found[1]


# CUDA 13, and the name that the wheels of CUDA 12 had.
_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")

_SHOWN_LINES = 12  # of rejected PTX, in one message

_ENTRY = re.compile(r"\.entry\s+([\w$]+)([^{]*)")  # a name, and its header
_DIAGNOSTIC = re.compile(r"ptxas (?:[^,\n]*, line (\d+); )?(?:error|fatal)\s*: (.*)")
_COMPILING = re.compile(r"ptxas info\s*: Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REMARK = re.compile(r"ptxas (?:[^,\n]*, line \d+; )?(?:warning\s*: .*|info\s*: .*Performance.*)")


@functools.lru_cache(maxsize=1024)
def _assemble(ptxas: pathlib.Path, text: str, target: Target) -> tuple[Assembled, ...]:
    printed, _ = _run(ptxas, text, target)
    return _parse_report(printed, text, target)


def _run(ptxas: pathlib.Path, text: str, target: Target, *options: str) -> tuple[str, bytes]:
    """What ptxas prints, and the cubin."""
    with tempfile.TemporaryDirectory(prefix="ptx-") as folder:
        (pathlib.Path(folder) / "kernel.ptx").write_text(text)
        ran = subprocess.run(
            [ptxas, "-v", *options, f"-arch={target.name}", "kernel.ptx", "-o", "kernel.cubin"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        printed = ran.stdout + ran.stderr
        if ran.returncode:
            raise AssemblyError(target, _diagnostics(printed, text))
        return printed, (pathlib.Path(folder) / "kernel.cubin").read_bytes()


def _diagnostics(printed: str, text: str) -> tuple[Diagnostic, ...]:
    lines = text.splitlines()
    found = []
    for number, message in _DIAGNOSTIC.findall(printed):
        if number and int(number) <= len(lines):
            found.append(Diagnostic(message, int(number), lines[int(number) - 1].strip()))
        else:
            found.append(Diagnostic(message))
    if len(found) > 1:  # what follows the complaints themselves says nothing more
        found = [d for d in found if d.message != "Ptx assembly aborted due to errors"]
    return tuple(found) or (Diagnostic(printed.strip() or "ptxas failed and printed nothing"),)


def _show(diagnostics: tuple[Diagnostic, ...]) -> str:
    by_line: dict[tuple[int | None, str | None], list[str]] = {}
    for diagnostic in diagnostics:
        by_line.setdefault((diagnostic.line, diagnostic.text), []).append(diagnostic.message)
    shown = []
    for (line, text), messages in list(by_line.items())[:_SHOWN_LINES]:
        if line is None:
            shown += [f"  {message}" for message in messages]
        else:
            shown += [f"  line {line}: {text}", *(f"    {message}" for message in messages)]
    if len(by_line) > _SHOWN_LINES:
        shown.append(f"  and {len(by_line) - _SHOWN_LINES} more lines")
    return "\n".join(shown)


def _parse_report(printed: str, text: str, target: Target) -> tuple[Assembled, ...]:
    text = _without_comments(text)
    version = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", text, re.M)
    assert version is not None  # ptxas has taken the text
    warnings = tuple(match[0] for match in _REMARK.finditer(printed))

    # A name and a section per kernel, in ptxas's own order, after what is said of the file.
    _, *parts = _COMPILING.split(printed)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))

    kernels = []
    for name, header in _ENTRY.findall(text):
        section = sections.get(name, "")
        used = re.search(r"Used (\d+) registers.*", section)
        stacks = _STACK.findall(section)  # of the kernel, and of the functions that it calls
        if used is None or not stacks:
            raise RuntimeError(f"ptxas -v says nothing of kernel {name}:\n{printed}")
        kernels.append(
            Assembled(
                kernel=name,
                target=target,
                ptx_version=(int(version[1]), int(version[2])),
                registers=int(used[1]),
                spill_stores=sum(int(stores) for _, stores, _ in stacks),
                spill_loads=sum(int(loads) for _, _, loads in stacks),
                shared_bytes=_sum(r"(\d+) bytes smem", used[0]),
                local_bytes=sum(int(frame) for frame, _, _ in stacks),
                constant_bytes=_sum(r"(\d+) bytes cmem\[\d+\]", used[0]),
                barriers=_sum(r"used (\d+) barriers", used[0]),
                threads_per_block=_threads_per_block(header),
                warnings=warnings,
            )
        )
    return tuple(kernels)


def _threads_per_block(header: str) -> int | None:
    found = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", header)
    if not found:
        return None
    x, y, z = (int(size or 1) for size in found.groups())
    return x * y * z


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def _sum(pattern: str, text: str) -> int:
    return sum(int(number) for number in re.findall(pattern, text))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
