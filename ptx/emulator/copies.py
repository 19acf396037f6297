"""Asynchronous copies on their way: `cp.async` data lands only where it is waited for."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.lanes import Lanes, Selection

__all__ = ["AsyncCopies"]

_OPEN = -1  # group of the copies that no commit has closed


@dataclasses.dataclass
class _Flight:
    """Copies of one instruction: by lane, the group, the place and the data."""

    lanes: np.ndarray
    group: np.ndarray
    position: np.ndarray
    data: np.ndarray
    access: Access

    def part(self, mask: np.ndarray) -> _Flight:
        return _Flight(
            self.lanes[mask], self.group[mask], self.position[mask], self.data[mask], self.access
        )


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
        """Sends `data`, uint8[lanes, width], on its way to `position` of shared memory."""
        group = np.full(len(position), _OPEN)
        self._flights.append(_Flight(lanes.indices[active], group, position, data, access))

    def commit(self, lanes: Lanes, active: Selection) -> None:
        """Closes the group of each active lane."""
        chosen = _mask(lanes, active)
        for flight in self._flights:
            closing = chosen[flight.lanes] & (flight.group == _OPEN)
            flight.group[closing] = self._groups[flight.lanes[closing]]
        self._groups[active] += 1

    def wait(self, lanes: Lanes, active: Selection, pending: int | None) -> None:
        """Lands all but the `pending` last groups of each active lane; None: all copies."""
        chosen, flights = _mask(lanes, active), []
        for flight in self._flights:
            done = chosen[flight.lanes]
            if pending is not None:
                done &= flight.group != _OPEN
                done &= flight.group < self._groups[flight.lanes] - pending
            if done.any():
                landing = flight.part(done)
                lanes.shared.land(
                    lanes,
                    lanes.selection(landing.lanes),
                    landing.position,
                    landing.data,
                    landing.access,
                )
            if not done.all():
                flights.append(flight.part(~done))
        self._flights = flights


def _mask(lanes: Lanes, active: Selection) -> np.ndarray:
    mask = np.zeros(lanes.count, np.bool_)
    mask[active] = True
    return mask
