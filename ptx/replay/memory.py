"""The unit of an SM for memory, its L1, and its part of L2 and of the GPU's memory."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from ptx.emulator.trace import Accessed
from ptx.replay.machine import Machine
from ptx.replay.warps import Block

__all__ = ["Memory"]

_SECTOR = 32
_PASS = 128  # bytes that L1 or shared memory read or write in a cycle
_SECTORS_OF_LINE = _PASS // _SECTOR
_BUFFERED = 32  # sectors of stores and additions that may be on their way from an SM


class Memory:
    """What serves all accesses of an SM, one after the other.

    Each method takes the cycle at which an instruction was issued and returns that at which the
    unit has taken it, that at which its operands have been read, and that at which it is done.

    Attributes:
      machine: the GPU.
      busy: cycles that each part was: "L1" (the unit, with shared memory), "L2" (what it sends),
        "stores" (what is sent to it), "memory" and "atomics".
    """

    def __init__(self, machine: Machine, active_sms: int, l1_bytes: int, cold: Mapping[int, float]):
        """Makes the memory of an SM.

        Args:
          machine: the GPU.
          active_sms: SMs that share L2 and the GPU's memory.
          l1_bytes: the size of L1, beside shared memory.
          cold: the share of the sectors that a block is the first of its own to touch which are
            not in L2 yet, by buffer.
        """
        self.busy: dict[str, float] = collections.defaultdict(float)
        self.machine, self._cold = machine, cold
        # Sector -> the cycle at which L1 has it; the one used longest ago comes first.
        self._l1: dict[int, float] = {}
        self._l1_sectors = l1_bytes // _SECTOR
        self._unit = self._l2 = self._dram = self._stored = self._added = 0.0
        sms, clock = active_sms, machine.clock
        self._l2_cycles = max(_SECTOR / machine.l2_port, _SECTOR * sms * clock / machine.l2)
        self._dram_cycles = _SECTOR * sms * clock / machine.memory
        self._sms_clock = sms * clock
        self._owed: dict[int, float] = collections.defaultdict(float)

    def shared(
        self, issued: float, accessed: Accessed, *, storing: bool
    ) -> tuple[float, float, float]:
        """An access to shared memory."""
        machine, width = self.machine, accessed.width
        start = self._take(issued, accessed.passes)
        late = accessed.passes - _passes(accessed)
        read = start + (machine.store_read if storing else machine.load_read).of(width)
        return start, read + late, start + machine.shared_latency.of(width) + late

    def other(self, issued: float) -> tuple[float, float, float]:
        """An instruction that only passes through the unit, or whose lanes are all off."""
        start = self._take(issued, 1)
        return (
            start,
            start + self.machine.load_read.of(4),
            start + self.machine.shared_latency.of(4),
        )

    def load(
        self, issued: float, block: Block, accessed: Accessed, *, through_l1: bool
    ) -> tuple[float, float, float]:
        """A load from global memory, or a copy to shared memory."""
        machine, l1 = self.machine, self._l1
        start = self._take(issued, max(accessed.passes, _tag_passes(accessed)))
        done = start + machine.l1_latency.of(accessed.width)
        for sector in accessed.sectors:
            ready = l1.pop(sector, None) if through_l1 else None
            if ready is None:
                ready = self._fetch(start, block, accessed.buffer, sector)
            if through_l1:
                l1[sector] = ready
            if ready > done:
                done = ready
        while len(l1) > self._l1_sectors:
            del l1[next(iter(l1))]
        return start, start + machine.load_read.of(accessed.width), done

    def store(self, issued: float, block: Block, accessed: Accessed) -> tuple[float, float, float]:
        """A store to global memory."""
        cycles = self._l2_cycles * len(accessed.sectors)
        start, end, self._stored = self._send(issued, accessed, self._stored, cycles)
        self.busy["stores"] += cycles
        for sector in accessed.sectors:
            if self._is_cold(block, accessed.buffer, sector):
                self._use_dram(start)
        return start, start + self.machine.store_read.of(accessed.width), end

    def add(self, issued: float, block: Block, accessed: Accessed) -> tuple[float, float, float]:
        """Atomic additions to global memory."""
        cycles = self._sms_clock / self.machine.additions.of(accessed.width) * len(accessed.sectors)
        start, end, self._added = self._send(issued, accessed, self._added, cycles)
        self.busy["atomics"] += cycles
        read = start + self.machine.store_read.of(accessed.width)
        return start, read, end + self.machine.l2_latency

    def _take(self, issued: float, passes: float, earliest: float = 0.0) -> float:
        """Keeps the unit for some passes; the cycle at which they begin."""
        start = max(issued + 2, self._unit, earliest)
        cycles = passes * self.machine.pass_cycles
        self._unit = start + cycles
        self.busy["L1"] += cycles
        return start

    def _send(
        self, issued: float, accessed: Accessed, free: float, cycles: float
    ) -> tuple[float, float, float]:
        """Sends sectors to L2, once there is room for them; the cycle when L2 has taken them."""
        passes = max(_passes(accessed), _tag_passes(accessed))
        start = self._take(issued, passes, free - _BUFFERED * cycles / len(accessed.sectors))
        return start, start + passes, max(free, start) + cycles

    def _use_dram(self, start: float) -> None:
        """Keeps the GPU's memory for a sector."""
        self._dram = max(self._dram, start) + self._dram_cycles
        self.busy["memory"] += self._dram_cycles

    def _fetch(self, start: float, block: Block, buffer: int, sector: int) -> float:
        """The cycle at which a sector that L1 lacks has come."""
        machine = self.machine
        asked = self._l2 = max(self._l2, start) + self._l2_cycles
        self.busy["L2"] += self._l2_cycles
        ready = asked + machine.l2_latency
        if self._is_cold(block, buffer, sector):
            self._use_dram(asked)
            ready = self._dram + machine.memory_latency
        return ready

    def _is_cold(self, block: Block, buffer: int, sector: int) -> bool:
        """Whether a sector is one that no block has touched before."""
        if sector in block.seen:
            return False
        block.seen.add(sector)
        self._owed[buffer] += self._cold.get(buffer, 0.0)
        if self._owed[buffer] < 1:
            return False
        self._owed[buffer] -= 1
        return True


def _tag_passes(accessed: Accessed) -> float:
    """Cycles that L1 looks for the lines of an access.

    For two in the first cycle, then for four each. Where a lane has 16 bytes, for one in each cycle
    in which 128 bytes are read, and 0.6 cycles for each further one: a fit to the wavefronts that
    Nsight Compute has counted on an H100.
    """
    lines = len({sector // _SECTORS_OF_LINE for sector in accessed.sectors})
    if accessed.width == 16:
        return _passes(accessed) + 0.6 * max(0, lines - _passes(accessed))
    return 1.0 if lines <= 2 else 1 + (lines - 1) / 4


def _passes(accessed: Accessed) -> int:
    return -(-accessed.lanes * accessed.width // _PASS)
