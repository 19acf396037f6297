"""The commands of `python -m oxijax`, a module each.

A command module has a docstring whose first line is its help, `add_arguments(parser)` and
`run(args) -> int`, the exit code. It imports what an extra installs only in `run`, inside
`needs_extra`, so that help is there without extras.
"""

import contextlib
import pathlib
from collections.abc import Iterator

__all__ = ["CommandError", "check_picture_path", "needs_extra"]


class CommandError(Exception):
    """What a user can put right: the command ends with this one line and exit code 2."""


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turns a failed import into a `CommandError` that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f'the module {error.name} is missing: pip install "oxijax[{extra}]"'
        raise CommandError(message) from error


def check_picture_path(output: pathlib.Path) -> None:
    """Raises `CommandError` unless a picture can be written there."""
    if output.suffix.lower() != ".png" or not output.parent.is_dir():
        raise CommandError(f"--output must be a .png file in an existing folder: {output}")
