"""A product whose A never sees shared memory: each lane makes the fragments that it multiplies.

A row of A is produced by the four lanes that hold it in the atom's fragment. K is permuted: of each
64 bytes along K, lane member q of a group has 16 neighbouring bytes, elements that one load brings,
instead of the scattered pairs that the fragment's layout names. A product does not see an order of
K that A and B share, so B is read with the same permutation: 16 neighbouring bytes of one of its
rows. N is permuted likewise, so that a lane's sums are neighbouring columns of C, as `ColumnOrder`
says.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ptx.builder import Atom, Kernel, Pointer, Val
from ptx.isa.dtypes import DTYPES, DType, f32, tf32, u32
from ptx.tile.layout import ROW_BYTES, Layout
from ptx.tile.loop import Cursor
from ptx.tile.math import Row, TileMath
from ptx.tile.shared import SharedTile, Stage

__all__ = [
    "NEIGHBOURS",
    "ROW_BYTES",
    "ColumnOrder",
    "LaneRows",
    "RowProducer",
    "StreamedProduct",
    "StreamedTile",
]


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


@dataclasses.dataclass(frozen=True, eq=False)
class LaneRows:
    """The rows of A and C that a lane has a part of: a warp has `16 * m_tiles` rows.

    Attributes:
      m_tiles: fragments of A that a warp has below each other.
      group: the lane's group of four; they have the same rows.
      member: the lane among the four.
      first: the lane's first row in the block's tile.
    """

    m_tiles: int
    group: Val
    member: Val
    first: Val

    @staticmethod
    def of(k: Kernel, m_tiles: int) -> LaneRows:
        """The rows of this lane."""
        group, member = k.laneid() >> 2, k.laneid() & 3
        return LaneRows(m_tiles, group, member, (k.tid() >> 5) * (16 * m_tiles) + group)

    def __len__(self) -> int:
        return 2 * self.m_tiles

    def offset(self, row: int) -> int:
        """Rows of the tile from the lane's first row to its row `row`."""
        return row // 2 * 16 + row % 2 * 8


