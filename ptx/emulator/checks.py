"""The search for races: a vector clock for each warp, and shadow memory of the last accesses.

Two accesses to one place race where at least one writes, different threads make them, and no
barrier lies between: `bar.sync` for warps, `bar.warp.sync` for the threads of one warp. Atomic
operations do not race with each other, and on global memory not with reads.

Method: C. Flanagan, S. Freund: FastTrack: efficient and precise dynamic race detection (PLDI
2009), with clocks of warps instead of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.errors import RaceError
from ptx.emulator.lanes import WARP, Active, Lanes

__all__ = ["Clocks", "GlobalRaces", "SharedRaces"]

# A stamp says who made an access, and when: block + 1, clock of the warp, flags, thread.
_THREAD = (1 << 10) - 1
_SEVERAL, _BLOCKS, _ATOMIC = 1 << 10, 1 << 11, 1 << 12  # more threads; of more blocks; atomic
_FLAGS = _SEVERAL | _BLOCKS | _ATOMIC
_CLOCK_SHIFT, _CLOCK = 13, (1 << 24) - 1
_BLOCK_SHIFT = 37

_MOST_READS = 1 << 22  # granules of reads that are remembered as they were made


class Clocks:
    """What each warp has seen of the others.

    Attributes:
      known: [blocks, warps, warps]; a warp has seen the accesses of another whose clock was
        lower. Its own entry is its clock.
      stamp: int64, by lane.
      floor: int64, by lane; its warp has seen all accesses of its block with lower stamps.
      phase: by lane, the number of times that all warps of its block have met, plus 1.
      phases: the number of times that all blocks have done so at once, plus 1.
    """

    def __init__(self, lanes: Lanes):
        warps = lanes.warps_per_block
        self.known = np.zeros((len(lanes.block_ids), warps, warps), np.int64)
        self.known[:, np.arange(warps), np.arange(warps)] = 1
        self._row = lanes.indices // WARP
        self._of_block = (lanes.block_ids[lanes.block] + 1) << _BLOCK_SHIFT
        self._fixed = self._of_block | lanes.thread
        self._warps, self._block = warps, lanes.block
        self.phase, self.phases = np.ones(lanes.count, np.int32), 1
        self._update()

    def advance(self, blocks: np.ndarray) -> None:
        """All warps of these blocks have met at a barrier."""
        self.known[blocks] = self.known[blocks].max(axis=(1, 2), keepdims=True) + 1
        met = np.zeros(len(self.known), np.int32)
        met[blocks] = 1
        self.phase = self.phase + met[self._block]
        self.phases += bool(met.all())
        self._update()

    def row_at_arrival(self, block: int, warp: int) -> np.ndarray:
        """What others learn from a warp that arrives at a barrier without waiting."""
        self.known[block, warp, warp] += 1
        self._update()
        return self.known[block, warp].copy()

    def join(self, block: int, waiting: np.ndarray, arrived: list[np.ndarray]) -> None:
        """The warps `waiting` of a block have met, and learn what the others brought."""
        known = self.known[block]
        joint = np.maximum.reduce([*known[waiting], *arrived])
        clock = joint.max() + 1
        joint[waiting] = clock
        known[waiting] = np.maximum(known[waiting], joint)
        self._update()

    def meet(self, rows: np.ndarray) -> None:
        """The threads of each of these warps have met."""
        block, warp = rows // self._warps, rows % self._warps
        self.known[block, warp, warp] += 1
        self._update()

    def ordered(self, rows: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Whether warps have seen accesses of their own block. `rows` broadcasts to `stamps`."""
        warp = (stamps & _THREAD) // WARP
        seen = self.known.reshape(-1)[rows * self._warps + warp]
        return seen > ((stamps >> _CLOCK_SHIFT) & _CLOCK)

    def all_ordered(self, rows: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Whether warps have seen the accesses of all warps of their block up to these."""
        seen = self.known.reshape(-1, self._warps).min(axis=1)[rows]
        return seen > ((stamps >> _CLOCK_SHIFT) & _CLOCK)

    def _update(self) -> None:
        own = np.arange(self._warps)
        self.stamp = self._fixed | (self.known[:, own, own].reshape(-1)[self._row] << _CLOCK_SHIFT)
        seen = self.known.min(axis=2).reshape(-1)
        self.floor = self._of_block | (seen[self._row] << _CLOCK_SHIFT)


class _Read(NamedTuple):
    """An instruction that has read.

    Attributes:
      active: the lanes.
      place: the granules of each of them.
      stamp: the stamps of all lanes.
      phase: the phases of all lanes.
    """

    active: Active
    place: np.ndarray
    stamp: np.ndarray
    phase: np.ndarray


class SharedRaces:
    """Shadow of shared memory: the last write of each granule, and the last read of each warp.

    A read is before whatever follows the next barrier of all its block's threads, and most of what
    is read is written only then. So of each granule just the phase is put down in which it was
    last read; who read it, only once something else in this phase writes it.
    """

    def __init__(self, size: int, granule: int, lanes: Lanes):
        self._granule, self._warps = granule, lanes.warps_per_block
        count = size // granule
        self._writes = np.zeros(count, np.int64)
        self._read_in = np.zeros(count, np.int32)
        self._reads = np.zeros((count, self._warps), np.int64)
        self._latest_reads: list[_Read] = []  # since `_phases`, and not in `_reads`
        self._held = 0  # granules of these
        self._phases = lanes.clocks.phases
        self._atomics: np.ndarray | None = None

    def access(self, active: Active, position: np.ndarray, access: Access) -> None:
        """Checks an access against those before it, and remembers it."""
        place, clocks = _granules(position, access.width, self._granule), active.lanes.clocks
        atomic = access.kind is Kind.ATOMIC
        write = self._writes[place]
        suspect = np.count_nonzero(write >= clocks.floor[active.selection][:, None]) > 0
        if access.kind is Kind.READ and not suspect and self._atomics is None:  # as nearly all do
            if not access.strong:
                self._remember(clocks, _Read(active, place, clocks.stamp, clocks.phase))
            return
        stamp = clocks.stamp[active.selection][:, None]
        row = active.warp[:, None]
        if suspect and (clash := self._clash(clocks, row, stamp, write)).any():
            _race(active, clash, write, access, "write")
        if self._atomics is not None and not atomic and not access.strong:
            self._check_each_warp(
                active, row, stamp, self._atomics[place], access, Kind.ATOMIC.value
            )
        if access.kind is Kind.READ:
            if not access.strong:
                self._remember(clocks, _Read(active, place, clocks.stamp, clocks.phase))
            return
        if (self._read_in[place] == clocks.phase[active.selection][:, None]).any():
            self._put_down_reads(clocks)
            self._check_each_warp(active, row, stamp, self._reads[place], access, "read")
        if atomic or access.strong:
            if self._atomics is None:
                self._atomics = np.zeros_like(self._reads)
            self._note(self._atomics, place, row % self._warps, stamp)
            return
        self._writes[place] = stamp
        if (clash := self._writes[place] != stamp).any():
            _race(active, clash, self._writes[place], access, "write")

    def _clash(
        self, clocks: Clocks, row: np.ndarray, stamp: np.ndarray, other: np.ndarray
    ) -> np.ndarray:
        """Where accesses before are of other threads, and not ordered before those of `stamp`."""
        suspect = (other != 0) & (((other ^ stamp) & (_THREAD | _SEVERAL)) != 0)
        if suspect.any():
            suspect &= ~clocks.ordered(row, other)
        return suspect

    def _check_each_warp(
        self,
        active: Active,
        row: np.ndarray,
        stamp: np.ndarray,
        others: np.ndarray,
        access: Access,
        before: str,
    ) -> None:
        clash = self._clash(active.lanes.clocks, row[..., None], stamp[..., None], others)
        if clash.any():
            column = clash.argmax(axis=2)[..., None]
            other = np.take_along_axis(others, column, axis=2)[..., 0]
            _race(active, np.any(clash, axis=2), other, access, before)

    def _remember(self, clocks: Clocks, read: _Read) -> None:
        if self._phases != clocks.phases:  # all that was read before is ordered before all to come
            self._phases = clocks.phases
            self._latest_reads.clear()
            self._held = 0
        self._read_in[read.place] = read.phase[read.active.selection][:, None]
        self._latest_reads.append(read)
        self._held += read.place.size
        if self._held > _MOST_READS:
            self._put_down_reads(clocks)

    def _put_down_reads(self, clocks: Clocks) -> None:
        for active, place, stamp, phase in self._latest_reads:
            if (phase[active.selection] == clocks.phase[active.selection]).any():
                warp = active.warp[:, None] % self._warps
                self._note(self._reads, place, warp, stamp[active.selection][:, None])
        self._latest_reads.clear()
        self._held = 0

    def _note(
        self, table: np.ndarray, place: np.ndarray, warp: np.ndarray, stamp: np.ndarray
    ) -> None:
        """Remembers an access of each warp, and whether several of its threads made it."""
        flat = table.reshape(-1)
        index = place * self._warps + warp
        old = flat[index]
        # Of the same clock, and another thread or several.
        joined = ((old ^ stamp) >> _CLOCK_SHIFT == 0) & (old != stamp)
        flat[index] = stamp | np.where(joined, _SEVERAL, 0)
        if (lost := (flat[index] ^ stamp) & _THREAD != 0).any():
            flat[index[lost]] |= _SEVERAL


class GlobalRaces:
    """Shadow of the writable buffers: the last write and the last read of each granule."""

    def __init__(self, size: int, granule: int):
        self._granule = granule
        # Not `zeros_like`, which writes: what no thread touches takes no memory.
        self._writes, self._reads = (np.zeros(-(-size // granule), np.int64) for _ in range(2))

    def access(self, active: Active, position: np.ndarray, access: Access) -> None:
        """Checks an access against those before it, and remembers it."""
        place, clocks = _granules(position, access.width, self._granule), active.lanes.clocks
        stamp = clocks.stamp[active.selection][:, None]
        row = active.warp[:, None]
        atomic = access.kind is Kind.ATOMIC or access.strong
        reads = access.kind is Kind.READ
        write = self._writes[place]
        if access.constant and (write != 0).any():
            _race(active, write != 0, write, access, "write")
        joined = clash = self._clash(clocks, row, stamp, write)
        if (atomic or reads) and clash.any():
            clash = clash & (write & _ATOMIC == 0)
        if clash.any():
            _race(active, clash, write, access, "write")
        if reads:
            if not access.strong:
                old = self._reads[place]
                self._note(stamp, self._reads, place, old, self._clash(clocks, row, stamp, old))
            return
        if atomic:
            self._note(stamp | _ATOMIC, self._writes, place, write, joined)
            return
        if (clash := self._clash(clocks, row, stamp, self._reads[place])).any():
            _race(active, clash, self._reads[place], access, "read")
        self._writes[place] = stamp
        if (clash := self._writes[place] != stamp).any():
            _race(active, clash, self._writes[place], access, "write")

    def _clash(
        self, clocks: Clocks, row: np.ndarray, stamp: np.ndarray, other: np.ndarray
    ) -> np.ndarray:
        away = (other ^ stamp) >> _BLOCK_SHIFT != 0
        suspect = (other != 0) & (away | ((other ^ stamp) & (_THREAD | _SEVERAL) != 0))
        if not suspect.any():
            return suspect
        ordered = clocks.ordered(row, other)
        if (several := other & _SEVERAL != 0).any():
            ordered = np.where(several, clocks.all_ordered(row, other), ordered)
        return suspect & (away | (other & _BLOCKS != 0) | ~ordered)

    def _note(
        self,
        stamp: np.ndarray,
        table: np.ndarray,
        place: np.ndarray,
        old: np.ndarray,
        joined: np.ndarray,
    ) -> None:
        """Remembers an access in `table`.

        Args:
          stamp: the stamp of the access.
          table: last accesses, by granule.
          place: the granules.
          old: their last accesses.
          joined: where these are not ordered before it, so that both are remembered.
        """
        if joined.any():
            away = joined & (((old ^ stamp) >> _BLOCK_SHIFT != 0) | (old & _BLOCKS != 0))
            flags = np.where(joined, _SEVERAL, 0) | np.where(away, _BLOCKS, 0)
            table[place] = stamp | flags
        else:
            table[place] = stamp
        now = table[place]
        if (lost := (now ^ stamp) & ~_FLAGS != 0).any():
            away = lost & ((now ^ stamp) >> _BLOCK_SHIFT != 0)
            table[place[lost]] |= _SEVERAL
            table[place[away]] |= _BLOCKS


def _granules(position: np.ndarray, width: int, granule: int) -> np.ndarray:
    """Numbers of the granules that each access touches: [lanes, granules]."""
    first = (position >> (granule.bit_length() - 1))[:, None]
    return first if width <= granule else first + np.arange(-(-width // granule))


def _race(
    active: Active, clash: np.ndarray, other: np.ndarray, access: Access, before: str
) -> None:
    """Raises RaceError for the first lane with a clash in any of its granules."""
    stamp = int(other[clash][0])
    thread, block = stamp & _THREAD, (stamp >> _BLOCK_SHIFT) - 1
    message = (
        f"race: {access.kind.value} after {before} by thread {thread} of block {block} "
        "without a barrier in between"
    )
    active.fail(RaceError, access.instruction, np.any(clash, axis=1), message)
