"""Runs a kernel in the emulator, on the driver's live memory."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator.barriers import Barriers
from ptx.emulator.checks import Clocks
from ptx.emulator.copies import AsyncCopies
from ptx.emulator.lanes import WARP, Lanes, numpy_type
from ptx.emulator.launch import Geometry
from ptx.emulator.memory import Allocation, GlobalMemory, SharedMemory
from ptx.emulator.program import load
from ptx.emulator.report import Report
from ptx.emulator.scheduler import run
from virtual_driver.driver import Memory

__all__ = ["Launch", "execute"]

_LANES = 8192  # that run together
_STEPS = 1_000_000
_SHIFT = 40  # an emulated pointer is the number of a buffer times 2**40, and an offset


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel to be run.

    Attributes:
      text: the PTX module.
      kernel: the entry's name.
      grid, block: as (x, y, z).
      shared: bytes of dynamic shared memory.
      parameters: the bytes of each.
      compiled: whether a compiler has made the kernel: what such kernels do on purpose, and ours
        must not, is no fault then.
    """

    text: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: Sequence[bytes]
    compiled: bool


def execute(launch: Launch, memory_at: Callable[[int], Memory | None]) -> None:
    """Runs a kernel to its end; what it writes is in the memory afterwards.

    Args:
      launch: what to run.
      memory_at: the memory that an address lies in.

    Raises:
      EmulatorError: the kernel does what it must not.
      ValueError: the launch is one that a driver would refuse.
    """
    program = load(launch.text, launch.kernel)
    geometry = Geometry(launch.grid, launch.block)
    regions: dict[Memory, int] = {}
    values = {}
    for parameter, raw in zip(program.source.parameters, launch.parameters, strict=True):
        dtype = parameter.dtype
        if dtype.bits == 64 and not dtype.is_float:
            raw = _emulated_pointer(raw, regions, memory_at)
        values[parameter.name] = np.frombuffer(raw, numpy_type(dtype)).copy()
    memory = GlobalMemory(
        [Allocation(_bytes_at(region), True, True) for region in regions],
        program.granule["global"],
        not launch.compiled,
    )
    before = {number: memory.data(number).copy() for number in regions.values()}
    report = Report(program, False)
    ids = np.arange(geometry.blocks)
    together = max(1, _LANES // (-(-geometry.threads // WARP) * WARP))
    with np.errstate(all="ignore"):
        for start in range(0, len(ids), together):
            lanes = Lanes(
                program, geometry, ids[start : start + together], values, memory, report, None
            )
            lanes.clocks, lanes.barriers = Clocks(lanes), Barriers(lanes)
            lanes.copies = AsyncCopies(lanes)
            granule = program.granule["shared"]
            lanes.shared = SharedMemory(lanes, launch.shared, granule, not launch.compiled)
            if launch.compiled:
                lanes.shared._state[:] = 1
            run(lanes, _STEPS, None)
    for region, number in regions.items():
        # Other kernels may have written the rest meanwhile.
        now, target = memory.data(number), _bytes_at(region)
        changed = now != before[number]
        target[changed] = now[changed]


def _emulated_pointer(
    raw: bytes, regions: dict[Memory, int], memory_at: Callable[[int], Memory | None]
) -> bytes:
    """The emulator's pointer to what an address points to; other numbers stay as they are."""
    address = int.from_bytes(raw, "little")
    region = memory_at(address)
    if region is None:
        return raw
    number = regions.setdefault(region, len(regions) + 1)
    return ((number << _SHIFT) + address - region.address).to_bytes(8, "little")


def _bytes_at(region: Memory) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * region.size).from_address(region.address))
