"""The run of the blocks of a grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ptx.emulator.barriers import Barriers
from ptx.emulator.checks import Clocks
from ptx.emulator.copies import AsyncCopies
from ptx.emulator.global_memory import Allocation, GlobalMemory
from ptx.emulator.lanes import WARP, Lanes
from ptx.emulator.memory import LocalMemory, SharedMemory
from ptx.emulator.program import Program
from ptx.emulator.report import Report
from ptx.emulator.scheduler import run
from ptx.emulator.variables import Variables
from ptx.isa.targets import TARGETS

__all__ = ["Geometry", "Options", "check_launch", "run_grid", "triple"]

_LANES = 8192  # lanes that run together: many for numpy's sake, few for the caches'


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Blocks of the grid and threads of a block, each as (x, y, z)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a launch; see `ptx.emulator.launch`."""

    dynamic_shared: int = 0
    schedule: int | None = None
    check_races: bool = True
    step_limit: int = 1_000_000
    stop: Callable[[], bool] | None = None
    lenient: bool = False

    @property
    def finds_races(self) -> bool:
        return self.check_races and not self.lenient


def run_grid(
    program: Program,
    geometry: Geometry,
    parameters: Mapping[str, np.ndarray],
    allocations: Sequence[Allocation],
    variables: Variables,
    report: Report,
    options: Options,
    ids: np.ndarray,
) -> Iterator[tuple[Allocation, np.ndarray]]:
    """Runs blocks of a grid.

    Args:
      program: the kernel.
      geometry: the grid and the block.
      parameters: bytes of each parameter, by name.
      allocations: the memory that the kernel can reach, besides the module's variables.
      variables: the variables of the module.
      report: the report to add to.
      options: the options of the launch.
      ids: numbers of the blocks that run.

    Returns:
      The allocations that the kernel has not written completely; see `GlobalMemory.unwritten`.
    """
    reachable = [*allocations, *variables.allocations]
    memory = GlobalMemory(reachable, program.granule["global"], options.finds_races)
    generator = None if options.schedule is None else np.random.default_rng(options.schedule)
    if generator is not None:
        generator.shuffle(ids)
    together = max(1, _LANES // (-(-geometry.threads // WARP) * WARP))
    with np.errstate(all="ignore"):
        for start in range(0, len(ids), together):
            block_ids = ids[start : start + together]
            lanes = Lanes(program, geometry, block_ids, parameters, memory, report, generator)
            lanes.addresses, lanes.lenient = variables.addresses, options.lenient
            lanes.clocks = Clocks(lanes)
            lanes.barriers = Barriers(lanes)
            lanes.copies = AsyncCopies(lanes)
            lanes.shared = SharedMemory(lanes, options.dynamic_shared, options.finds_races)
            lanes.local = LocalMemory(lanes)
            run(lanes, options.step_limit, options.stop)
            vars(lanes).clear()  # its parts refer to it: what is large would stay for a while
    return memory.unwritten()


def triple(value: int | Sequence[int], name: str) -> tuple[int, int, int]:
    """(x, y, z) of a grid or block.

    Raises:
      ValueError: it is none.
    """
    values = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(values) <= 3 or any(int(v) < 1 for v in values):
        raise ValueError(f"{name}={value!r}: one to three positive numbers are expected")
    x, y, z = [int(v) for v in values] + [1] * (3 - len(values))
    return x, y, z


def check_launch(program: Program, geometry: Geometry, dynamic_shared: int) -> None:
    """Raises ValueError for what the driver would refuse."""
    name, limits = program.source.name, program.source.limits
    if geometry.threads > 1024 or geometry.block[2] > 64:
        raise ValueError(f"block={geometry.block}: at most 1024 threads, and 64 in z")
    if max(geometry.grid[1:]) > 65535 or geometry.grid[0] > 2**31 - 1:
        raise ValueError(f"grid={geometry.grid}: at most 2147483647 x 65535 x 65535 blocks")
    if "maxntid" in limits and geometry.threads > np.prod(limits["maxntid"]):
        raise ValueError(f"block={geometry.block}: {name} has .maxntid {limits['maxntid']}")
    if "reqntid" in limits:
        required = (*limits["reqntid"], 1, 1)[:3]
        if geometry.block != required:
            raise ValueError(f"block={geometry.block}: {name} has .reqntid {required}")
    if dynamic_shared < 0:
        raise ValueError(f"{dynamic_shared=} is negative")
    total, target = program.layout.static_size + dynamic_shared, TARGETS.get(program.target)
    if target is not None and total > target.shared_per_block:
        raise ValueError(
            f"{name} takes {total} bytes of shared memory, and a block of {target} has "
            f"{target.shared_per_block}"
        )
