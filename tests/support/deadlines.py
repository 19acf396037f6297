"""A deadline for what may deadlock where no exception gets in: within XLA."""

import contextlib
import faulthandler
import sys
from collections.abc import Iterator

__all__ = ["ends_within"]


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Ends this process, with the stacks of all threads, if a block of code takes longer."""
    assert sys.__stderr__ is not None  # that of the process: pytest's ends with it
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
