"""The command line: `python -m oxijax COMMAND`, or `oxijax COMMAND`."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from oxijax._cli import CommandError, bench, check, demo, info, model, ptx, roofline
from oxijax._version import __version__

__all__ = ["main"]


class _Command(Protocol):
    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


_COMMANDS: dict[str, _Command] = {
    "bench": bench,
    "check": check,
    "demo": demo,
    "info": info,
    "model": model,
    "ptx": ptx,
    "roofline": roofline,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Without a command it prints the help.

    Args:
      argv: arguments after the program's name; None reads them from `sys.argv`.

    Raises:
      SystemExit: of argparse, with code 2 where an argument is wrong, 0 after help or version.
    """
    parser = argparse.ArgumentParser(
        prog="oxijax",
        description="Deformable operators, convolution and matrix products for JAX: kernels, "
        "checks and measurements.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(name=None)
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for name, command in _COMMANDS.items():
        description = command.__doc__ or ""
        subparser = subparsers.add_parser(
            name, help=description.partition("\n")[0], description=description
        )
        command.add_arguments(subparser)
        subparser.set_defaults(name=name)

    args = parser.parse_args(argv)
    if args.name is None:
        parser.print_help()
        return 0
    try:
        code = _COMMANDS[args.name].run(args)
        sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"oxijax {args.name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has enough. Python would flush it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as where SIGPIPE ends a process


if __name__ == "__main__":
    sys.exit(main())
