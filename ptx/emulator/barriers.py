"""The barriers of a block, the lanes that wait at them, and their release.

Source: PTX ISA, "barrier".
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ptx.emulator.errors import DivergenceError
from ptx.emulator.lanes import WARP, Active, Lanes

if TYPE_CHECKING:
    from ptx.emulator.syntax import Instruction

__all__ = ["Barriers"]

_ALL = 0  # expected number of threads: all of the block


@dataclasses.dataclass
class _Arrivals:
    """Warps that have arrived at a barrier without waiting (`bar.arrive`)."""

    expected: int
    threads: int = 0
    rows: list[np.ndarray] = dataclasses.field(default_factory=list)


class Barriers:
    """The barriers of all blocks that run together.

    Attributes:
      waiting: lanes that wait at a barrier.
    """

    def __init__(self, lanes: Lanes):
        self._lanes = lanes
        self.waiting = np.zeros(lanes.count, np.bool_)
        self._number = np.zeros(lanes.count, np.int64)
        self._expected = np.zeros(lanes.count, np.int64)
        self._at: dict[int, Instruction] = {}
        self._place = np.zeros(lanes.count, np.int64)
        self._arrivals: dict[tuple[int, int], _Arrivals] = {}

    def wait(
        self,
        instruction: Instruction,
        active: Active,
        number: np.ndarray,
        threads: np.ndarray | None,
        aligned: bool,
    ) -> None:
        """Lets the active lanes wait at barrier `number` for `threads` threads (None: all)."""
        self._check(instruction, active, number, threads, aligned)
        self.waiting[active.selection] = True
        self._number[active.selection] = number
        self._expected[active.selection] = _ALL if threads is None else threads
        self._place[active.selection] = instruction.line
        self._at[instruction.line] = instruction

    def arrive(
        self, instruction: Instruction, active: Active, number: np.ndarray, threads: np.ndarray
    ) -> None:
        """Counts the active lanes at barrier `number` without making them wait."""
        lanes = self._lanes
        self._check(instruction, active, number, threads, aligned=True)
        chosen = active.indices
        number = np.broadcast_to(number, len(chosen))
        threads = np.broadcast_to(threads, len(chosen))
        _, first = np.unique(chosen // WARP, return_index=True)
        for i in first:
            lane = chosen[i]
            block, warp = int(lanes.block[lane]), int(lanes.thread[lane]) // WARP
            arrivals = self._arrivals.setdefault(
                (block, int(number[i])), _Arrivals(int(threads[i]))
            )
            if arrivals.expected != threads[i]:
                message = f"barrier {int(number[i])} with different numbers of threads"
                active.fail(DivergenceError, instruction, None, message)
            arrivals.threads += WARP
            arrivals.rows.append(lanes.clocks.row_at_arrival(block, warp))

    def release(self) -> bool:
        """Lets the lanes of complete barriers go on; tells whether there were any."""
        lanes = self._lanes
        threads = lanes.geometry.threads
        by_block = (len(lanes.block_ids), -1)
        waiting = self.waiting.reshape(by_block)[:, :threads]
        number = self._number.reshape(by_block)[:, :threads]
        expected = self._expected.reshape(by_block)[:, :threads]
        some = waiting.any(axis=1)
        whole = waiting.all(axis=1) & (number == number[:, :1]).all(axis=1)
        whole &= (expected == _ALL).all(axis=1)
        released = False
        if whole.any() and not self._arrivals:
            blocks = np.flatnonzero(whole)
            self.waiting.reshape(by_block)[blocks] = False
            lanes.clocks.advance(blocks)
            some, released = some & ~whole, True
        for block in np.flatnonzero(some):
            for barrier in np.unique(number[block][waiting[block]]):
                released |= self._release_one(int(block), int(barrier))
        return released

    def _release_one(self, block: int, barrier: int) -> bool:
        lanes = self._lanes
        padded = lanes.warps_per_block * WARP
        here = slice(block * padded, block * padded + lanes.geometry.threads)
        members = lanes.indices[here][self.waiting[here] & (self._number[here] == barrier)]
        counts = np.unique(self._expected[members])
        arrivals = self._arrivals.get((block, barrier))
        wanted = set(counts.tolist()) | ({arrivals.expected} if arrivals else set())
        if len(wanted) > 1:
            self._fail(members, f"barrier {barrier} with different numbers of threads")
        warps = np.unique(lanes.thread[members] // WARP)
        if (everyone := wanted.pop()) == _ALL:
            arrived, everyone = len(members), lanes.geometry.threads
        else:
            arrived = len(warps) * WARP
        arrived += arrivals.threads if arrivals else 0
        if arrived > everyone:
            message = f"{arrived} threads arrive at barrier {barrier}, which is for {everyone}"
            self._fail(members, message)
        if arrived < everyone:
            return False
        self.waiting[members] = False
        self._arrivals.pop((block, barrier), None)
        lanes.clocks.join(block, warps, arrivals.rows if arrivals else [])
        return True

    def deadlock(self, exited: np.ndarray) -> NoReturn:
        """Raises the error of lanes that wait while none can run."""
        lanes = self._lanes
        block = int(lanes.block[np.flatnonzero(self.waiting)[0]])
        mine = (lanes.block == block) & (lanes.thread < lanes.geometry.threads)
        waiting = np.flatnonzero(mine & self.waiting)
        number = int(self._number[waiting[0]])
        here = waiting[self._number[waiting] == number]
        gone, elsewhere = int((exited & mine).sum()), len(waiting) - len(here)
        message = (
            f"{len(here)} of {lanes.geometry.threads} threads wait at barrier {number}; "
            f"{gone} have exited, {elsewhere} wait at another barrier"
        )
        self._fail(here, message)

    def _check(
        self,
        instruction: Instruction,
        active: Active,
        number: np.ndarray,
        threads: np.ndarray | None,
        aligned: bool,
    ) -> None:
        if (number > 15).any():
            message = "barriers are numbered from 0 to 15"
            active.fail(DivergenceError, instruction, None, message)
        if threads is not None and ((threads % WARP != 0) | (threads == 0)).any():
            message = f"a barrier counts multiples of {WARP} threads"
            active.fail(DivergenceError, instruction, None, message)
        if aligned:
            missing = _threads_of_incomplete_warps(active)
            if missing.any():
                message = "threads of the same warp do not reach the barrier together"
                active.fail(DivergenceError, instruction, missing, message)

    def _fail(self, members: np.ndarray, message: str) -> NoReturn:
        instruction = self._at[int(self._place[members[0]])]
        Active(self._lanes, members).fail(DivergenceError, instruction, None, message)


def _threads_of_incomplete_warps(active: Active) -> np.ndarray:
    """Which active lanes are of a warp of which other threads are not active."""
    warp = active.warp
    count = np.bincount(warp, minlength=active.lanes.count // WARP)
    within = np.arange(len(count)) % active.lanes.warps_per_block
    threads = np.minimum(active.lanes.geometry.threads - within * WARP, WARP)
    return (count != threads)[warp]
