"""The commands of `python -m oxijax`, a module each.

A command module has a docstring whose first line is its help, `add_arguments(parser)` and
`run(args) -> int`, the exit code. It imports what an extra installs only in `run`, inside
`needs_extra`, so that help is there without extras. Numbers and outputs among its arguments have
types of `arguments`, so that `run` finds them judged and opened.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from oxijax._core.install import install_command

__all__ = [
    "CommandError",
    "PrintedTable",
    "add_repeatable_argument",
    "needs_extra",
    "print_labelled",
    "tool_message",
]


class CommandError(Exception):
    """What a user can put right: the command ends with this one line and exit code 2."""


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turns a failed import into a `CommandError` that says how to install the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"the module {error.name} is missing: {install_command(extra)}"
        raise CommandError(message) from error


def tool_message(error: Exception) -> str:
    """A `ptx.isa.assembler.ToolNotFoundError` as a line, with the command that installs the tools.

    `ptx` names a package; this names both that oxijax needs, in the versions that it needs.
    """
    what, _, _ = " ".join(str(error).split()).partition(": pip install ")
    return f"{what}: {install_command('test', 'nvidia-cuda-nvcc', 'nvidia-cuda-nvdisasm')}"


def add_repeatable_argument(
    parser: argparse.ArgumentParser, option: str, what: str, **options: Any
) -> None:
    """Adds an option that may be given more than once, and stands for all where it is not given.

    Args:
      parser: of the command.
      option: for example "--kernel".
      what: of the help.
      **options: further ones of `add_argument`.
    """
    text = f"{what}; may be given more than once (default: all)"
    parser.add_argument(option, action="append", help=text, **options)


def print_labelled(lines: Iterable[tuple[str, str]]) -> None:
    """Prints (label, text) lines, with the texts below each other."""
    lines = list(lines)
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:<{width}}  {text}".rstrip())


class PrintedTable:
    """A table that is printed row by row, as soon as each is known.

    Args:
      title: above it.
      heading: of the first column, which has names.
      names: all names that rows will have, for the width of their column.
      figures: headings of the other columns, which are flush right.
    """

    def __init__(
        self, title: str, heading: str, names: Iterable[str], figures: Sequence[str]
    ) -> None:
        self._widths = [max(map(len, (heading, *names))), *(max(len(f), 7) for f in figures)]
        print(f"\n{title}", flush=True)
        self.row(heading, *figures)
        print("-" * (sum(self._widths) + 2 * len(figures)), flush=True)

    def row(self, name: str, *figures: str) -> None:
        """Prints a row; figures that it lacks are left empty."""
        first, *others = self._widths
        cells = (f"{f:>{width}}" for f, width in zip(figures, others, strict=False))
        print("  ".join((f"{name:<{first}}", *cells)).rstrip(), flush=True)
