"""Kernels without tiles: a thread has neighbouring channels of a pixel, in ordinary arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ptx.builder import Kernel, Val, Var
from ptx.tile.pixels import Geometry, OutputPixel

__all__ = ["THREADS", "DirectPlan", "DirectThread", "add_product", "add_up"]

THREADS = 128  # of a block
_NEIGHBOURS = 16  # threads along channels: 256 bytes, where each has 16


@dataclasses.dataclass(frozen=True)
class DirectPlan:
    """The work of each thread of a block of `THREADS`.

    Attributes:
      channels: neighbours that a thread has at a time.
      units: units of one pixel; a unit is the work of `lanes` threads.
      lanes: neighbouring threads, a power of two.
      threads: threads of a block.
      min_blocks: see `ptx.definition.PlanLike`.
      across: units of a block that are of one pixel.
    """

    channels: int
    units: int
    lanes: int = 1
    threads: int = THREADS
    min_blocks: int | None = 2

    @property
    def across(self) -> int:
        return -(-self.units // self.chunks)

    @property
    def chunks(self) -> int:
        """Blocks that a pixel's units are spread over, evenly."""
        return -(-self.units // max(1, _NEIGHBOURS // self.lanes))

    @property
    def down(self) -> int:
        """Pixels of a block."""
        return THREADS // (self.across * self.lanes)

    def blocks(self, pixels: int) -> int:
        return -(-pixels // self.down) * self.chunks


class DirectThread:
    """A thread of a plan, with its pixel and channels.

    Attributes:
      lane: its index among the threads of its unit.
      column: its unit's place among those of the block.
      unit: its unit's index among all of the pixel; in range, also where `unit_ok` is off.
      row: place of its pixel among those of the block.
      block: the block's number among those with the same units.
      unit_ok: predicate: whether there is such a unit; its pixel need not exist.
    """

    def __init__(self, k: Kernel, plan: DirectPlan, blocks: Val | None = None):
        blocks = k.ctaid("x") if blocks is None else blocks
        self.lane = k.tid() % plan.lanes
        slot = k.tid() // plan.lanes
        self.column, self.row = slot % plan.across, slot // plan.across
        first = blocks % plan.chunks * plan.across
        self.block = blocks // plan.chunks
        unit = first + self.column
        self.first_unit, self.unit = first, k.min(unit, plan.units - 1)
        self.unit_ok = (unit < plan.units) & (self.row < plan.down)

    def pixel(self, sizes: Geometry, plan: DirectPlan) -> OutputPixel:
        """The thread's pixel, where a block has as many as `plan.down`."""
        pixel = sizes.pixel(self.block * plan.down + self.row)
        return dataclasses.replace(pixel, exists=pixel.exists & self.unit_ok)


def add_product(total: Var, a: Val, b: Val, where: Val | None = None) -> None:
    """`total += a * b`, rounded once, where the predicate holds."""
    total.kernel.emit(f"fma.rn.{total.dtype}", total, a, b, total, where=where)


def add_up(
    k: Kernel,
    plan: DirectPlan,
    thread: DirectThread,
    sums: Sequence[Val],
    write: Callable[[Val, Val, Val], None],
) -> None:
    """Adds up what the threads of a block have of the same unit, always in the same order.

    Args:
      k: the kernel.
      plan: without lanes.
      thread: this one.
      sums: the sums of each thread, of one type.
      write: (unit, which of the sums, total); a unit may be beyond the last one.
    """
    k.comment("sums over the threads with the same channels")
    dtype = sums[0].dtype
    shared = k.shared("sums", dtype, len(sums) * THREADS)
    for number, total in enumerate(sums):
        shared.store(number * THREADS + k.tid(), total)
    k.barrier()
    with k.loop(k.tid(), len(sums) * plan.across, THREADS, name="sum") as number:
        column, element = number % plan.across, number // plan.across
        first = shared + (element * THREADS + column)
        total = k.var(dtype, 0.0)
        for row in range(plan.down):
            total += first.load(row * plan.across)
        write(thread.first_unit + column, element, total)
