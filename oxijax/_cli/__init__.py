"""The commands of `python -m oxijax`, a module each.

A command module has a docstring whose first line is its help, `add_arguments(parser)` and
`run(args) -> int`, the exit code. It imports what an extra installs only in `run`, inside
`needs_extra`, so that help is there without extras. Numbers and outputs among its arguments have
types of `arguments`, so that `run` finds them judged and opened.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from oxijax._core.install import install_command
from ptx.isa.assembler import ToolNotFoundError

__all__ = [
    "Column",
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


def tool_message(error: ToolNotFoundError) -> str:
    """The error as a line, with the command that installs the tools.

    `ptx` names a package; this names both that oxijax needs, in the versions that it needs.
    """
    what, _, _ = " ".join(str(error).split()).partition(": pip install ")
    return f"{what}: {install_command('test', 'nvidia-cuda-nvcc', 'nvidia-cuda-nvdisasm')}"


def add_repeatable_argument(
    parser: argparse.ArgumentParser, option: str, meaning: str, **options: Any
) -> None:
    """Adds an option that may be given more than once, and stands for all where it is not given.

    Args:
      parser: the command's parser.
      option: the option, for example "--kernel".
      meaning: the start of its help.
      **options: further arguments of `add_argument`.
    """
    text = f"{meaning}; may be given more than once (default: all)"
    parser.add_argument(option, action="append", help=text, **options)


def print_labelled(lines: Iterable[tuple[str, str]]) -> None:
    """Prints (label, text) lines, with the texts below each other."""
    lines = list(lines)
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:<{width}}  {text}".rstrip())


class Column(NamedTuple):
    """A column of figures in a `PrintedTable`: its heading, their key, and their format."""

    heading: str
    key: str
    format: str = ""


class PrintedTable:
    """A table that is printed row by row, as soon as each is known.

    Args:
      title: printed above it.
      names: the headings of the first columns, each with all names that its rows will have, from
        which the column's width follows.
      columns: the other columns, which are flush right.
      width: the least width of these.
    """

    def __init__(
        self,
        title: str,
        names: Mapping[str, Iterable[str]],
        columns: Sequence[Column],
        *,
        width: int = 7,
    ) -> None:
        self._columns = columns
        self._formats = [f"<{max(map(len, (name, *column)))}" for name, column in names.items()]
        self._formats += [f">{max(len(column.heading), width)}" for column in columns]
        heading = self._line((*names, *(column.heading for column in columns)))
        print(title, heading, "-" * len(heading), sep="\n", flush=True)

    def row(self, names: Sequence[str], figures: Mapping[str, Any], note: str = "") -> None:
        """Prints a row: its names, the figures that the table has columns for, and a note."""
        cells = [
            format(figures[c.key], c.format) if c.key in figures else "" for c in self._columns
        ]
        print(f"{self._line((*names, *cells))}  {note}".rstrip(), flush=True)

    def _line(self, cells: Sequence[str]) -> str:
        return "  ".join(map(format, cells, self._formats))
