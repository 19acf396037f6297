"""Global and shared memory: addresses, bounds, and what has been written.

A global pointer is the number of a buffer times 2^40 plus an offset, so no stray index reaches
another buffer. A shared address counts from 1024 in each block, with unusable bytes between the
variables. A generic pointer to shared memory is its address plus 2^60.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.checks import GlobalRaces, SharedRaces
from ptx.emulator.errors import (
    InFlightError,
    MisalignedError,
    OutOfBoundsError,
    ReadOnlyError,
    UninitializedError,
)
from ptx.emulator.lanes import UNSIGNED, Lanes, Selection

if TYPE_CHECKING:
    from ptx.emulator.syntax import KernelSource

__all__ = [
    "SHARED_WINDOW",
    "Allocation",
    "GlobalMemory",
    "SharedLayout",
    "SharedMemory",
]

SHARED_WINDOW = 1 << 60
_BUFFER_SHIFT = 40
_SHARED_BASE = 1024
_GAP = 128  # all banks once: a variable stays on the banks that it has without the gaps
_UNWRITTEN, _WRITTEN, _IN_FLIGHT, _NOWHERE = range(4)  # states of a byte


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What becomes a buffer in global memory: its bytes, and what may be done to it."""

    data: np.ndarray
    writable: bool
    initialized: bool


