"""The order in which lanes run, and the places where they meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator.errors import StepLimitError, StoppedError
from ptx.emulator.lanes import WARP, Active, Lanes

__all__ = ["run"]

_SHARE = 0.35  # of the warps of a block, how many a random schedule lets run together
_STAY = 0.85  # chance that a random schedule goes on with the warps it has chosen


def run(lanes: Lanes, step_limit: int, stop: Callable[[], bool] | None = None) -> None:
    """Runs all lanes to their end.

    The lanes at the lowest basic block run first, all at once, so that lanes that have taken
    different branches run together again from where the branches meet. With a random generator
    in `lanes`, some warps of each block, chosen at random, run for some blocks on end.

    Args:
      lanes: lanes at the start of the kernel.
      step_limit: basic blocks to run at most.
      stop: whether to give up, asked before each basic block.

    Raises:
      EmulatorError: whatever fault the kernel has.
    """
    _Scheduler(lanes).run(step_limit, stop or (lambda: False))


class _Scheduler:
    def __init__(self, lanes: Lanes):
        self.lanes, self.blocks = lanes, lanes.program.blocks
        self.end = len(self.blocks)
        self.position = lanes.position
        self.chosen: np.ndarray | None = None  # warps that a random schedule runs

    def run(self, step_limit: int, stop: Callable[[], bool]) -> None:
        lanes, report = self.lanes, self.lanes.report
        lockstep, steps = lanes.generator is None, 0
        group = self.next_group()
        while group is not None:
            active, number = group
            block = self.blocks[number]
            steps += 1
            if steps > step_limit:
                self.fail(active, step_limit)
            if stop():
                raise StoppedError("told to stop", kernel=lanes.program.source.name)
            report.count_block(number, active)
            for step in block.steps:
                step(active)
            if block.barrier is None:
                ahead = self.branch(active, number)
                if lockstep and ahead not in (None, self.end) and active.size == lanes.count:
                    group = active, ahead
                    continue
            else:
                self.wait(active, number)
            group = self.next_group()

    def branch(self, active: Active, number: int) -> int | None:
        """Moves the active lanes on; returns the block that all go to, or None."""
        block = self.blocks[number]
        ahead = block.following
        if block.target is not None:
            taken = None if block.guard is None else block.guard(active)
            self.lanes.report.branch(number, active, taken)
            if taken is None or taken.all():
                ahead = block.target
            elif taken.any():
                self.position[active.selection] = np.where(taken, block.target, block.following)
                return None
        self.position[active.selection] = ahead
        return ahead

    def wait(self, active: Active, number: int) -> None:
        """Lets the active lanes, or those that the guard chooses, wait at a barrier."""
        block = self.blocks[number]
        assert block.barrier is not None
        self.position[active.selection] = block.following
        if block.guard is not None:
            mask = block.guard(active)
            if not mask.any():
                return
            active = active.subset(mask)
        block.barrier.wait(active)

    def next_group(self) -> tuple[Active, int] | None:
        """The lanes to run next and their basic block; None where all have ended."""
        lanes, barriers = self.lanes, self.lanes.barriers
        while True:
            ready = (self.position != self.end) & ~barriers.waiting
            if lanes.generator is not None:
                ready = self.choose(ready, lanes.generator)
            if ready.any():
                number = int(self.position[ready].min())
                indices = np.flatnonzero(ready & (self.position == number))
                return Active(lanes, indices), number
            if not barriers.waiting.any():
                return None
            if not barriers.release():
                ended = (self.position == self.end) & ~barriers.waiting
                barriers.deadlock(ended)

    def choose(self, ready: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The ready lanes of one or a few warps of each block."""
        if self.lanes.barriers.waiting.any():
            self.lanes.barriers.release()
            ready = (self.position != self.end) & ~self.lanes.barriers.waiting
        warps = np.any(ready.reshape(-1, self.lanes.warps_per_block, WARP), axis=2)
        chosen = self.chosen
        if chosen is None or not (warps & chosen).any() or generator.random() > _STAY:
            rank = generator.random(warps.shape) * warps
            least = np.minimum(rank.max(axis=1, keepdims=True), 1 - _SHARE)
            chosen = self.chosen = rank >= least
        return ready & np.repeat(chosen.reshape(-1), WARP)

    def fail(self, active: Active, step_limit: int) -> None:
        block = self.blocks[int(self.position[active.selection][0])]
        instruction = self.lanes.program.source.instructions[block.start]
        message = f"more than {step_limit} basic blocks: an endless loop, or raise step_limit"
        active.fail(StepLimitError, instruction, None, message)
