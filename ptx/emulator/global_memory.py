"""Global memory: the allocations that a launch can reach, used where they lie."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.checks import GlobalRaces
from ptx.emulator.errors import OutOfBoundsError, ReadOnlyError, UninitializedError
from ptx.emulator.lanes import Active
from ptx.emulator.states import WRITTEN, all_bytes, check_alignment, set_bytes

__all__ = ["Allocation", "GlobalMemory", "aligned_bytes", "own_address"]

_OWN_ADDRESSES = 1 << 56  # above whatever a process can have
_OWN_SHIFT = 40
_NEAR = 1 << 39  # bytes beside an allocation in which an address is taken to be meant for it
_LINE = 256  # bytes: no access is wider, and no address is aligned better


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """Bytes in global memory, and what may be done to them.

    Attributes:
      address: their address in the kernel.
      data: the bytes themselves, which the kernel reads and writes: uint8, contiguous.
      writable: whether the kernel may write them.
      initialized: whether they hold values; if not, the kernel may read only what it has written.
      name: its name in errors; "" for its address.
      barred: why no kernel may touch it, for example "freed"; "" if one may.
    """

    address: int
    data: np.ndarray
    writable: bool = True
    initialized: bool = True
    name: str = ""
    barred: str = ""

    def __post_init__(self):
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or not self.data.flags.c_contiguous:
            raise TypeError(f"{self}: contiguous uint8 in one dimension is expected")
        if not self.writable and not self.initialized:
            raise ValueError(f"{self} is neither writable nor initialized, and of no use")

    def __str__(self) -> str:
        return self.name or f"the allocation at {self.address:#x}"

    @property
    def end(self) -> int:
        return self.address + self.data.nbytes


def aligned_bytes(size: int, alignment: int) -> np.ndarray:
    """New memory of `size` bytes at an address that is a multiple of `alignment`."""
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]


def own_address(number: int) -> int:
    """The address of an allocation that is far from all others; `number` counts them."""
    return _OWN_ADDRESSES + (number << _OWN_SHIFT)


class GlobalMemory:
    """All allocations that a launch can reach.

    Attributes:
      bytes: this process's memory, from before the first allocation to the end of the last one;
        only where there are allocations may it be looked at.

    Raises:
      ValueError: two allocations overlap, or data lie at an address that has not the alignment of
        the one at which the kernel sees them.
    """

    def __init__(self, allocations: Sequence[Allocation], granule: int, check_races: bool):
        self._allocations = sorted(
            (a for a in allocations if a.data.nbytes), key=lambda a: a.address
        )
        for one, other in itertools.pairwise(self._allocations):
            if one.end > other.address:
                raise ValueError(f"{one} and {other} overlap")
        self._addresses = [a.address for a in self._allocations]
        self._address = np.array(self._addresses, np.int64)
        self._size = np.array([a.data.nbytes for a in self._allocations], np.int64)
        self._writable = np.array([a.writable for a in self._allocations], np.bool_)
        self._complete = np.array([a.initialized for a in self._allocations], np.bool_)
        self._barred = np.array([bool(a.barred) for a in self._allocations], np.bool_)
        self.bytes, self._start = _process_memory([a.data for a in self._allocations])
        if ((self._start - self._address) % 32).any():
            raise ValueError("data lie at addresses of another alignment than the kernel sees")
        # What is remembered of each byte that may be written, one allocation after the other.
        start = self._address % _LINE
        kept = np.where(self._writable, -(-(start + self._size) // _LINE) * _LINE, 0)
        self._shadow, shadowed = np.cumsum(kept) - kept + start, int(kept.sum())
        self._state = np.zeros(0 if self._complete.all() else shadowed, np.uint8)
        self._races = GlobalRaces(shadowed, granule) if check_races else None

    def unwritten(self) -> Iterator[tuple[Allocation, np.ndarray]]:
        """The allocations that lack values, each with the offsets of the bytes that do."""
        for number, allocation in enumerate(self._allocations):
            if not (allocation.initialized or allocation.barred):
                start = int(self._shadow[number])
                state = self._state[start : start + allocation.data.nbytes]
                if len(missing := np.flatnonzero(state != WRITTEN)):
                    yield allocation, missing

    def locate(self, active: Active, address: np.ndarray, access: Access) -> np.ndarray:
        """Checks an access and returns its positions in `bytes`.

        Args:
          active: the accessing lanes.
          address: int64, one for each active lane.
          access: the access.
        """
        instruction, width = access.instruction, access.width
        check_alignment(active, address, access, "global")
        buffer, offset = self._find(active, address, access)
        position = offset + self._start[buffer]
        active.lanes.report.global_access(active, buffer, position, access)
        complete, writable = self._complete[buffer], self._writable[buffer]
        if access.kind is not Kind.READ and not writable.all():
            readonly = np.broadcast_to(~writable, len(address))
            message = f"{self._describe(int(address[readonly][0]), access)}: it is read-only"
            active.fail(ReadOnlyError, instruction, readonly, message)
        if complete.all() and not (self._races and writable.any()):
            return position
        shadow = offset + self._shadow[buffer]
        if access.kind is not Kind.WRITE and not complete.all():
            missing = ~np.broadcast_to(complete, len(address))
            chosen = slice(None) if missing.all() else missing.copy()
            missing[chosen] = ~all_bytes(self._state, shadow[chosen], width, WRITTEN)
            if missing.any():
                where = self._describe(int(address[missing][0]), access)
                message = f"{where}: nothing has written there"
                active.fail(UninitializedError, instruction, missing, message)
        if self._races and writable.any():
            if not writable.all():
                chosen = active.subset(writable)
                self._races.access(chosen, shadow[writable], access)
            else:
                self._races.access(active, shadow, access)
        if access.kind is not Kind.READ and not complete.all():
            set_bytes(self._state, shadow, width, WRITTEN)
        return position

    def _find(
        self, active: Active, address: np.ndarray, access: Access
    ) -> tuple[int | np.ndarray, np.ndarray]:
        """Number of the allocation of each address (one number, if it is the same), and offset."""
        first = bisect.bisect_right(self._addresses, address[0]) - 1
        if first >= 0:
            offset, last = address - self._addresses[first], int(self._size[first]) - access.width
            if not self._barred[first] and int(np.maximum.reduce(offset.view(np.uint64))) <= last:
                return first, offset
        number = np.searchsorted(self._address, address, "right") - 1
        wrong = number < 0
        if len(self._address):
            offset = address - self._address[number]
            wrong |= (offset > self._size[number] - access.width) | self._barred[number]
        else:
            offset = address
        if wrong.any():
            message = self._describe(int(address[wrong][0]), access)
            active.fail(OutOfBoundsError, access.instruction, wrong, message)
        return number, offset

    def _describe(self, address: int, access: Access) -> str:
        """The access, and where it lies relative to the nearest allocation."""
        what = f"{access.width}-byte {access.kind.value} at"
        after = bisect.bisect_right(self._addresses, address)
        beside = [
            (max(address - a.end, a.address - address, 0), -a.address, a)
            for a in self._allocations[max(after - 1, 0) : after + 1]
        ]
        distance, _, nearest = min(beside, default=(_NEAR, 0, None))
        if nearest is None or distance >= _NEAR:
            return f"{what} address {address:#x}, which is in no buffer"
        offset, size = address - nearest.address, nearest.data.nbytes
        where = f"{what} byte {offset} of {nearest}, which has {size}"
        if address < _OWN_ADDRESSES:
            where += f": address {address:#x}"
        return f"{where}: it is {nearest.barred}" if nearest.barred else where


def _process_memory(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The memory that spans some arrays, as one array, and where each of them starts in it.

    No byte of it is touched here: between the arrays there may be none.
    """
    addresses = np.array([array.ctypes.data for array in arrays], np.int64)
    if not len(addresses):
        return np.zeros(_LINE, np.uint8), addresses
    start = int(addresses.min()) & -_LINE
    end = max(array.ctypes.data + array.nbytes for array in arrays)
    memory = np.asarray(_Memory(start, -(-(end - start) // _LINE) * _LINE))
    return memory, addresses - start


class _Memory:
    """Memory of this process, for numpy."""

    def __init__(self, address: int, size: int):
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