class GlobalMemory:
    """All buffers, one after the other in `bytes`; writable ones first."""

    def __init__(self, allocations: Sequence[Allocation], granule: int, check_races: bool):
        count = len(allocations) + 1  # buffer 0 is none: a null pointer reaches nothing
        self._start, self._size = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._writable = np.array([False, *(a.writable for a in allocations)])
        self._complete = np.array([False, *(a.initialized for a in allocations)])
        end = 0
        for number in sorted(range(1, count), key=lambda i: not self._writable[i]):
            self._start[number], self._size[number] = end, allocations[number - 1].data.nbytes
            end += -(-int(self._size[number]) // 256) * 256
        shadowed = int(sum(-(-self._size[self._writable] // 256) * 256))
        self.bytes = np.zeros(max(end, 256), np.uint8)
        self._state = np.full(len(self.bytes), _UNWRITTEN, np.uint8)
        for number, allocation in enumerate(allocations, 1):
            place = self._slice(number)
            self.bytes[place] = np.ascontiguousarray(allocation.data).reshape(-1).view(np.uint8)
            if allocation.initialized:
                self._state[place] = _WRITTEN
        self._races = GlobalRaces(shadowed, granule) if check_races else None

    def pointer(self, number: int) -> int:
        """Device pointer to the start of buffer `number`, counted from 1."""
        return number << _BUFFER_SHIFT

    def data(self, number: int) -> np.ndarray:
        """The bytes of buffer `number`."""
        return self.bytes[self._slice(number)]

    def unwritten(self, number: int) -> np.ndarray:
        """Offsets of the bytes of buffer `number` that hold nothing."""
        return np.flatnonzero(self._state[self._slice(number)] != _WRITTEN)

    def locate(
        self, lanes: Lanes, active: Selection, address: np.ndarray, access: Access
    ) -> np.ndarray:
        """Checks an access and returns its positions in `bytes`.

        Args:
          lanes: all lanes.
          active: those that access.
          address: int64, one for each active lane.
          access: what they do.
        """
        instruction, width = access.instruction, access.width
        _check_alignment(lanes, active, address, access, "global")
        number, offset = address >> _BUFFER_SHIFT, address & ((1 << _BUFFER_SHIFT) - 1)
        first = int(number[0])
        one = bool((number == first).all())
        if one and 0 < first < len(self._size):
            outside = offset > self._size[first] - width
        else:
            outside = (number <= 0) | (number >= len(self._size))
            outside |= offset > self._size[np.where(outside, 0, number)] - width
        if outside.any():
            message = self._describe(int(address[outside][0]), width, access.kind)
            lanes.fail(OutOfBoundsError, instruction, active, outside, message)
        buffer = first if one else number
        position = offset + self._start[buffer]
        lanes.report.global_access(lanes, active, position, access)
        complete, writable = self._complete[buffer], self._writable[buffer]
        if access.kind is not Kind.READ and not writable.all():
            readonly = np.broadcast_to(~writable, len(address))
            message = f"{access.kind.value} of a read-only buffer"
            lanes.fail(ReadOnlyError, instruction, active, readonly, message)
        if access.kind is not Kind.WRITE and not complete.all():
            missing = ~_all_bytes(self._state, position, width, _WRITTEN)
            if missing.any():
                message = f"{access.kind.value} of global memory that nothing has written"
                lanes.fail(UninitializedError, instruction, active, missing, message)
        if self._races and writable.any():
            if not writable.all():
                chosen = lanes.subset(active, writable)
                self._races.access(lanes, chosen, position[writable], access)
            else:
                self._races.access(lanes, active, position, access)
        if access.kind is not Kind.READ and not complete.all():
            _set_bytes(self._state, position, width, _WRITTEN)
        return position

    def _slice(self, number: int) -> slice:
        start = int(self._start[number])
        return slice(start, start + int(self._size[number]))

    def _describe(self, address: int, width: int, kind: Kind) -> str:
        number, offset = divmod(address, 1 << _BUFFER_SHIFT)
        if offset >= 1 << (_BUFFER_SHIFT - 1):  # before the start of the next buffer
            number, offset = number + 1, offset - (1 << _BUFFER_SHIFT)
        if 0 < number < len(self._size):
            where = f"byte {offset} of buffer {number}, which has {int(self._size[number])}"
        else:
            where = f"address {address:#x}, which is in no buffer"
        return f"{width}-byte {kind.value} at {where}"


class SharedLayout:
    """Where the shared variables of a kernel lie in each block.

    Attributes:
      offsets: address of each variable.
      static_size: bytes of the static variables, with the padding of their alignment.
      end: address after the static variables, where the dynamic ones start.
      gaps: addresses from and to which no variable lies.
    """

    def __init__(self, source: KernelSource):
        self.offsets: dict[str, int] = {}
        self.gaps = [(0, _SHARED_BASE)]
        end, size = _SHARED_BASE, 0
        for variable in source.shared:
            if variable.size is None:
                continue
            padding = -size % variable.alignment
            end, size = end + padding, size + padding + variable.size
            self.offsets[variable.name] = end
            end += variable.size
            self.gaps.append((end, end + _GAP))
            end += _GAP
        self.static_size = size
        self.end = -(-end // _GAP) * _GAP
        for variable in source.shared:
            if variable.size is None:
                self.offsets[variable.name] = self.end

    def describe(self, address: int) -> str:
        """Where an address lies, relative to the last variable that starts before it."""
        before = [(start, name) for name, start in self.offsets.items() if start <= address]
        if not before:
            return f"shared address {address}, which is before every variable"
        start, name = max(before)
        return f"byte {address - start} from the start of {name}"


class SharedMemory:
    """Shared memory of all blocks that run together.

    Attributes:
      bytes: the memory of the blocks, one after the other.
      dynamic_size: bytes that the launch adds.
      total_size: bytes of one block.
    """

    def __init__(self, lanes: Lanes, dynamic_size: int, granule: int, check_races: bool):
        layout = lanes.program.layout
        self._layout, self.dynamic_size = layout, dynamic_size
        self.total_size = layout.static_size + dynamic_size
        self._end = layout.end + dynamic_size
        self._stride = -(-self._end // 128) * 128
        blocks = len(lanes.block_ids)
        self.bytes = np.zeros(self._stride * blocks, np.uint8)
        state = np.full((blocks, self._stride), _UNWRITTEN, np.uint8)
        for start, stop in layout.gaps:
            state[:, start:stop] = _NOWHERE
        state[:, self._end :] = _NOWHERE
        self._state = state.reshape(-1)
        self._races = SharedRaces(len(self.bytes), granule, lanes) if check_races else None

    def locate(
        self, lanes: Lanes, active: Selection, address: np.ndarray, access: Access
    ) -> np.ndarray:
        """Checks an access and returns its positions in `bytes`; see `GlobalMemory.locate`."""
        instruction, width, kind = access.instruction, access.width, access.kind
        _check_alignment(lanes, active, address, access, "shared")
        outside = (address < 0) | (address > self._end - width)
        if not outside.any():
            position = address + lanes.block[active] * self._stride
            if kind in (Kind.WRITE, Kind.COPY):
                good = ~_any_byte(self._state, position, width, _IN_FLIGHT)
            else:
                good = _all_bytes(self._state, position, width, _WRITTEN)
            if not good.all():
                self._explain(lanes, active, address, position, ~good, access)
        else:
            message = f"{width}-byte {kind.value} at " + self._layout.describe(
                int(address[outside][0])
            )
            lanes.fail(OutOfBoundsError, instruction, active, outside, message)
        lanes.report.shared_access(lanes, active, address, access)
        if self._races:
            self._races.access(lanes, active, position, access)
        if kind is not Kind.READ:
            state = _IN_FLIGHT if kind is Kind.COPY else _WRITTEN
            _set_bytes(self._state, position, width, state)
        return position

    def land(
        self,
        lanes: Lanes,
        active: Selection,
        position: np.ndarray,
        data: np.ndarray,
        access: Access,
    ) -> None:
        """Writes what an asynchronous copy of the lanes `active` has brought.

        Args:
          lanes: all lanes.
          active: those that have waited for it.
          position: where, from `locate`.
          data: uint8[lanes, width].
          access: the copy.
        """
        width = data.shape[1]
        self.bytes[position[:, None] + np.arange(width)] = data
        _set_bytes(self._state, position, width, _WRITTEN)
        if self._races:
            self._races.access(lanes, active, position, access)

    def _explain(
        self,
        lanes: Lanes,
        active: Selection,
        address: np.ndarray,
        position: np.ndarray,
        wrong: np.ndarray,
        access: Access,
    ) -> None:
        """Raises the error that the state of the accessed bytes calls for."""
        first = int(np.flatnonzero(wrong)[0])
        states = self._state[position[first] : position[first] + access.width]
        where = self._layout.describe(int(address[first]))
        what, instruction = f"{access.kind.value} at {where}", access.instruction
        if (states == _NOWHERE).any():
            message = f"{access.width}-byte {what}: outside every variable"
            lanes.fail(OutOfBoundsError, instruction, active, wrong, message)
        if (states == _IN_FLIGHT).any():
            message = f"{what}, to which a cp.async is still on its way"
            lanes.fail(InFlightError, instruction, active, wrong, message)
        message = f"{what}, which nothing has written"
        lanes.fail(UninitializedError, instruction, active, wrong, message)


def _check_alignment(
    lanes: Lanes, active: Selection, address: np.ndarray, access: Access, space: str
) -> None:
    if access.alignment == 1:
        return
    crooked = address & (access.alignment - 1)
    if crooked.any():
        message = (
            f"{space} {access.kind.value} at an address that is no multiple of {access.alignment}"
        )
        lanes.fail(MisalignedError, access.instruction, active, crooked != 0, message)


def _all_bytes(state: np.ndarray, position: np.ndarray, width: int, value: int) -> np.ndarray:
    """Whether all bytes of each access are in the state `value`."""
    words, places, pattern = _words(state, position, width, value)
    return functools.reduce(np.logical_and, [words[place] == pattern for place in places])


def _any_byte(state: np.ndarray, position: np.ndarray, width: int, value: int) -> np.ndarray:
    """Whether some byte of each access is in the state `value` or a higher one.

    `value` is a power of two, and all states above it have its bit.
    """
    words, places, pattern = _words(state, position, width, value)
    return functools.reduce(np.logical_or, [words[place] & pattern != 0 for place in places])


def _set_bytes(state: np.ndarray, position: np.ndarray, width: int, value: int) -> None:
    words, places, pattern = _words(state, position, width, value)
    for place in places:
        words[place] = pattern


def _words(
    state: np.ndarray, position: np.ndarray, width: int, value: int
) -> tuple[np.ndarray, list[np.ndarray], np.unsignedinteger]:
    """The states of `width` bytes as words: all of them, the indices of the accesses', `value`."""
    word = width if width in (1, 2, 4, 8) else 8 if width % 8 == 0 else 1
    kind, first = UNSIGNED[word * 8], position // word
    pattern = kind(int.from_bytes(bytes([value]) * word))
    return state.view(kind), [first + i for i in range(width // word)], pattern
