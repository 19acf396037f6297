"""Print a kernel's PTX, or list the kernels.

No GPU is needed: this is the text that the driver gets. With --sass it is assembled, and what the
machine code's loops consist of is printed instead.
"""

import argparse
import sys
from collections.abc import Mapping

from oxijax._cli import CommandError
from oxijax._cli.kernel_registry import add_registry_argument, registered_kernels
from ptx.isa.assembler import PtxasNotFoundError
from ptx.isa.sass import NvdisasmNotFoundError, disassemble
from ptx.isa.targets import TARGETS, Target, UnsupportedError
from ptx.kernel import KernelDefinition

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kernel", nargs="?", metavar="KERNEL", help="without it, kernels are listed"
    )
    parser.add_argument(
        "--config", metavar="C", help="name of a configuration (default: the kernel's first)"
    )
    parser.add_argument(
        "--target", choices=TARGETS, help="the GPU (default: the lowest that has the instructions)"
    )
    parser.add_argument(
        "--sass", action="store_true", help="count the instructions of the machine code's loops"
    )
    add_registry_argument(parser)


def run(args: argparse.Namespace) -> int:
    kernels = registered_kernels(args.registry)
    if args.kernel is None:
        _list(kernels)
        return 0
    if args.kernel not in kernels:
        raise CommandError(f"no kernel {args.kernel!r}; there are {', '.join(kernels)}")
    kernel = kernels[args.kernel]
    config = next(iter(kernel.configs)) if args.config is None else args.config
    target = TARGETS[args.target or kernel.needs]
    if config not in kernel.configs:
        raise CommandError(
            f"kernel {kernel.name} has no configuration {config!r}; "
            f"there are {', '.join(kernel.configs)}"
        )
    try:
        text = kernel.write_named(config, target).text
        sys.stdout.write(_loops(text, target) if args.sass else text)
    except (UnsupportedError, PtxasNotFoundError, NvdisasmNotFoundError) as error:
        raise CommandError(str(error)) from error
    return 0


def _loops(text: str, target: Target) -> str:
    """The loops of the machine code, each without those inside it: opcodes and how many."""
    sass = disassemble(text, target)
    lines = [f"{len(sass.instructions)} instructions, {len(sass.straight)} outside of loops"]
    for loop in sass.loops:
        indent = "  " * loop.depth
        lines.append(
            f"{indent}loop {loop.first} to {loop.last}: {len(loop.own)} instructions of its own, "
            f"{len(loop.rare)} of them behind a vote"
        )
        lines += [f"{indent}  {count:5} {opcode}" for opcode, count in loop.opcodes.items()]
    return "\n".join(lines) + "\n"


def _list(kernels: Mapping[str, KernelDefinition]) -> None:
    for kernel in kernels.values():
        print(f"{kernel.name} ({kernel.needs} and later): {', '.join(kernel.configs)}")
