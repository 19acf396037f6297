"""A product whose A never sees shared memory: each lane makes the fragments that it multiplies.

A row of A is produced by the four lanes that hold it in the atom's fragment. K is permuted: of each
64 bytes along K, lane member q of a group has 16 neighbouring bytes, elements that one load brings,
instead of the scattered pairs that the fragment's layout names. A product does not see an order of
K that A and B share, so B is read with the same permutation: 16 neighbouring bytes of one of its
rows. N is permuted likewise, so that a lane's sums are 8 neighbouring columns of C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ptx.builder import Atom, Kernel, Pointer, Val
from ptx.isa.dtypes import DTYPES, DType, f32, tf32, u32
from ptx.tile.math import Row
from ptx.tile.pipeline import Cursor

__all__ = ["ROW_BYTES", "RowProducer", "StreamedProduct", "StreamedTile"]

ROW_BYTES = 64  # of one step along K


class RowProducer(Protocol):
    """Makes a lane's part of a row of A, for the step that its cursor is at.

    Attributes:
      cursor: the steps along K.
    """

    cursor: Cursor

    def prepare(self) -> None:
        """Called once in each step, before the rows."""

    def begin(self, row: int) -> Any:
        """Starts to load the lane's 16 bytes of row `row` of the lane."""

    def finish(self, loaded: Any) -> Sequence[Val]:
        """The four registers of A, from what `begin` has returned."""
        ...


class StreamedTile:
    """Rows of B, 64 bytes along K a step, in a ring of shared memory that is filled ahead.

    Args:
      k: the kernel, for sm_80 or newer.
      dtype: type of an element.
      rows: columns of C.
      stages: of the ring; all but one are on their way.
      cursor: the steps along K.
      locate: (row, column) of the step -> where that element is, and a predicate, or None where
        all are there. Called for the first of 16 bytes, with a row of which `pitch` elements on
        the next one follows.
      pitch: see locate.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        dtype: DType,
        *,
        rows: int,
        stages: int,
        cursor: Cursor,
        locate: Callable[[Val, Val], tuple[Pointer, Callable[[int], Val | None]]],
        pitch: int,
        threads: int,
    ):
        self.k, self.dtype, self.rows, self.stages, self.cursor = k, dtype, rows, stages, cursor
        self.locate, self.pitch, self.threads = locate, pitch, threads
        self.stage_bytes = rows * ROW_BYTES
        self.place = k.dynamic_shared(dtype, stages * self.stage_bytes // dtype.bytes)
        chunk = 16 // dtype.bytes
        self.row, self.column = k.tid() >> 2, (k.tid() & 3) * chunk
        self.own = self.place.add_bytes(k.tid() * 16)

    @staticmethod
    def shared_bytes(rows: int, stages: int) -> int:
        """Dynamic shared memory of such a tile."""
        return stages * rows * ROW_BYTES

    def fill(self, stage: Val | int) -> None:
        """Starts to copy the cursor's step into a stage, given by its first byte."""
        source, there = self.locate(self.row, self.column)
        step = self.threads // 4
        for first in range(0, self.rows, step):
            where = there(first)
            if self.rows - first < step:
                inside = self.row < self.rows - first
                with self.k.if_(inside):
                    self._copy(stage, source, first, where)
            else:
                self._copy(stage, source, first, where)

    def _copy(self, stage: Val | int, source: Pointer, first: int, where: Val | None) -> None:
        destination = self.own.add_bytes(stage).add_bytes(first * ROW_BYTES)
        self.k.cp_async(destination, source + first * self.pitch, 16, where=where)


