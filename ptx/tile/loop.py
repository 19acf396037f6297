"""The main loop of every heavy kernel: stages of shared memory are filled ahead of their use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ptx.builder import Kernel, Val, Var
from ptx.isa.dtypes import u32
from ptx.tile.math import TileMath
from ptx.tile.shared import STAGES, Stage
from ptx.tile.tensor_cores import TensorCores

__all__ = ["Cursor", "Loop", "PartedSource", "Source", "multiply_all", "multiply_in_parts"]


class Cursor:
    """Counters of nested loops that a source goes through, one chunk of K at a time.

    Args:
      k: the kernel.
      **extents: each counter's end, the outermost first: integers or registers.
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
        """Goes back to the first chunk."""
        for counter in self.counters.values():
            counter.set(0)

    def advance(self) -> None:
        """Goes on to the next chunk; after the last one comes the first."""
        k, carry = self.k, None
        for name, extent in reversed(self.extents.items()):
            if isinstance(extent, int) and extent == 1:
                continue
            counter = self.counters[name]
            counter += 1 if carry is None else k.select(carry, 1, 0, u32)
            wrapped = counter.eq(extent)
            counter.set(k.select(wrapped, 0, counter))
            carry = wrapped


class Source(Protocol):
    """Fills a ring with the chunk that the cursor is at.

    What takes long is begun before another stage is multiplied and finished after it.
    """

    def begin(self, stage: Stage, where: Val | None) -> None:
        """Starts to load; nothing is loaded where the predicate is off."""

    def finish(self, stage: Stage) -> None:
        """Puts into the stage what `begin` has loaded."""


class PartedSource(Source, Protocol):
    """A source that would take too many registers if it loaded all of a chunk at once.

    Attributes:
      parts: number of parts, loaded one after the other. `begin` loads the first; `finish` puts
        into the stage what is loaded, and then loads what is left.
    """

    parts: int

    def resume(self, stage: Stage) -> None:
        """Puts a part into the stage, and starts to load the next one."""


class Loop:
    """Goes through chunks, one after the other, while those that follow are on their way.

    Between `next` and `release` the chunk's stage may be read; every thread calls both, as often as
    there are chunks. What happens between chunks delays no copies.

    Args:
      k: the kernel.
      cursor: counts the chunks. Sources look at it; it is `stages - 1` chunks ahead of the one that
        is multiplied.
      sources: fill a stage with the chunk that the cursor is at.
      stages: stages of the sources' rings, at least 2.
      chunks: number of chunks; all of the cursor's unless it is given.
    """

    def __init__(
        self,
        k: Kernel,
        cursor: Cursor,
        sources: Sequence[Source],
        *,
        stages: int,
        chunks: Val | int | None = None,
    ):
        assert stages >= 2
        self.k, self.cursor, self.sources, self.stages = k, cursor, sources, stages
        self.chunks = cursor.chunks if chunks is None else chunks

    def start(self) -> None:
        """Begins to fill all stages but one, from the first chunk on.

        Whatever the sources read from shared memory has been written, and a barrier passed, before.
        """
        k, chunks = self.k, self.chunks
        k.comment("the first chunks")
        self.cursor.reset()
        for ahead in range(self.stages - 1):
            if ahead:
                self._commit()
            if isinstance(chunks, Val) or ahead < chunks:
                self._begin(ahead, chunks > ahead if isinstance(chunks, Val) else None)
                self._finish(ahead)
        self.read = k.var(u32, 0, "read")
        self.left = k.var(u32, chunks, "left")

    def arrive(self) -> None:
        """Waits until the next chunk is in its stage, for all threads."""
        # Registers that sources have loaded stay out of the way where the commit comes this late.
        self._commit()
        self._wait(self.stages - 2)
        self.k.barrier()

    def next(self) -> Stage:
        """Waits for the next chunk, and begins to fill the stage that is free.

        Returns:
          The stage in which the chunk is.
        """
        self.k.comment("this stage is full, and everybody is done with the one to be filled")
        self.arrive()
        self.free = self._preceding(self.read)
        if self._begins_more:
            self._begin(self.free, self.left > self.stages - 1)
        self.left -= 1  # ptxas takes more registers where this comes before the test
        return self.read

    def release(self) -> None:
        """Goes on to the next stage: this thread reads the chunk no more."""
        if self._begins_more:
            self._finish(self.free)
        self.read.set(self.free if self.stages == 2 else self._following(self.read))

    def end(self) -> None:
        """Ends the loop after its last chunk: all tiles may be overwritten."""
        self._commit()
        self._wait(0)  # the last passes have begun chunks of zeros that nobody reads
        self.k.barrier()

    def _commit(self) -> None:
        """Ends what was begun for one chunk: a group of copies, unless the target only stores."""
        if self.k.target.supports("sm_80"):
            self.k.cp_async_commit()

    def _wait(self, later: int) -> None:
        """Waits for this thread's copies of all chunks but those that were committed last."""
        if self.k.target.supports("sm_80"):
            self.k.cp_async_wait(later)

    @property
    def _begins_more(self) -> bool:
        """Whether there are chunks that `start` has not begun."""
        return isinstance(self.chunks, Val) or self.chunks >= self.stages

    def _preceding(self, stage: Val) -> Val:
        """The stage that was read before, which is free."""
        return self.k.select(stage.eq(0), self.stages - 1, stage - 1)

    def _following(self, stage: Val) -> Val:
        """The stage that is read next."""
        following = stage + 1
        return self.k.select(following.eq(self.stages), 0, following)

    def resume(self, source: PartedSource) -> None:
        """Has a source go on to its next part, between `next` and `release`."""
        if self._begins_more:
            source.resume(self.free)

    def _begin(self, stage: Stage, where: Val | None) -> None:
        for source in self.sources:
            source.begin(stage, where)
        self.cursor.advance()

    def _finish(self, stage: Stage) -> None:
        for source in self.sources:
            source.finish(stage)


def multiply_all(
    k: Kernel, cursor: Cursor, sources: Sequence[Source], math: TileMath, *, stages: int = STAGES
) -> None:
    """C += A @ B over all chunks of the cursor; see `Loop` for the arguments.

    Shared memory that sources read has been filled, and a barrier passed, before; afterwards all
    tiles may be overwritten.
    """
    loop = Loop(k, cursor, sources, stages=stages)
    loop.start()
    math.start()
    chunks = loop.chunks
    dtype = u32 if isinstance(chunks, int) else None
    # ptxas would write out a loop of few passes, and with them take up to twice the registers.
    with k.loop(chunks, name="chunk", dtype=dtype, unroll=False):
        math.multiply(loop.next())
        loop.release()
    loop.end()


def multiply_in_parts(
    k: Kernel, cursor: Cursor, parted: PartedSource, others: Sequence[Source], math: TileMath
) -> None:
    """As `multiply_all`, where one source loads a part of a chunk while a part is multiplied."""
    if parted.parts == 1:
        multiply_all(k, cursor, [parted, *others], math)
        return
    assert isinstance(math, TensorCores)
    loop = Loop(k, cursor, [parted, *others], stages=STAGES)
    loop.start()
    math.start()
    with k.loop(loop.chunks, name="chunk", unroll=False):
        stage = loop.next()
        for part in range(parted.parts):
            if part:
                loop.resume(parted)
            math.multiply(stage, part=part, parts=parted.parts)
        loop.release()
    loop.end()
