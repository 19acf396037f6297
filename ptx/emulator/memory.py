"""Shared and local memory: addresses, bounds, and what has been written.

A shared address counts from 1024 in each block, a local one from 64 in each thread, with unusable
bytes between the variables. A generic pointer to shared memory is its address plus 2^60, one to
local memory plus 2^59; a pointer to constant memory is the generic one plus 2^58.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptx.emulator.access import Access, Kind
from ptx.emulator.checks import SharedRaces
from ptx.emulator.errors import InFlightError, OutOfBoundsError, UninitializedError
from ptx.emulator.lanes import Active, Lanes
from ptx.emulator.states import (
    IN_FLIGHT,
    NOWHERE,
    UNWRITTEN,
    WRITTEN,
    all_bytes,
    any_byte,
    check_alignment,
    chunks,
    set_bytes,
)

if TYPE_CHECKING:
    from ptx.emulator.syntax import Variable

__all__ = [
    "CONST_WINDOW",
    "LOCAL_WINDOW",
    "SHARED_WINDOW",
    "LocalMemory",
    "SharedMemory",
    "VariableLayout",
]

CONST_WINDOW, LOCAL_WINDOW, SHARED_WINDOW = 1 << 58, 1 << 59, 1 << 60
_BASES = {"shared": 1024, "local": 64}
# All banks once in shared memory: a variable stays on the banks that it has without the gaps.
_GAPS = {"shared": 128, "local": 16}


class VariableLayout:
    """Where the variables of a kernel lie in the memory of each block, or of each thread.

    Attributes:
      space: "shared" or "local".
      offsets: address of each variable.
      sizes: bytes of each static variable.
      static_size: bytes of the static variables, with the padding of their alignment.
      end: address after the static variables, where the dynamic ones start.
      gaps: addresses from and to which no variable lies.
    """

    def __init__(self, space: str, variables: Sequence[Variable]):
        self.space, gap = space, _GAPS[space]
        base = _BASES[space] if variables or space == "shared" else 0
        self.offsets: dict[str, int] = {}
        self.sizes = {v.name: v.size for v in variables if v.size is not None}
        self.gaps = [(0, base)]
        end, size = base, 0
        for variable in variables:
            if variable.size is None:
                continue
            padding = -size % variable.alignment
            end, size = end + padding, size + padding + variable.size
            self.offsets[variable.name] = end
            end += variable.size
            self.gaps.append((end, end + gap))
            end += gap
        self.static_size = size
        self.end = -(-end // gap) * gap
        for variable in variables:
            if variable.size is None:
                self.offsets[variable.name] = self.end

    def describe(self, address: int) -> str:
        """Where an address lies, relative to the last variable that starts before it."""
        before = [(start, name) for name, start in self.offsets.items() if start <= address]
        if not before:
            return f"{self.space} address {address}, which is before every variable"
        start, name = max(before)
        return f"byte {address - start} from the start of {name}"


class _VariableMemory:
    """Memory of which each block, or each thread, has its own.

    Attributes:
      bytes: the memories, one after the other.
    """

    def __init__(
        self,
        layout: VariableLayout,
        owner: np.ndarray,
        owners: int,
        dynamic_size: int,
        written: bool,
    ):
        """Makes the memories.

        Args:
          layout: the layout of each owner's memory.
          owner: the number of each lane's owner.
          owners: the number of owners.
          dynamic_size: bytes after the static variables.
          written: whether all bytes count as written.
        """
        self._layout = layout
        self._end = layout.end + dynamic_size
        self._stride = -(-self._end // 128) * 128
        self._base = owner * self._stride  # by lane, where its memory starts in `bytes`
        self.bytes = np.zeros(self._stride * owners, np.uint8)
        self._at_first = WRITTEN if written else UNWRITTEN
        state = np.full((owners, self._stride), self._at_first, np.uint8)
        for start, stop in layout.gaps:
            state[:, start:stop] = NOWHERE
        state[:, self._end :] = NOWHERE
        self._states, self._state = state, state.reshape(-1)

    def locate(self, active: Active, address: np.ndarray, access: Access) -> np.ndarray:
        """Checks an access and returns its positions in `bytes`; see `GlobalMemory.locate`."""
        instruction, width, kind = access.instruction, access.width, access.kind
        check_alignment(active, address, access, self._layout.space)
        if int(np.maximum.reduce(address.view(np.uint64))) <= self._end - width:  # none below 0
            position = address + self._base[active.selection]
            if kind in (Kind.WRITE, Kind.COPY):
                good = ~any_byte(self._state, position, width, IN_FLIGHT)
            else:
                good = all_bytes(self._state, position, width, WRITTEN)
            if np.count_nonzero(good) < len(good):
                self._explain(active, address, position, ~good, access)
        else:
            outside = (address < 0) | (address > self._end - width)
            message = f"{width}-byte {kind.value} at " + self._layout.describe(
                int(address[outside][0])
            )
            active.fail(OutOfBoundsError, instruction, outside, message)
        if kind is not Kind.READ:
            state = IN_FLIGHT if kind is Kind.COPY else WRITTEN
            set_bytes(self._state, position, width, state)
        return position

    def _explain(
        self,
        active: Active,
        address: np.ndarray,
        position: np.ndarray,
        wrong: np.ndarray,
        access: Access,
    ) -> None:
        """Raises the error that the state of the accessed bytes calls for."""
        first = int(np.flatnonzero(wrong)[0])
        states = self._state[position[first] : position[first] + access.width]
        where = self._layout.describe(int(address[first]))
        what = f"{access.kind.value} at {where}"
        if (states == NOWHERE).any():
            error, message = OutOfBoundsError, f"{access.width}-byte {what}: outside every variable"
        elif (states == IN_FLIGHT).any():
            error, message = InFlightError, f"{what}, to which a cp.async is still on its way"
        else:
            error, message = UninitializedError, f"{what}, which nothing has written"
        active.fail(error, access.instruction, wrong, message)


class SharedMemory(_VariableMemory):
    """Shared memory of all blocks that run together.

    Attributes:
      dynamic_size: bytes that the launch adds.
      total_size: bytes of one block.
    """

    def __init__(self, lanes: Lanes, dynamic_size: int, check_races: bool):
        layout = lanes.program.layout
        blocks = len(lanes.block_ids)
        super().__init__(layout, lanes.block, blocks, dynamic_size, lanes.lenient)
        self.dynamic_size = dynamic_size
        self.total_size = layout.static_size + dynamic_size
        granule = lanes.program.granule["shared"]
        self._races = SharedRaces(len(self.bytes), granule, lanes) if check_races else None

    def locate(self, active: Active, address: np.ndarray, access: Access) -> np.ndarray:
        position = super().locate(active, address, access)
        active.lanes.report.shared_access(active, address, access)
        if self._races:
            self._races.access(active, position, access)
        return position

    def land(self, active: Active, position: np.ndarray, data: np.ndarray, access: Access) -> None:
        """Writes what an asynchronous copy of the lanes `active` has brought.

        Args:
          active: the lanes that have waited for it.
          position: where, from `locate`.
          data: one element, of as many bytes as the copy has, for each of them.
          access: the copy.
        """
        width = access.width
        chunks(self.bytes, width)[position // width] = data
        set_bytes(self._state, position, width, WRITTEN)
        if self._races:
            self._races.access(active, position, access)


class LocalMemory(_VariableMemory):
    """Local memory of all lanes: `.local` variables, and the parameters of device functions."""

    def __init__(self, lanes: Lanes):
        layout = lanes.program.local_layout
        owners = lanes.count if layout.offsets else 0
        super().__init__(layout, lanes.indices, owners, 0, lanes.lenient)

    def forget(self, active: Active, names: Sequence[str]) -> None:
        """Makes some variables of the active lanes as they are before anything writes them."""
        for name in names:
            start = self._layout.offsets[name]
            self._states[active.selection, start : start + self._layout.sizes[name]] = (
                self._at_first
            )