class StreamedProduct:
    """C += A @ B: a warp has `16 * m_tiles` rows of C and all columns.

    Args:
      k: the kernel.
      atom: m16n8k16 of halves or m16n8k8 of tf32.
      b: columns of C, a multiple of 32.
      m_tiles: fragments of A that a warp has below each other.
    """

    def __init__(self, k: Kernel, atom: Atom, b: StreamedTile, m_tiles: int):
        assert (atom.a.registers, atom.b.registers, atom.m, atom.n) == (4, 2, 16, 8)
        assert b.rows % 32 == 0
        self.k, self.atom, self.b, self.m_tiles = k, atom, b, m_tiles
        self.group, self.member = k.laneid() >> 2, k.laneid() & 3
        self.first_row = (k.tid() >> 5) * (16 * m_tiles) + self.group
        self.lane_rows = 2 * m_tiles
        self.n_tiles = b.rows // 8
        self.sums = [
            [[k.var(f32, 0.0) for _ in range(4)] for _ in range(self.n_tiles)]
            for _ in range(m_tiles)
        ]
        self.words = [
            [k.var(atom.a.register, self._zero(), f"a{row}") for _ in range(4)]
            for row in range(self.lane_rows)
        ]
        # Group g of fragment j has column 32 * (j // 4) + 8 * (g // 2) + 2 * (j % 4) + g % 2.
        column = (self.group >> 1) * 8 + (self.group & 1)
        self.lane_b = b.place.add_bytes(column * ROW_BYTES + self.member * 16)

    def row(self, row: int) -> int:
        """Rows of the tile from the lane's first row to its row `row`."""
        return row // 2 * 16 + row % 2 * 8

    def multiply_all(self, a: RowProducer) -> None:
        """C += A @ B over all steps of the cursors, which are at their start and return to it.

        Whatever the producers read from shared memory has been filled, and a barrier passed,
        before; afterwards it may be overwritten.
        """
        self.begin(a)
        with self.k.loop(self.b.cursor.chunks, name="step", unroll=False):
            self.step(a)
        self.end(a)

    def begin(self, a: RowProducer) -> None:
        """Starts to fill the ring, and makes the first rows of A."""
        k, b = self.k, self.b
        k.comment("B ahead, and the first rows of A")
        chunks = b.cursor.chunks
        for stage in range(b.stages - 1):
            if isinstance(chunks, Val):
                with k.if_(chunks > stage):
                    b.fill(stage * b.stage_bytes)
                    b.cursor.advance()
            elif stage < chunks:
                b.fill(stage * b.stage_bytes)
                b.cursor.advance()
            k.cp_async_commit()
        a.prepare()
        for row, words in enumerate(self.words):
            for word, value in zip(words, a.finish(a.begin(row)), strict=True):
                word.set(value)
        a.cursor.advance()
        self.read = k.var(u32, 0, "read")
        self.filled = k.var(u32, (b.stages - 1) * b.stage_bytes, "filled")
        self.left = k.var(u32, chunks, "left")

    def step(self, a: RowProducer) -> None:
        """C += A @ B of one step; the rows of A of the next one are made meanwhile."""
        k, b = self.k, self.b
        k.cp_async_wait(b.stages - 2)
        k.barrier()
        with k.if_(self.left > b.stages - 1):
            b.fill(self.filled)
            b.cursor.advance()
        k.cp_async_commit()
        self.left -= 1
        self._turn(self.filled)
        a.prepare()
        place, following = self.lane_b.add_bytes(self.read), []
        share = self.n_tiles // self.lane_rows
        for row in range(self.lane_rows):
            loaded = a.begin(row)
            for j in range(row * share, (row + 1) * share):
                self._multiply(place, j)
            following.append(a.finish(loaded))
        self._turn(self.read)
        a.cursor.advance()
        for words, values in zip(self.words, following, strict=True):
            for word, value in zip(words, values, strict=True):
                word.set(value)

    def end(self, a: RowProducer) -> None:
        """All steps are done; what they read may be overwritten."""
        self.k.barrier()
        self.b.cursor.reset()
        a.cursor.reset()

    def clear(self) -> None:
        """C = 0."""
        for value in (v for tiles in self.sums for tile in tiles for v in tile):
            value.set(0.0)

    def rows(self) -> Iterator[Row]:
        """What this thread holds of C."""
        for i, tiles in enumerate(self.sums):
            for half in range(2):
                parts = []
                for j in range(0, self.n_tiles, 4):
                    values = [v for tile in tiles[j : j + 4] for v in tile[2 * half : 2 * half + 2]]
                    parts.append((self.member * 8 + 8 * j, values))
                yield Row(self.first_row + self.row(2 * i + half), parts)

    def _turn(self, stage) -> None:
        """The next stage of the ring."""
        stage += self.b.stage_bytes
        stage.set(self.k.select(stage.eq(self.b.stages * self.b.stage_bytes), 0, stage))

    def _multiply(self, place: Pointer, j: int) -> None:
        """Adds the products with fragment j of B: two along K."""
        at = place.add_bytes((j // 4 * 32 + j % 4 * 2) * ROW_BYTES)
        if self.b.dtype is f32:
            words = [self.k.convert(v, tf32, "rna") for v in at.load(0, 4)]
        else:
            words = list(at.view(DTYPES[f"{self.b.dtype}x2"]).load(0, 4))
        for half in range(2):
            for i, tiles in enumerate(self.sums):
                upper, lower = self.words[2 * i], self.words[2 * i + 1]
                a = [upper[2 * half], lower[2 * half], upper[2 * half + 1], lower[2 * half + 1]]
                self.k.mma(self.atom, tiles[j], a, words[2 * half : 2 * half + 2])

    def _zero(self) -> Val:
        zero = self.k.var(u32, 0)
        return self.k.bitcast(zero, self.atom.a.register)
