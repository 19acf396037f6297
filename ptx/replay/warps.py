"""Warps and blocks on an SM: their positions in the machine code and in their traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ptx.emulator.trace import ALL, NONE, SOME, Accessed, WarpTrace
from ptx.replay.code import Code, Step

__all__ = ["Block", "TraceError", "Warp"]


class TraceError(RuntimeError):
    """The machine code goes another way than the PTX text did in the emulator."""


@dataclasses.dataclass(eq=False, slots=True)
class Warp:
    """A warp.

    Attributes:
      block: the block that it belongs to.
      part: the part of the SM whose scheduler issues it.
      order: when it came to the SM; the eldest is issued first.
      pc: its next instruction.
      counters: cycle at which each of the six counters is free.
      copied: cycle at which the copies to shared memory are done that it has made so far.
      commits: the same, for each group of copies that it has committed.
      arrived: cycle at which it came to the barrier where it waits; None while it runs.
    """

    block: Block
    _trace: WarpTrace
    part: int
    order: int
    pc: int = 0
    counters: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 6)
    copied: float = 0.0
    commits: list[float] = dataclasses.field(default_factory=list)
    arrived: float | None = None
    _visits: dict[int, int] = dataclasses.field(default_factory=dict)  # to each line
    _used: dict[int, int] = dataclasses.field(default_factory=dict)  # line -> its accesses so far
    _behind: set[int] = dataclasses.field(default_factory=set)  # where lanes wait, left by others

    def access(self, step: Step) -> Accessed | None:
        """What it accesses now; None where no lane does."""
        visit = self._visits.get(step.line, 0)
        if step.counted:
            self._visits[step.line] = visit + 1
        else:
            visit -= 1
        return self._access(step.line, visit)

    def branches(self, step: Step) -> bool:
        """Whether it goes to a branch's target; whether it ends, at the end of the code."""
        if not step.conditional:
            # Lanes that wait on the way are met by going on.
            return not any(self.pc < pc < step.target for pc in self._behind)
        visit = self._visits.get(step.line, 0)
        self._visits[step.line] = visit + 1
        if step.skips:
            return self._access(step.line, visit) is None
        outcomes = self._trace.branches.get(step.line, ())
        if visit >= len(outcomes):
            raise TraceError(f"line {step.line} is a branch once more than in the emulator")
        outcome = outcomes[visit]
        if step.inverted:
            outcome = ALL - outcome
        if 0 <= step.target <= self.pc:
            return outcome != NONE
        if outcome == SOME and step.target >= 0:
            self._behind.add(step.target)
        return outcome == ALL

    def go(self, pc: int) -> None:
        """It comes to an instruction."""
        self.pc = pc
        if self._behind:
            self._behind.discard(pc)

    def check_end(self, code: Code) -> None:
        """Raises TraceError unless it has done all that it did in the emulator."""
        for what, lines, traced, counts in (
            ("branched", code.branch_lines, self._trace.branches, self._visits),
            ("accessed memory", code.access_lines, self._trace.accesses, self._used),
        ):
            for line in lines & traced.keys():
                count, expected = counts.get(line, 0), len(traced[line])
                if count != expected:
                    raise TraceError(
                        f"line {line} has {what} {count} times, and {expected} times in the "
                        "emulator"
                    )

    def _access(self, line: int, visit: int) -> Accessed | None:
        found = self._trace.accesses.get(line)
        if found is None:
            return None
        index = self._used.get(line, 0)
        # A branch around an access looks at it before the access itself does.
        if index and found[index - 1][0] == visit:
            return found[index - 1][1]
        if index < len(found) and found[index][0] == visit:
            self._used[line] = index + 1
            return found[index][1]
        return None


class Block:
    """A block on the SM.

    Attributes:
      warps: those that have not ended.
      seen: sectors of global memory that it has touched.
    """

    def __init__(self, traces: Sequence[WarpTrace], first_order: int):
        self.seen: set[int] = set()
        self.warps = {
            first_order + n: Warp(self, trace, (first_order + n) % 4, first_order + n)
            for n, trace in enumerate(traces)
        }

    def released(self) -> list[Warp]:
        """The warps that wait at a barrier, if all do."""
        waiting = [warp for warp in self.warps.values() if warp.arrived is not None]
        return waiting if len(waiting) == len(self.warps) else []
