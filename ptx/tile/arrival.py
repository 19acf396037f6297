"""How a thread learns that what was begun for a stage of shared memory has arrived."""

from __future__ import annotations

from typing import Protocol

from ptx.builder import Kernel

__all__ = ["Arrival", "arrival_of"]


class Arrival(Protocol):
    """Waits for what a block's threads have begun to copy, in the order of the chunks.

    What a thread has waited for, other threads see after a barrier.
    """

    def commit(self) -> None:
        """Ends what was begun for one chunk."""

    def wait(self, later: int) -> None:
        """Waits for the chunks of which `later` others have been committed since."""


class _CopyGroups:
    """Each chunk is a group of this thread's cp.async copies."""

    def __init__(self, k: Kernel):
        self.k = k

    def commit(self) -> None:
        self.k.cp_async_commit()

    def wait(self, later: int) -> None:
        self.k.cp_async_wait(later)


class _Stores:
    """Each chunk is what threads have stored: it is complete when they reach the barrier."""

    def commit(self) -> None:
        """Does nothing."""

    def wait(self, later: int) -> None:
        """Does nothing."""


def arrival_of(k: Kernel) -> Arrival:
    """What the copies of a kernel's sources are awaited with on its target."""
    return _CopyGroups(k) if k.target.supports("sm_80") else _Stores()
