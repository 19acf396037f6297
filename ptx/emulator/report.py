"""The report of a launch: coverage, bank conflicts, sectors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptx.emulator.lanes import WARP, Active

if TYPE_CHECKING:
    from ptx.emulator.access import Access
    from ptx.emulator.program import Program

__all__ = ["BankConflicts", "Report", "Sectors", "bank_passes", "sector_numbers"]

_SECTOR = 32
_BANKS = 32
_SECTOR_SHIFT = 5
_ROW_BITS = 40  # of a row of all banks: a process has addresses of 47 bits
_KEY_SHIFT = 44  # a warp's number stands above this bit, a sector's below


@dataclasses.dataclass(frozen=True)
class BankConflicts:
    """Bank conflicts of one line that accesses shared memory.

    Hardware serves a warp in one phase where each thread takes 4 bytes or less, in two where it
    takes 8, in four where it takes 16. A phase costs as many passes ("ways") as the bank that is
    hit most has different words; 1 means no conflict.

    Attributes:
      phases: number of phases.
      passes: passes that all phases took.
      worst: most passes of one phase.
    """

    phases: int
    passes: int
    worst: int

    @property
    def mean(self) -> float:
        return self.passes / self.phases

    def __add__(self, other: BankConflicts) -> BankConflicts:
        return BankConflicts(
            self.phases + other.phases, self.passes + other.passes, max(self.worst, other.worst)
        )

    def times(self, count: int) -> BankConflicts:
        """The conflicts of so many accesses like this one."""
        return BankConflicts(count * self.phases, count * self.passes, self.worst)


@dataclasses.dataclass(frozen=True)
class Sectors:
    """Sectors of 32 bytes of one line that accesses global memory.

    Attributes:
      requests: number of warps that made an access.
      sectors: sectors that they touched.
      ideal: sectors had the same bytes lain together.
    """

    requests: int
    sectors: int
    ideal: int

    @property
    def per_request(self) -> float:
        return self.sectors / self.requests

    def __add__(self, other: Sectors) -> Sectors:
        return Sectors(
            self.requests + other.requests, self.sectors + other.sectors, self.ideal + other.ideal
        )


class Report:
    """What one launch, or several of the same kernel, did.

    Attributes:
      kernel: name of the kernel.
      bank_conflicts: the conflicts of each line that accessed shared memory.
      sectors: the sectors of each line that accessed global memory.
    """

    def __init__(self, program: Program, statistics: bool = True):
        self.kernel = program.source.name
        self.bank_conflicts: dict[int, BankConflicts] = {}
        self.sectors: dict[int, Sectors] = {}
        self._program, self._statistics = program, statistics
        self._counts = np.zeros(len(program.source.instructions), np.int64)
        self._blocks = np.zeros(len(program.blocks), np.int64)
        self._phases: dict[tuple[int, bytes], BankConflicts] = {}

    @property
    def executed(self) -> dict[int, int]:
        """Line -> how often threads have executed its instructions.

        Threads whose predicate is off do not count, except at branches and barriers.
        """
        executed: dict[int, int] = {}
        for instruction, count in zip(
            self._program.source.instructions, self._instruction_counts(), strict=True
        ):
            executed[instruction.line] = executed.get(instruction.line, 0) + int(count)
        return executed

    @property
    def never_executed(self) -> list[tuple[int, str]]:
        """Line and text of the instructions that no thread has executed."""
        instructions = self._program.source.instructions
        return [
            (instruction.line, instruction.text)
            for instruction, count in zip(instructions, self._instruction_counts(), strict=True)
            if not count
        ]

    def merge(self, other: Report) -> Report:
        """The report of the launches of both.

        Raises:
          ValueError: the other is of another PTX text or kernel.
        """
        mine, theirs = self._program.source, other._program.source
        if mine.name != theirs.name or mine.instructions != theirs.instructions:
            raise ValueError(f"reports of different kernels: {self.kernel} and {other.kernel}")
        merged = Report(self._program)
        merged._counts = self._counts + other._counts
        merged._blocks = self._blocks + other._blocks
        for report in (self, other):
            for line, conflicts in report.bank_conflicts.items():
                _add(merged.bank_conflicts, line, conflicts)
            for line, sectors in report.sectors.items():
                _add(merged.sectors, line, sectors)
        return merged

    # ---- what the emulator tells it

    def count_block(self, number: int, active: Active) -> None:
        """The active lanes run basic block `number`."""
        self._blocks[number] += active.size

    def branch(self, number: int, active: Active, taken: np.ndarray | None) -> None:
        """Some of the active lanes, or all (None), take the branch at the end of a basic block."""

    def count_guarded(self, instruction: int, lanes: int) -> None:
        """`lanes` lanes execute an instruction that has a predicate."""
        self._counts[instruction] += lanes

    def shared_access(self, active: Active, address: np.ndarray, access: Access) -> None:
        """The active lanes access shared memory at these addresses of their blocks."""
        if not self._statistics:
            return
        indices, alike = active.indices, 1
        if active.size == active.lanes.count:
            of_blocks = address.reshape(len(active.lanes.block_ids), -1)
            if (of_blocks == of_blocks[0]).all():  # blocks mostly have the same addresses
                alike, address = len(of_blocks), of_blocks[0]
                indices = indices[: len(address)]
        if len(indices) > 1024:
            conflicts = _bank_conflicts(indices, address, access.width)
        else:  # loops repeat the same pattern of addresses; only the first time needs a look
            pattern = (access.width, address.tobytes() + indices.tobytes())
            conflicts = self._phases.get(pattern)
            if conflicts is None:
                if len(self._phases) > 512:
                    self._phases.clear()
                conflicts = _bank_conflicts(indices, address, access.width)
                self._phases[pattern] = conflicts
        _add(self.bank_conflicts, access.instruction.line, conflicts.times(alike))

    def global_access(
        self, active: Active, buffer: int | np.ndarray, position: np.ndarray, access: Access
    ) -> None:
        """The active lanes access global memory at these bytes.

        Args:
          active: the accessing lanes.
          buffer: number of the allocation of each, or one for all.
          position: the position of each first byte, in all of memory.
          access: the access.
        """
        if not self._statistics:
            return
        warp = active.warp
        key = (warp << _KEY_SHIFT) | (position >> _SECTOR_SHIFT)
        step = np.diff(key)
        if (step < 0).any():
            step = np.diff(np.sort(key))
        sectors = 1 + int(np.count_nonzero(step))
        starts = np.flatnonzero(np.diff(warp, prepend=-1))
        threads = np.diff(starts, append=len(warp))
        ideal = int((-(-threads * access.width // _SECTOR)).sum())
        found = Sectors(len(starts), sectors, min(ideal, sectors))
        _add(self.sectors, access.instruction.line, found)

    def _instruction_counts(self) -> np.ndarray:
        counts = self._counts.copy()
        for number, block in enumerate(self._program.blocks):
            for index in range(block.start, block.stop):
                if index not in self._program.guarded:
                    counts[index] += self._blocks[number]
        return counts


def _add(table: dict, line: int, entry: BankConflicts | Sectors) -> None:
    table[line] = table[line] + entry if line in table else entry


def sector_numbers(warp: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sectors that each warp touches: numbers of warps and of sectors, ascending.

    Args:
      warp: number of the warp of each lane.
      position: the position of each lane's first byte.
    """
    key = np.unique((warp << _KEY_SHIFT) | (position >> _SECTOR_SHIFT))
    return key >> _KEY_SHIFT, key & ((1 << _KEY_SHIFT) - 1)


def bank_passes(
    lanes: np.ndarray, address: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The phases of an access to shared memory, and the passes that each takes.

    Args:
      lanes: numbers of the lanes.
      address: the address of each lane's first byte.
      width: bytes of a lane.
    """
    words = max(1, width // 4)
    phase = lanes // (WARP // words)
    word = (address >> 2)[:, None] + np.arange(words)
    bank, row = word % _BANKS, word // _BANKS
    key = (((phase[:, None] * _BANKS + bank) << _ROW_BITS) | row).reshape(-1)
    place, passes = np.unique(np.unique(key) >> _ROW_BITS, return_counts=True)
    starts = np.flatnonzero(np.diff(place // _BANKS, prepend=-1))
    return place[starts] // _BANKS, np.maximum.reduceat(passes, starts)


def _bank_conflicts(lanes: np.ndarray, address: np.ndarray, width: int) -> BankConflicts:
    _, passes = bank_passes(lanes, address, width)
    return BankConflicts(len(passes), int(passes.sum()), int(passes.max()))
