"""A ring of stages in shared memory, filled several chunks ahead of the one that is multiplied."""

from __future__ import annotations

from collections.abc import Sequence

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import u32
from ptx.tile.pipeline import Cursor, Producer

__all__ = ["Ring"]


class Ring:
    """Chunks of a cursor, one after the other, while those that follow are on their way.

    Between `next` and `release` a chunk may be read; every thread calls both, as often as there
    are chunks. What happens between chunks delays no copies.

    Args:
      k: the kernel.
      producers: fill a stage with the chunk that the cursor is at.
      cursor: at its first chunk.
      chunks: how many there are, at least 1.
      stages: of the tiles.
    """

    def __init__(
        self, k: Kernel, producers: Sequence[Producer], cursor: Cursor, chunks: Val, stages: int
    ):
        self.k, self.producers, self.cursor, self.chunks = k, producers, cursor, chunks
        self.stages = stages
        self.asynchronous = k.target.supports("sm_80")

    def start(self) -> None:
        """Begins to fill all stages but one."""
        k = self.k
        k.comment("the first chunks")
        for stage in range(self.stages - 1):
            number = k.var(u32, stage, "ahead")
            self._begin(number, self.chunks > stage)
            self._finish(number)
            self._commit()
        self.read = k.var(u32, 0, "read")
        self.filled = k.var(u32, self.stages - 1, "filled")
        self.left = k.var(u32, self.chunks, "left")

    def next(self) -> Val:
        """Waits for the next chunk, and begins to fill the stage that is free; where it is."""
        k = self.k
        if self.asynchronous:
            k.cp_async_wait(self.stages - 2)
        k.barrier()
        self._begin(self.filled, self.left > self.stages - 1)
        self._commit()
        return self.read

    def release(self) -> None:
        """Nothing reads the chunk any more."""
        self._finish(self.filled)
        self.left -= 1
        for stage in (self.read, self.filled):
            stage += 1
            stage.set(self.k.select(stage.eq(self.stages), 0, stage))

    def end(self) -> None:
        """All chunks are done; what they were in may be overwritten."""
        if self.asynchronous:  # the last passes have begun chunks of zeros that nobody reads
            self.k.cp_async_wait()
        self.k.barrier()

    def _begin(self, stage: Val, where: Val) -> None:
        for producer in self.producers:
            producer.begin(stage, where)
        self.cursor.advance()

    def _finish(self, stage: Val) -> None:
        for producer in self.producers:
            producer.finish(stage)

    def _commit(self) -> None:
        if self.asynchronous:
            self.k.cp_async_commit()
