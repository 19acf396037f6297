"""Asynchronous copies on their way: `cp.async` data lands only where it is waited for."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.lanes import Lanes, Selection

__all__ = ["AsyncCopies"]


@dataclasses.dataclass(frozen=True)
class _Flight:
    """Copies of one instruction: by lane, the group, the place and the data."""

    access: Access
    lanes: np.ndarray
    group: np.ndarray
    position: np.ndarray
    data: np.ndarray

    def part(self, mask: np.ndarray) -> _Flight:
        arrays = (self.lanes, self.group, self.position, self.data)
        return _Flight(self.access, *(array[mask] for array in arrays))


class AsyncCopies:
    """The copies that have started and not landed. Source: PTX ISA, "cp.async"."""

    def __init__(self, lanes: Lanes):
        self._flights: list[_Flight] = []
        self._groups = np.zeros(lanes.count, np.int64)  # groups that each lane has committed

    def start(
        self,
        lanes: Lanes,
        active: Selection,
        position: np.ndarray,
        data: np.ndarray,
        access: Access,
    ) -> None:
        """Sends `data`, one element for each lane, on its way to `position` of shared memory."""
        group = self._groups[active].copy()  # the one that the next commit closes
        self._flights.append(_Flight(access, lanes.indices[active], group, position, data))

    def commit(self, active: Selection) -> None:
        """Closes the group of each active lane."""
        self._groups[active] += 1

    def wait(self, lanes: Lanes, active: Selection, pending: int | None) -> None:
        """Lands all but the `pending` last groups of each active lane; None: all copies."""
        chosen = np.zeros(lanes.count, np.bool_)
        chosen[active] = True
        flights, self._flights = self._flights, []
        for flight in flights:
            done = chosen[flight.lanes]
            if pending is not None and done.any():
                done &= flight.group < self._groups[flight.lanes] - pending
            if not done.any():
                self._flights.append(flight)
                continue
            landing = flight
            if not done.all():
                landing = flight.part(done)
                self._flights.append(flight.part(~done))
            part = lanes.selection(landing.lanes)
            lanes.shared.land(lanes, part, landing.position, landing.data, landing.access)
