"""Asynchronous copies on their way: `cp.async` data lands only where it is waited for."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.lanes import Active, Lanes

__all__ = ["AsyncCopies"]


@dataclasses.dataclass(frozen=True)
class _Flight:
    """The copies of one instruction: the lanes, and the group, the place and the data of each."""

    access: Access
    active: Active
    group: np.ndarray
    position: np.ndarray
    data: np.ndarray

    def subset(self, mask: np.ndarray) -> _Flight:
        arrays = (array[mask] for array in (self.group, self.position, self.data))
        return _Flight(self.access, self.active.subset(mask), *arrays)


class AsyncCopies:
    """The copies that have started and not landed. Source: PTX ISA, "cp.async"."""

    def __init__(self, lanes: Lanes):
        self._flights: list[_Flight] = []
        self._groups = np.zeros(lanes.count, np.int64)  # groups that each lane has committed

    def start(self, active: Active, position: np.ndarray, data: np.ndarray, access: Access) -> None:
        """Sends `data`, one element for each lane, on its way to `position` of shared memory."""
        group = self._groups[active.selection].copy()  # the one that the next commit closes
        self._flights.append(_Flight(access, active, group, position, data))

    def commit(self, active: Active) -> None:
        """Closes the group of each active lane."""
        self._groups[active.selection] += 1

    def wait(self, active: Active, pending: int | None) -> None:
        """Lands all but the `pending` last groups of each active lane; None: all copies."""
        waiting = active.spread(np.array(True))
        flights, self._flights = self._flights, []
        for flight in flights:
            done = waiting[flight.active.selection]
            if pending is not None and done.any():
                done = done & (flight.group < self._groups[flight.active.selection] - pending)
            if not done.any():
                self._flights.append(flight)
                continue
            if not done.all():
                self._flights.append(flight.subset(~done))
                flight = flight.subset(done)
            active.lanes.shared.land(flight.active, flight.position, flight.data, flight.access)
