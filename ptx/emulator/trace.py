"""The trace of each warp of a launch: the branches that it took, and its accesses.

A simulator of the hardware replays it on the machine code that ptxas makes of the same text.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptx.emulator.lanes import Active
from ptx.emulator.report import Report, bank_passes, sector_numbers

if TYPE_CHECKING:
    from ptx.emulator.access import Access
    from ptx.emulator.program import Program

__all__ = ["ALL", "NONE", "SOME", "Accessed", "Trace", "WarpTrace"]

NONE, SOME, ALL = 0, 1, 2  # of a warp's lanes at a branch, that took it


@dataclasses.dataclass(frozen=True)
class Accessed:
    """One access of one warp.

    Attributes:
      sectors: numbers of the 32-byte sectors of global memory, ascending; none of shared memory.
      buffer: number of the allocation in global memory, of the first lane; -1 for shared memory.
      passes: the passes of the banks of shared memory, or of L1.
      lanes: the number of lanes that made the access.
      width: bytes of each.
    """

    sectors: tuple[int, ...]
    buffer: int
    passes: int
    lanes: int
    width: int


@dataclasses.dataclass
class WarpTrace:
    """What one warp did.

    Attributes:
      branches: line of a branch -> for each time that the warp came to it, how many of its lanes
        took it: NONE, SOME or ALL.
      accesses: line -> (how often the warp had come to the line before, the access) for each
        time that a lane made it.
    """

    branches: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    accesses: dict[int, list[tuple[int, Accessed]]] = dataclasses.field(default_factory=dict)


class Trace(Report):
    """A report that also has what each warp did.

    Attributes:
      warps: (number of the block in the grid, number of the warp in the block) -> what it did.
    """

    def __init__(self, program: Program, statistics: bool = True):
        super().__init__(program, statistics)
        self.warps: dict[tuple[int, int], WarpTrace] = {}
        self._line = [i.line for i in program.source.instructions]
        self._block_of = {
            self._line[index]: number
            for number, block in enumerate(program.blocks)
            for index in range(block.start, block.stop)
        }
        self._runs: dict[int, dict[tuple[int, int], int]] = {}  # block -> warp -> times
        self._known: dict[tuple[int, bytes], list[tuple[int, int]]] = {}

    def count_block(self, number: int, active: Active) -> None:
        super().count_block(number, active)
        runs = self._runs.setdefault(number, {})
        for warp in self._warps(active)[1]:
            runs[warp] = runs.get(warp, 0) + 1

    def branch(self, number: int, active: Active, taken: np.ndarray | None) -> None:
        block = self._program.blocks[number]
        if block.start == block.stop:  # where the lanes of several jumps back meet
            return
        line = self._line[block.stop - 1]
        starts, warps = self._warps(active)
        if taken is None:
            outcomes = [ALL] * len(warps)
        else:
            total = np.diff(np.append(starts, len(taken)))
            count = np.add.reduceat(taken, starts, dtype=np.int64)
            outcomes = np.where(count == 0, NONE, np.where(count == total, ALL, SOME)).tolist()
        for warp, outcome in zip(warps, outcomes, strict=True):
            self.warps.setdefault(warp, WarpTrace()).branches.setdefault(line, []).append(outcome)

    def shared_access(self, active: Active, address: np.ndarray, access: Access) -> None:
        super().shared_access(active, address, access)
        _, warps = self._warps(active)
        passes = self._passes(active, address, access.width)
        for warp, (taken, count) in zip(warps, passes, strict=True):
            self._note(warp, access, Accessed((), -1, taken, count, access.width))

    def global_access(
        self, active: Active, buffer: int | np.ndarray, position: np.ndarray, access: Access
    ) -> None:
        super().global_access(active, buffer, position, access)
        warp, sector = sector_numbers(active.warp, position)
        starts = np.flatnonzero(np.diff(warp, prepend=-1))
        sectors = np.split(sector, starts[1:])
        first, warps = self._warps(active)
        buffers = np.broadcast_to(buffer, active.size)[first].tolist()
        passes = self._passes(active, position, access.width)
        for name, touched, of, (taken, count) in zip(warps, sectors, buffers, passes, strict=True):
            accessed = Accessed(tuple(touched.tolist()), of, taken, count, access.width)
            self._note(name, access, accessed)

    def _passes(self, active: Active, address: np.ndarray, width: int) -> list[tuple[int, int]]:
        """The passes of each warp's access through the banks, and its lanes."""
        pattern = (width, address.tobytes() + active.indices.tobytes())
        found = self._known.get(pattern)
        if found is None:
            if len(self._known) > 4096:
                self._known.clear()
            phase, passes = bank_passes(active.indices, address, width)
            warps, counts = np.unique(active.warp, return_counts=True)
            of_warp = np.searchsorted(warps, phase // max(1, width // 4))
            total = np.bincount(of_warp, passes).astype(np.int64)
            found = list(zip(total.tolist(), counts.tolist(), strict=True))
            self._known[pattern] = found
        return found

    def _note(self, warp: tuple[int, int], access: Access, accessed: Accessed) -> None:
        line = access.instruction.line
        times = self._runs[self._block_of[line]][warp] - 1
        noted = self.warps.setdefault(warp, WarpTrace()).accesses.setdefault(line, [])
        if noted and noted[-1][0] == times:  # a copy reads one memory and writes the other
            read = noted.pop()[1]
            accessed = dataclasses.replace(read, passes=accessed.passes, lanes=accessed.lanes)
        noted.append((times, accessed))

    def _warps(self, active: Active) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Where each warp begins among the active lanes, and which it is."""
        starts = np.flatnonzero(np.diff(active.warp, prepend=-1))
        block, of_block = np.divmod(active.warp[starts], active.lanes.warps_per_block)
        return starts, list(
            zip(active.lanes.block_ids[block].tolist(), of_block.tolist(), strict=True)
        )
