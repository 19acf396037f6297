"""The command line: `python -m oxijax COMMAND`, or `oxijax COMMAND`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from oxijax import __version__
from oxijax._cli import CommandError, bench, check, demo, info, model, ptx, roofline

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

    Args:
      argv: arguments after the program's name; None reads them from `sys.argv`.
    """
    parser = argparse.ArgumentParser(
        prog="oxijax",
        description="Deformable convolution, convolution and matrix products for JAX: kernels, "
        "checks and measurements.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        description = command.__doc__ or ""
        subparser = subparsers.add_parser(
            name, help=description.partition("\n")[0], description=description
        )
        command.add_arguments(subparser)
        subparser.set_defaults(name=name)

    args = parser.parse_args(argv)
    try:
        return _COMMANDS[args.name].run(args)
    except CommandError as error:
        print(f"oxijax {args.name}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
