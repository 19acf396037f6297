"""Arguments that are judged before a command's work: numbers in a range, and what it writes.

An output is opened when the work begins, and written at its end: what would spoil the end is said
at the start.
"""

import argparse
import contextlib
import functools
import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from oxijax._cli import CommandError

__all__ = [
    "COUNT",
    "Output",
    "OutputFile",
    "OutputFolder",
    "PictureFile",
    "add_json_argument",
    "add_output_argument",
    "number_type",
    "opened_outputs",
    "write_json",
]


def number_type(
    kind: type[int] | type[float], least: float = -math.inf, most: float = math.inf
) -> Callable[[str], Any]:
    """The type of an argument that is a finite number, with both limits among its values."""
    expected = "a whole number" if kind is int else "a finite number"
    expected += f" from {least}" if least > -math.inf else ""
    expected += f" to {most}" if most < math.inf else ""

    def parse(text: str) -> int | float:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if -math.inf < value < math.inf and least <= value <= most:
                return value
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")

    return parse


COUNT = number_type(int, 1, 2**31 - 1)


class Output:
    """A file or a folder that a command writes, which `opened_outputs` tries before its work.

    Args:
      option: the option that names it, for example "--json".
      path: its path.
    """

    kind: ClassVar[str]

    def __init__(self, option: str, path: str) -> None:
        self.option, self.path = option, Path(path)

    def opened(self) -> contextlib.AbstractContextManager[None]:
        """Raises `CommandError` where it cannot be written, and closes it after the work."""
        raise NotImplementedError

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Turns an `OSError` into a `CommandError` that names the option and the path."""
        try:
            yield
        except OSError as error:
            raise self.error(f": {error.strerror}") from error

    def error(self, why: str = "") -> CommandError:
        """What is raised for the path."""
        return CommandError(f"{self.option} must be {self.kind}, got {self.path}{why}")


class OutputFile(Output):
    """A file. It keeps what it holds until it is written; a new one that is not is removed."""

    kind = "a file that can be written, in an existing folder"
    suffix = ""  # of the path, in lower case
    _file: io.FileIO
    _is_written = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        if self.suffix not in ("", self.path.suffix.lower()):
            raise self.error()
        is_new = not os.path.lexists(self.path)
        with self.judged():
            self._file = io.FileIO(self.path, "a")
        try:
            with self._file:
                yield
        finally:
            if is_new and not self._is_written:
                self.path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Replaces what the file holds."""
        with self.judged():
            if self.path.is_file():  # and no device or pipe
                self._file.truncate(0)
            with open(self._file.fileno(), "ab", closefd=False) as file:
                file.write(data)
        self._is_written = True


class PictureFile(OutputFile):
    """A PNG file."""

    kind = "a .png file that can be written, in an existing folder"
    suffix = ".png"


class OutputFolder(Output):
    """A folder of texts, which is made with the first of them."""

    kind = "a folder that can be written"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with self.judged():
            paths = (self.path, *self.path.parents)
            existing = next((path for path in paths if path.exists()), self.path)
            tempfile.TemporaryFile(dir=existing).close()
        yield

    def write(self, name: str, text: str) -> None:
        """Writes a file, and makes the folders that it is in."""
        path = self.path / name
        with self.judged():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@contextlib.contextmanager
def opened_outputs(args: argparse.Namespace) -> Iterator[None]:
    """Opens all outputs that are among a command's arguments, for the time of its work."""
    with contextlib.ExitStack() as stack:
        for value in vars(args).values():
            if isinstance(value, Output):
                stack.enter_context(value.opened())
        yield


def add_output_argument(
    parser: argparse.ArgumentParser, option: str, kind: type[Output], **options: Any
) -> None:
    """Adds an option that names an output; a default is a path's text.

    Args:
      parser: the command's parser.
      option: the option, for example "--output".
      kind: the kind of output.
      **options: further arguments of `add_argument`.
    """
    parser.add_argument(option, type=functools.partial(kind, option), **options)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--json`, which `write_json` heeds."""
    add_output_argument(parser, "--json", OutputFile, metavar="FILE", help="also write the figures")


def write_json(args: argparse.Namespace, report: Any) -> None:
    """Writes a report to the file that `--json` names, if it does."""
    if args.json is not None:
        args.json.write((json.dumps(report, indent=2) + "\n").encode())
