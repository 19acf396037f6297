"""Print a kernel's PTX, or list the kernels.

Nothing is assembled and no GPU is needed: this is the text that the driver gets.
"""

import argparse
import sys
from collections.abc import Mapping

from oxijax._cli import CommandError
from oxijax._cli.kernel_registry import add_registry_argument, registered_kernels
from ptx.registry import RegisteredKernel
from ptx.targets import TARGETS, UnsupportedError

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
        sys.stdout.write(kernel.ptx(config, target))
    except UnsupportedError as error:
        raise CommandError(str(error)) from error
    return 0


def _list(kernels: Mapping[str, RegisteredKernel]) -> None:
    for kernel in kernels.values():
        print(f"{kernel.name} ({kernel.needs} and later): {', '.join(kernel.configs)}")
