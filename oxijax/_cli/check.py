"""Assemble every kernel with ptxas, for every GPU: registers, spills, shared memory.

These are thousands of texts, which take minutes; a row is printed as soon as it is known. Ends with
exit code 1 if ptxas rejects a kernel or has to spill registers to memory.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import os
import re
import sys
from collections.abc import Generator, Sequence
from typing import Any

from oxijax._cli import Column, CommandError, PrintedTable, add_repeatable_argument, needs_extra
from oxijax._cli.arguments import add_json_argument, write_json
from oxijax._cli.kernel_registry import add_registry_argument, registered_kernels
from ptx.definition import KernelDefinition
from ptx.isa.assembler import Assembled, AssemblyError, assemble, ptxas_version
from ptx.isa.targets import TARGETS, Target, UnsupportedError

__all__ = ["CheckResult", "add_arguments", "check", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_repeatable_argument(parser, "--target", "a GPU", choices=TARGETS)
    add_repeatable_argument(parser, "--kernel", "a kernel", metavar="K")
    add_repeatable_argument(
        parser, "--config", "configurations, for example 'R50-*'", metavar="PATTERN"
    )
    add_json_argument(parser)
    add_registry_argument(parser)


def run(args: argparse.Namespace) -> int:
    with needs_extra("demo"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    kernels = registered_kernels(args.registry)
    if unknown := sorted(set(args.kernel or ()) - set(kernels)):
        raise CommandError(f"no kernel {', '.join(unknown)}; there are {', '.join(kernels)}")
    chosen = [
        kernel for kernel in kernels.values() if not args.kernel or kernel.name in args.kernel
    ]
    patterns = args.config or ["*"]
    configs = {config for kernel in chosen for config in kernel.configs}
    if unknown := [p for p in patterns if not any(fnmatch.fnmatchcase(c, p) for c in configs)]:
        raise CommandError(f"no configuration {', '.join(unknown)} of these kernels")
    targets = [t for t in TARGETS.values() if not args.target or t.name in args.target]
    version = ptxas_version()
    cases = _cases(chosen, targets, patterns)
    names = {
        "kernel": [kernel.name for kernel, _, _ in cases],
        "configuration": [config for _, config, _ in cases],
        "target": [target.name for _, _, target in cases],
    }
    table = PrintedTable(f"ptxas {version}", names, _FIGURES, width=6)
    results: list[CheckResult] = []
    terminal = Console(stderr=True)
    progress = Progress(
        *("checking", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # else the rows would go to the terminal as well
    )
    with progress, contextlib.closing(_check_each(cases)) as checked:
        for result in progress.track(checked, len(cases), description=""):
            if len(targets) > 1 and results and result.case[:2] != results[-1].case[:2]:
                print()
            _print_result(table, result)
            results.append(result)
    print()
    for result in results:
        for message in result.messages:
            print(f"{result.name}: {message}")
    failures = [result for result in results if result.failed]
    assembled = [result for result in results if result.kernels]
    print(
        f"{len(assembled)} assembled, {len(failures)} failed, "
        f"{sum(result.status == 'lacks' for result in results)} lack an instruction"
    )

    write_json(args, {"ptxas": version, "results": [result.as_json() for result in results]})
    if not assembled and not failures:
        raise CommandError("nothing was assembled: each target lacks an instruction")
    return 1 if failures else 0


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """The assembly of one kernel in one configuration for one target.

    Attributes:
      kernel: the kernel's name in the registry.
      configuration: the configuration's name.
      target: the GPU.
      status: "ok"; "lacks", the target lacks an instruction; "spills"; or "error".
      messages: the instruction that the target lacks, ptxas's errors and warnings.
      kernels: ptxas's figures of each entry function.
      blocks_per_sm: blocks of each of them on an SM; None where the PTX does not give their size.
    """

    kernel: str
    configuration: str
    target: Target
    status: str
    messages: tuple[str, ...] = ()
    kernels: tuple[Assembled, ...] = ()
    blocks_per_sm: tuple[int | None, ...] = ()

    @property
    def case(self) -> tuple[str, str, str]:
        """The names of the kernel, of the configuration and of the target."""
        return self.kernel, self.configuration, self.target.name

    @property
    def name(self) -> str:
        return "{}/{} on {}".format(*self.case)

    @property
    def failed(self) -> bool:
        return self.status in ("error", "spills")

    def as_json(self) -> dict[str, Any]:
        entries = []
        for assembled, blocks in zip(self.kernels, self.blocks_per_sm, strict=True):
            figures = dataclasses.asdict(assembled)
            del figures["target"], figures["warnings"]
            entries.append({**figures, "blocks_per_sm": blocks})
        return {
            "kernel": self.kernel,
            "configuration": self.configuration,
            "target": self.target.name,
            "status": self.status,
            "messages": self.messages,
            "entries": entries,
        }


def check(
    kernels: Sequence[KernelDefinition],
    targets: Sequence[Target],
    patterns: Sequence[str] = ("*",),
) -> list[CheckResult]:
    """Assembles each configuration of the kernels that a pattern names, for each target."""
    return list(_check_each(_cases(kernels, targets, patterns)))


_Case = tuple[KernelDefinition, str, Target]


def _cases(
    kernels: Sequence[KernelDefinition], targets: Sequence[Target], patterns: Sequence[str]
) -> list[_Case]:
    return [
        (kernel, config, target)
        for kernel in kernels
        for config in kernel.configs
        if any(fnmatch.fnmatchcase(config, pattern) for pattern in patterns)
        for target in targets
    ]


def _check_each(cases: Sequence[_Case]) -> Generator[CheckResult, None, None]:
    """Yields the results in the order of the cases; closed early, it starts no more of them."""
    # Each assembly is a process of its own: threads are enough to keep the cores busy.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(_check_one, *zip(*cases, strict=True))


def _check_one(kernel: KernelDefinition, config: str, target: Target) -> CheckResult:
    case = (kernel.name, config, target)
    supported = target.supports(kernel.needs)
    try:
        written = kernel.write_named(config, target)
    except UnsupportedError as error:
        # Above the target that the kernel says it needs, to lack an instruction is an error:
        # else a kernel that no longer runs on a GPU would pass.
        return CheckResult(*case, "error" if supported else "lacks", (str(error),))
    except Exception as error:  # one faulty kernel must not hide what the others cost
        return CheckResult(*case, "error", (f"{type(error).__name__}: {error}",))
    if not supported:
        return CheckResult(*case, "lacks", (f"the kernel needs {kernel.needs}",))
    text, dynamic_shared = written.text, written.dynamic_shared
    if message := _wrong_dynamic_shared(text, dynamic_shared):
        return CheckResult(*case, "error", (message,))
    try:
        assembled = tuple(assemble(text, target).values())
    except (AssemblyError, ValueError) as error:
        return CheckResult(*case, "error", (str(error),))

    status, messages = "ok", list(dict.fromkeys(w for a in assembled for w in a.warnings))
    for entry in assembled:
        if entry.local_bytes:
            messages.append(f"{entry.kernel} has a stack frame of {entry.local_bytes} bytes")
        if entry.spills:
            status = "spills"
            messages.append(
                f"{entry.kernel} spills registers: {entry.spill_stores} bytes stored, "
                f"{entry.spill_loads} bytes loaded"
            )
    blocks = tuple(
        None if entry.threads_per_block is None else entry.blocks_per_sm(None, dynamic_shared)
        for entry in assembled
    )
    for entry, fitting in zip(assembled, blocks, strict=True):
        if fitting == 0:
            status = "error"
            messages.append(
                f"no block of {entry.kernel} fits on an SM: {entry.threads_per_block} threads of "
                f"{entry.registers} registers, {entry.shared_bytes} + {dynamic_shared} bytes of "
                "shared memory"
            )
    return CheckResult(*case, status, tuple(messages), assembled, blocks)


def _wrong_dynamic_shared(text: str, launched: int) -> str | None:
    """The error where a launch has other dynamic shared memory than the text says, else None."""
    comment = re.search(r"^// (\d+) bytes of dynamic shared memory$", text, re.M)
    if ".extern .shared" in text and comment is None:
        return "the PTX has dynamic shared memory, and does not say how much"
    needed = int(comment[1]) if comment else 0
    if needed == launched:
        return None
    return f"a launch has {launched} bytes of dynamic shared memory, and the PTX needs {needed}"


_FIGURES = (
    Column("PTX", "ptx_version"),
    Column("registers", "registers"),
    Column("spills", "spills"),
    Column("shared", "shared_bytes"),
    Column("CTAs/SM", "blocks_per_sm"),
)


def _print_result(table: PrintedTable, result: CheckResult) -> None:
    """Prints a row for each entry function, or one with the status where there is none."""
    if not result.kernels:
        table.row(result.case, {"ptx_version": result.status})
    for entry, blocks in zip(result.kernels, result.blocks_per_sm, strict=True):
        figures = {
            "ptx_version": ".".join(map(str, entry.ptx_version)),
            "registers": entry.registers,
            "spills": entry.spills,
            "shared_bytes": entry.shared_bytes,
            "blocks_per_sm": "?" if blocks is None else blocks,
        }
        table.row(result.case, figures, entry.kernel if len(result.kernels) > 1 else "")
