"""Print a kernel's PTX, or list the kernels.

No GPU is needed: this is the text that the driver gets. With --sass it is assembled, and what the
machine code's loops consist of is printed instead. With --output the texts of all configurations
are written into a folder, so that `diff -r` compares what two versions of the code write.
"""

import argparse
import sys
from collections.abc import Mapping

from oxijax._cli import CommandError
from oxijax._cli.arguments import OutputFolder, add_output_argument
from oxijax._cli.kernel_registry import add_registry_argument, registered_kernels
from ptx.definition import KernelDefinition
from ptx.isa.sass import disassemble
from ptx.isa.targets import TARGETS, Target, UnsupportedError

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
    add_output_argument(
        parser,
        "--output",
        OutputFolder,
        metavar="DIR",
        help="write DIR/KERNEL/CONFIGURATION.ptx, for all kernels unless one is named",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of KERNEL's configurations"
    )
    add_registry_argument(parser)


def run(args: argparse.Namespace) -> int:
    kernels = registered_kernels(args.registry)
    if args.kernel is not None and args.kernel not in kernels:
        raise CommandError(f"no kernel {args.kernel!r}; there are {', '.join(kernels)}")
    if args.list and (args.sass or args.config or args.target or args.output):
        raise CommandError("--list prints the names of all configurations")
    if args.output is not None:
        if args.sass or args.config is not None:
            raise CommandError("--output writes the PTX of all configurations")
        chosen = kernels.values() if args.kernel is None else [kernels[args.kernel]]
        for kernel in chosen:
            _write(kernel, args.target, args.output)
        return 0
    if args.kernel is None:
        _list(kernels)
        return 0
    kernel = kernels[args.kernel]
    if args.list:
        print(*kernel.configs, sep="\n")
        return 0
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
    except UnsupportedError as error:
        raise CommandError(str(error)) from error
    return 0


def _write(kernel: KernelDefinition, target: str | None, output: OutputFolder) -> None:
    """Writes a file for each configuration that the target can run."""
    for config in kernel.configs:
        try:
            written = kernel.write_named(config, TARGETS[target or kernel.needs])
        except UnsupportedError as error:
            print(f"{kernel.name}/{config}: {error}", file=sys.stderr)
            continue
        output.write(f"{kernel.name}/{config}.ptx", written.text)


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
    """A line for each kernel: its name, the lowest target, and how many configurations it has."""
    width = max(map(len, kernels))
    for name, kernel in kernels.items():
        count = len(kernel.configs)
        noun = "configuration" if count == 1 else "configurations"
        print(f"{name:<{width}}  {kernel.needs} and later  {count:3} {noun}")
