"""The command line: `python -m oxijax COMMAND`, or `oxijax COMMAND`."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from oxijax._cli import CommandError, bench, check, demo, info, model, ptx, roofline, tool_message
from oxijax._cli.arguments import opened_outputs
from oxijax._version import __version__
from ptx.isa.assembler import ToolNotFoundError

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

    That is 2, after a sentence on standard error, where something fails that a user can put right,
    such as a file or a tool that is missing. Without a command it prints the help.

    Args:
      argv: arguments after the program's name; None reads them from `sys.argv`.

    Raises:
      SystemExit: argparse's, with code 2 where an argument is wrong, 0 after help or version.
    """
    parser = _parser()
    program = parser.prog
    try:
        with _printed():
            args = parser.parse_args(argv)
            if args.name is None:
                parser.print_help()
                return 0
            program += f" {args.name}"
            with opened_outputs(args):
                return _COMMANDS[args.name].run(args)
    except BrokenPipeError:  # whoever read the output, such as `head`, has enough
        return 141  # as where SIGPIPE ends a process
    except (CommandError, OSError, ToolNotFoundError) as error:
        with contextlib.suppress(AttributeError, OSError):  # standard error may be closed or full
            sys.stderr.write(f"{program}: {_sentence(error)}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    """The parser of all commands; it sets `name` to that of the one given, or to None."""
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
    return parser


@contextlib.contextmanager
def _printed() -> Iterator[None]:
    """Sees to it that what is printed arrives.

    Raises:
      BrokenPipeError: nobody reads it any more.
      CommandError: standard output is closed, or cannot be written.
    """
    if sys.stdout is None:
        raise CommandError("standard output is closed")
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # what is left: Python would flush it once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise CommandError(f"standard output: {error.strerror}") from error


def _sentence(error: CommandError | OSError | ToolNotFoundError) -> str:
    """What failed, and of a file also which."""
    if isinstance(error, ToolNotFoundError):
        return tool_message(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
