"""Decisions of lowerings: whether an operator's call takes kernels or XLA's program."""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["Decision", "Launch", "deciding", "note_launch", "note_reason", "noted_decisions"]


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch that a lowering asks for.

    Attributes:
      kernel: the name of the kernel.
      config: its configuration.
      shapes: the shapes of operands and results in memory.
    """

    kernel: str
    config: Any
    shapes: tuple[tuple[int, ...], ...]


@dataclasses.dataclass
class Decision:
    """What one call of an operator takes.

    Attributes:
      operation: the operator, or the gradient of one.
      takes_ptx: whether it may launch kernels.
      reason: why it does not, as the end of a sentence.
      launches: the launches that it asks for.
    """

    operation: str
    takes_ptx: bool
    reason: str | None
    launches: list[Launch] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def noted_decisions() -> Iterator[list[Decision]]:
    """Yields a list of the decisions of lowerings within the block, in this thread."""
    decisions: list[Decision] = []
    token = _noted.set(decisions)
    try:
        yield decisions
    finally:
        _noted.reset(token)


@contextlib.contextmanager
def deciding(operation: str, *, takes_ptx: bool, reason: str | None) -> Iterator[None]:
    """Notes a decision, and to it what is noted within the block."""
    decisions = _noted.get()
    if decisions is None:
        yield
        return
    decision = Decision(operation, takes_ptx, reason)
    decisions.append(decision)
    token = _current.set(decision)
    try:
        yield
    finally:
        _current.reset(token)


def note_launch(kernel: str, config: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Notes that the call that is lowered asks for a launch."""
    if (decision := _current.get()) is not None:
        decision.launches.append(Launch(kernel, config, shapes))


def note_reason(reason: str) -> None:
    """Notes why the call that is lowered launches nothing."""
    if (decision := _current.get()) is not None:
        decision.reason = reason


_noted: ContextVar[list[Decision] | None] = ContextVar("noted decisions", default=None)
_current: ContextVar[Decision | None] = ContextVar("current decision", default=None)
