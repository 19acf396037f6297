"""The main loop of every heavy kernel: fill one stage while the other is multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ptx.builder import Kernel, Val, Var
from ptx.isa.dtypes import u32
from ptx.tile.math import TileMath
from ptx.tile.shared import STAGES

__all__ = ["Cursor", "Producer", "multiply_all"]

assert STAGES == 2  # the loop below goes back and forth


class Cursor:
    """Counters of nested loops that a producer goes through, one chunk of K at a time.

    Args:
      k: the kernel.
      **extents: how far each counter goes, the outermost first: integers or registers.
    """

    def __init__(self, k: Kernel, **extents: Val | int):
        self.k, self.extents = k, extents
        self.counters: dict[str, Var] = {name: k.var(u32, 0, name) for name in extents}

    def __getitem__(self, name: str) -> Var:
        return self.counters[name]

    @property
    def chunks(self) -> Val | int:
        """How many chunks there are."""
        total: Val | int = 1
        for extent in self.extents.values():
            total = extent * total if isinstance(total, int) else total * extent
        return total

    def reset(self) -> None:
        for counter in self.counters.values():
            counter.set(0)

    def advance(self) -> None:
        """The next chunk; after the last one the first."""
        k, carry = self.k, None
        for name, extent in reversed(self.extents.items()):
            if isinstance(extent, int) and extent == 1:
                continue
            counter = self.counters[name]
            counter += 1 if carry is None else k.select(carry, 1, 0, u32)
            wrapped = counter.eq(extent)
            counter.set(k.select(wrapped, 0, counter))
            carry = wrapped


class Producer(Protocol):
    """Fills a tile with the chunk that the cursor is at.

    What takes long is begun before the other stage is multiplied and finished after it.
    """

    def begin(self, stage: Val, where: Val | None) -> None:
        """Starts to load; nothing is loaded where the predicate is off."""

    def finish(self, stage: Val) -> None:
        """Puts into the stage what `begin` has loaded."""


def multiply_all(k: Kernel, cursor: Cursor, producers: Sequence[Producer], math: TileMath) -> None:
    """C += A @ B over all chunks of the cursor.

    Shared memory that producers read has been filled, and a barrier passed, before; afterwards
    all tiles may be overwritten.
    """
    asynchronous = k.target.supports("sm_80")
    stage, other = k.var(u32, 0, "stage"), k.var(u32, 1, "other_stage")
    k.comment("the first chunk")
    cursor.reset()
    for producer in producers:
        producer.begin(stage, None)
    for producer in producers:
        producer.finish(stage)
    cursor.advance()
    chunks = cursor.chunks
    left = k.var(u32, chunks, "left")
    with k.loop(chunks, name="chunk", dtype=u32 if isinstance(chunks, int) else None):
        k.comment("this stage is full, and everybody is done with the other")
        if asynchronous:
            k.cp_async_commit()
            k.cp_async_wait()
        k.barrier()
        left -= 1
        more = left.ne(0)
        for producer in producers:
            producer.begin(other, more)
        cursor.advance()
        math.multiply(stage)
        for producer in producers:
            producer.finish(other)
        last = stage.value()
        stage.set(other)
        other.set(last)
    if asynchronous:  # the last pass has begun a chunk of zeros that nobody reads
        k.cp_async_commit()
        k.cp_async_wait()
    k.barrier()