@dataclasses.dataclass(frozen=True)
class ColumnOrder:
    """The columns of C that a lane has: of each 32, for each member of a group of four lanes, 8.

    Attributes:
      run: neighbours. With 8, a lane stores 16 bytes of halves at once. With 4, the four lanes have
        16 neighbours, and as many 16 columns on; with 1, four neighbours, and so on. So what they
        add to memory by one instruction, each 4 of f32 or 1, is 64 or 16 bytes that lie together.
    """

    run: int = 8

    def __post_init__(self):
        if self.run not in (1, 4, 8):
            raise ValueError(f"run must be 1, 4 or 8, got {self.run}")

    def fragment(self, j: int) -> int:
        """The first row of B, in shared memory, of fragment j."""
        within = {8: j % 4 * 2, 4: j % 4 // 2 * 16 + j % 2 * 2, 1: j % 4 * 8}
        return j // 4 * 32 + within[self.run]

    def row(self, group: Val) -> Val:
        """The row of B of a lane's group, from its fragment's first one on.

        Eight lanes that read together read two rows: one with an even number and one with an odd
        number, which lie in different banks.
        """
        first, second = group >> 1, group & 1
        if self.run == 1:
            return second * 4 + (first ^ second)
        return first * self.run + second

    def stored(self, row: Val) -> Val:
        """The row of shared memory where a column's weights are."""
        return row ^ ((row >> 2) & 1) if self.run == 1 else row

    def starts(self) -> list[tuple[int, int]]:
        """The starts of a lane's runs in each 32 columns: what each member adds, and all."""
        return [(self.run, 4 * self.run * number) for number in range(8 // self.run)]


NEIGHBOURS = ColumnOrder()


class StreamedTile:
    """Rows of B, 64 bytes along K a step: a source of a ring in dynamic shared memory.

    Args:
      k: the kernel, for sm_80 or newer.
      dtype: the type of an element.
      rows: columns of C.
      stages: stages of the ring.
      locate: (row, column) of the step -> where that element is, and a function of further rows ->
        a predicate: whether the row so much further on exists, or None where all do. Called for the
        first of 16 bytes, with a row of which `pitch` elements on the next one follows.
      pitch: elements in global memory; see `locate`.
      threads: threads of the block, a multiple of 32.
      columns: the columns of a lane.
    """

    def __init__(
        self,
        k: Kernel,
        dtype: DType,
        *,
        rows: int,
        stages: int,
        locate: Callable[[Val, Val], tuple[Pointer, Callable[[int], Val | None]]],
        pitch: int,
        threads: int,
        columns: ColumnOrder = NEIGHBOURS,
    ):
        self.k, self.locate, self.pitch, self.step = k, locate, pitch, threads // 4
        layout = Layout.dense(dtype, rows)
        self.tile = SharedTile(
            k.dynamic_shared(dtype, stages * layout.bytes // dtype.bytes), layout
        )
        self.row, self.column = k.tid() >> 2, (k.tid() & 3) * (16 // dtype.bytes)
        stored = columns.stored(self.row) * ROW_BYTES + (k.tid() & 3) * 16
        self.own = self.tile.first.add_bytes(stored)

    @staticmethod
    def shared_bytes(rows: int, stages: int) -> int:
        """Bytes of dynamic shared memory of such a ring."""
        return stages * rows * ROW_BYTES

    def begin(self, stage: Stage, where: Val | None) -> None:
        k, rows = self.k, self.tile.layout.rows
        with contextlib.nullcontext() if where is None else k.if_(where):
            source, exists = self.locate(self.row, self.column)
            own = self.own.add_bytes(stage * self.tile.layout.bytes)
            for first in range(0, rows, self.step):
                ragged = rows - first < self.step
                with k.if_(self.row < rows - first) if ragged else contextlib.nullcontext():
                    k.cp_async(
                        own.add_bytes(first * ROW_BYTES), source + first * self.pitch, 16,
                        where=exists(first),
                    )  # fmt: skip

    def finish(self, stage: Stage) -> None:
        """Does nothing: what `begin` has started goes past the registers."""


class StreamedProduct(TileMath):
    """C += A @ B: a warp has its rows of C and all columns.

    The rows of A of one step are in registers; those of the next one are made while they are
    multiplied.

    Args:
      k: the kernel.
      atom: m16n8k16 of halves or m16n8k8 of tf32.
      a: makes the rows of A.
      b: rows of 64 bytes, as many as C has columns, a multiple of 32.
      lane_rows: the rows of this lane.
      columns: the columns of this lane, the same as those of the tile.
    """

    row_lanes = (1, 2)

    def __init__(
        self,
        k: Kernel,
        atom: Atom,
        a: RowProducer,
        b: SharedTile,
        lane_rows: LaneRows,
        columns: ColumnOrder = NEIGHBOURS,
    ):
        assert (atom.a.registers, atom.b.registers, atom.m, atom.n) == (4, 2, 16, 8)
        assert b.layout.rows % 32 == 0
        assert b.layout.conflict_free(rows=2)
        super().__init__(k, f32)
        self.atom, self.a, self.b, self.lane_rows = atom, a, b, lane_rows
        self.n_tiles = b.layout.rows // 8
        self.sums = [[self.zeros(4) for _ in range(self.n_tiles)] for _ in range(lane_rows.m_tiles)]
        self.words = [
            [
                k.var(atom.a.register, k.bitcast(k.var(u32, 0), atom.a.register), f"a{row}")
                for _ in range(4)
            ]
            for row in range(len(lane_rows))
        ]
        self.columns = columns
        row = columns.row(lane_rows.group)
        self.lane_b = b.first.add_bytes(row * ROW_BYTES + lane_rows.member * 16)

    def start(self) -> None:
        """Makes the rows of A of the first step."""
        self.k.comment("the first rows of A")
        self.a.cursor.reset()
        self.a.prepare()
        for row, words in enumerate(self.words):
            for word, value in zip(words, self.a.finish(self.a.begin(row)), strict=True):
                word.set(value)
        self.a.cursor.advance()

    def multiply(self, stage: Stage, stage_b: Stage | None = None) -> None:
        a = self.a
        a.prepare()
        stage = stage if stage_b is None else stage_b
        first, following = self.lane_b.add_bytes(stage * self.b.layout.bytes), []
        share = self.n_tiles // len(self.lane_rows)
        rows = len(self.lane_rows)
        ahead = [a.begin(0)]
        for row in range(rows):
            if row + 1 < rows:
                ahead.append(a.begin(row + 1))
            for j in range(row * share, (row + 1) * share):
                self._multiply(first, j)
            following.append(a.finish(ahead.pop(0)))
        a.cursor.advance()
        for words, values in zip(self.words, following, strict=True):
            for word, value in zip(words, values, strict=True):
                word.set(value)

    def rows(self) -> Iterator[Row]:
        lanes = self.lane_rows
        for i, tiles in enumerate(self.sums):
            for half in range(2):
                parts = []
                for j in range(0, self.n_tiles, 4):
                    values = [v for tile in tiles[j : j + 4] for v in tile[2 * half : 2 * half + 2]]
                    run = self.columns.run
                    for first, (of_member, start) in zip(
                        range(0, 8, run), self.columns.starts(), strict=True
                    ):
                        column = lanes.member * of_member + (8 * j + start)
                        parts.append((column, values[first : first + run]))
                yield Row(lanes.first + lanes.offset(2 * i + half), parts)

    def _multiply(self, first: Pointer, j: int) -> None:
        """Adds the products with fragment j of B: two along K."""
        fragment = first.add_bytes(self.columns.fragment(j) * ROW_BYTES)
        if fragment.dtype is f32:
            words = [self.k.convert(v, tf32, "rna") for v in fragment.load(0, 4)]
        else:
            words = list(fragment.view(DTYPES[f"{fragment.dtype}x2"]).load(0, 4))
        for half in range(2):
            for i, tiles in enumerate(self.sums):
                upper, lower = self.words[2 * i], self.words[2 * i + 1]
                a = [upper[2 * half], lower[2 * half], upper[2 * half + 1], lower[2 * half + 1]]
                self.k.mma(self.atom, tiles[j], a, words[2 * half : 2 * half + 2])
