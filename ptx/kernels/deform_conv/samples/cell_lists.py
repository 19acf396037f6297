"""Lists of the samples in each cell, and a source whose rows are sums over them.

`backward_input_gather` says what cells and lists are. Lists may come from anywhere: what they say
is cut to what there is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import u32
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.tile.loop import Cursor
from ptx.tile.shared import SharedTile, Stage
from ptx.tile.vectors import both, load_elements, load_words, store_vector, widen

__all__ = ["NO_CELL", "SLOTS", "CellLists", "ListTable", "ListTile"]

NO_CELL = 2**32 - 1
SLOTS = 8  # samples of a pixel and tap that a block keeps: twice as many as it has if strides are 1
_TOGETHER = 4  # samples of a row that are loaded together: 16 bytes of their slots


@dataclasses.dataclass(frozen=True, eq=False)
class CellLists:
    """The lists in global memory, as in the kernel's parameters.

    Attributes:
      config: the convolution.
      starts, order, weights: where they begin.
      cells, pitch: of all images, and in a row of one.
      samples: output pixels.
    """

    config: DeformConvConfig
    starts: Pointer
    order: Pointer
    weights: Pointer
    cells: Val
    pitch: Val
    samples: Val

    def of(self, offset_group: Val, tap: Val | int) -> TapLists:
        """Those of an offset group and tap."""
        k = self.starts.kernel
        number = offset_group * self.config.taps + tap
        first = k.mul_wide(number, self.samples)
        starts = self.starts + k.mul_wide(number, self.cells + 1)
        return TapLists(self, starts, self.order + first, self.weights + first * 4)


@dataclasses.dataclass(frozen=True, eq=False)
class TapLists:
    """The lists of an offset group and tap.

    Attributes:
      lists: all of them.
      starts, order, weights: where these begin.
    """

    lists: CellLists
    starts: Pointer
    order: Pointer
    weights: Pointer

    def run(self, cell: Val, where: Val | None) -> tuple[Val, Val, Val]:
        """Where the samples of a cell's left neighbour start, its own, and where those end.

        All are 0 where the predicate is off.
        """
        k, most = self.starts.kernel, self.lists.samples
        found = [(self.starts + cell).load(i, where=where) for i in (-1, 0, 1)]
        first, second, end = (k.min(start, most) for start in found)
        return first, second, k.max(first, end)

    def sample(self, runs: PixelRuns, index: Val, where: Val | None) -> tuple[Val, Val]:
        """A sample of a pixel: its output pixel and its weight, 0 where the predicate is off."""
        k = self.starts.kernel
        in_beside = index < runs.beside_count
        at = index + k.select(in_beside, runs.beside[0], runs.above[0] - runs.beside_count)
        in_left = at < k.select(in_beside, runs.beside[1], runs.above[1])
        corner = k.select(in_beside, 0, 2, u32) + k.select(in_left, 1, 0, u32)
        weight = (self.weights + k.mul_wide(at, 4)).load(corner, where=where)
        order = self.order.load(at, where=where)
        return k.min(order, self.lists.samples - 1), weight


@dataclasses.dataclass(frozen=True, eq=False)
class PixelRuns:
    """The samples of a pixel: two runs of a list.

    A cell and the one to its left are neighbours there: one run is of the cells beside the pixel,
    the other of those above.

    Attributes:
      beside, above: see `TapLists.run`.
    """

    beside: Sequence[Val]
    above: Sequence[Val]

    @property
    def beside_count(self) -> Val:
        return self.beside[2] - self.beside[0]

    @property
    def count(self) -> Val:
        return self.beside_count + (self.above[2] - self.above[0])


class ListTable:
    """The first `SLOTS` samples of each row, of two taps; a source that fills no stage.

    While a tap is summed, those of the next one are loaded, and of the one after it the places in
    the lists: so an address has always been loaded before.

    Args:
      k: the kernel.
      lists: where samples are.
      cursor: its "tap" is the one that is summed, in as many parts as its "slice" counts.
      offset_group: the offset group of the block.
      row_cells: in shared memory, the cell of each row, or `NO_CELL`.
      rows: how many.
      threads: the threads of the block, twice as many as rows or more.
    """

    def __init__(
        self,
        k: Kernel,
        lists: CellLists,
        cursor: Cursor,
        offset_group: Val,
        row_cells: Pointer,
        *,
        rows: int,
        threads: int,
    ):
        assert threads >= 2 * rows
        assert rows * SLOTS % threads == 0
        self.k, self.lists, self.cursor, self.offset_group = k, lists, cursor, offset_group
        self.row_cells, self.rows, self.threads = row_cells, rows, threads
        self._runs = k.dynamic_shared(u32, 2 * rows * 2 * 4)  # taps, rows, beside and above
        self._samples = k.dynamic_shared(u32, 2 * rows * SLOTS)
        self._weights = k.dynamic_shared(lists.weights.dtype, 2 * rows * SLOTS)
        self._counts = k.dynamic_shared(u32, 2 * rows)
        step = threads // SLOTS
        self._slot_rows = [k.tid() // SLOTS + first for first in range(0, rows, step)]

    def count(self, tap: Val, row: Val) -> Val:
        """How many samples a row has, of the tap that is summed."""
        return self._counts.load(self._first(tap, 1) + row)

    def slots(self, tap: Val, row: Val) -> tuple[Pointer, Pointer]:
        """Output pixels and weights of a row's slots; weights of empty ones are 0."""
        at = self._first(tap, SLOTS) + row * SLOTS
        return self._samples + at, self._weights + at

    def start(self) -> None:
        """Prepares the first tap. A barrier has to follow."""
        k = self.k
        k.comment("samples of the first tap, and where those of the second are")
        self._store_run(0, self._load_run(0))
        k.barrier()
        self._store_samples(0, self._load_samples(0))
        if self.lists.config.taps > 1:
            self._store_run(1, self._load_run(1))

    def begin(self, stage: Stage, where: Val | None) -> None:
        taps, tap = self.lists.config.taps, self.cursor["tap"]
        self._next, prepares = tap + 1, tap < taps - 1
        if self.cursor.extents["slice"] != 1:
            prepares = prepares & self.cursor["slice"].eq(0)
        self._prepares = both(prepares, where)

    def finish(self, stage: Stage) -> None:
        # Registers that were loaded before would not be there for the product.
        k, taps = self.k, self.lists.config.taps
        if taps == 1:
            return
        k.comment("samples of the next tap, and where those of the one after it are")
        with k.if_(self._prepares):
            run = self._load_run(self._next + 1, where=self._next < taps - 1)
            self._store_samples(self._next, self._load_samples(self._next))
            self._store_run(self._next + 1, run)

    def _first(self, tap: Val | int, count: int) -> Val | int:
        """The first of a tap's elements, where each row has so many."""
        return (tap & 1) * (count * self.rows)

    def _load_run(self, tap: Val | int, where: Val | None = None) -> tuple[Val, Val, Val]:
        """Loads where samples are: a thread for each row's cells, beside and above."""
        k, tid = self.k, self.k.tid()
        cell = self.row_cells.load(tid >> 1, where=self._row_ok(), otherwise=NO_CELL)
        above = k.select((tid & 1).ne(0), self.lists.pitch, 0)
        cell_ok = both(cell.ne(NO_CELL), where)
        return self.lists.of(self.offset_group, tap).run(cell - above, cell_ok)

    def _store_run(self, tap: Val | int, run: tuple[Val, Val, Val]) -> None:
        at = self._first(tap, 8) + self.k.tid() * 4
        self._runs.store(at, (*run, run[2]), where=self._row_ok())

    def _row_ok(self) -> Val | None:
        """Whether the thread has a row's cells; None where all have."""
        return None if self.threads == 2 * self.rows else self.k.tid() < 2 * self.rows

    def _load_samples(self, tap: Val | int) -> list[tuple[Val, Val]]:
        """Loads samples, and counts them: a thread for a slot of some rows."""
        slot, loaded = self.k.tid() % SLOTS, []
        lists = self.lists.of(self.offset_group, tap)
        for row in self._slot_rows:
            runs = self._runs + (self._first(tap, 8) + row * 8)
            found = PixelRuns(runs.load(0, 4), runs.load(4, 4))
            count = found.count
            self._counts.store(self._first(tap, 1) + row, count, where=slot.eq(0))
            loaded.append(lists.sample(found, slot, slot < count))
        return loaded

    def _store_samples(self, tap: Val | int, loaded: Sequence[tuple[Val, Val]]) -> None:
        for i, (sample, weight) in enumerate(loaded):
            at = self.k.tid() + (i * self.threads) + self._first(tap, SLOTS)
            self._samples.store(at, sample)
            self._weights.store(at, weight)


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """A row that is summed.

    Attributes:
      row: the row of the tile.
      count: samples.
      samples, weights: slots in shared memory.
      words: the words of the first samples.
    """

    row: Val
    count: Val
    samples: Pointer
    weights: Pointer
    words: list[tuple[Val, ...]] = dataclasses.field(default_factory=list)


class ListTile:
    """Fills rows of A, an input pixel each, with sums over its samples.

    A thread has some channels of a few rows. While a part of a chunk is multiplied, the first
    samples of one row are on their way.

    Args:
      k: the kernel.
      tile: A; its columns are output channels.
      table: the table of its rows, filled for the cursor's tap.
      locate: column of the tile -> where that channel of the first output pixel is, and a
        predicate: whether there is such a channel. Called for the first of `width` columns.
      width: channels that are loaded together.
      threads: the threads of the block.
      most_parts: the most parts that the product can multiply a chunk in.

    Attributes:
      parts: see `ptx.tile.loop.PartedSource`.
    """

    def __init__(
        self,
        k: Kernel,
        tile: SharedTile,
        table: ListTable,
        locate: Callable[[Val], tuple[Pointer, Val]],
        *,
        width: int,
        threads: int,
        most_parts: int,
    ):
        self.k, self.tile, self.table, self.locate, self.width = k, tile, table, locate, width
        across = tile.layout.columns // width
        self.column = k.tid() % across * width
        self.row, self.step = k.tid() // across, threads // across
        self.parts = math.gcd(most_parts, max(1, tile.layout.rows // self.step))

    def begin(self, stage: Stage, where: Val | None) -> None:
        k = self.k
        k.comment("the first samples of a row")
        self.gradients, channel_ok = self.locate(self.column)
        self.row_ok, self.tap = both(channel_ok, where), k.copy(self.table.cursor["tap"])
        self.begun, self.next_row = self._begin_row(self.row), self.row + self.step
        self.rows_left = self.tile.layout.rows // self.step - 1

    def resume(self, stage: Stage) -> None:
        self._finish_row(stage, self.begun)
        self.begun, self.next_row = self._begin_row(self.next_row), self.next_row + self.step
        self.rows_left -= 1

    def finish(self, stage: Stage) -> None:
        k, rows = self.k, self.tile.layout.rows
        k.comment("the sum of a row, and of further rows")
        self._finish_row(stage, self.begun)
        if self.rows_left > 0:
            with k.loop(self.next_row, rows, self.step, name="row") as row:
                self._finish_row(stage, self._begin_row(row))

    def _begin_row(self, row: Val) -> _Row:
        """Starts to load the first samples of a row, which has none where there is no channel."""
        k, table, tap = self.k, self.table, self.tap
        samples, weights = table.slots(tap, row)
        count = k.select(self.row_ok, table.count(tap, row), 0)
        begun = _Row(row, count, samples, weights)
        begun.words.extend(self._load(begun, 0))
        return begun

    def _finish_row(self, stage: Stage, row: _Row) -> None:
        """Sums the samples of a row, and stores the sum."""
        k = self.k
        totals = [k.var(row.weights.dtype, 0.0) for _ in range(self.width)]
        self._add_slots(totals, row, 0, row.words)
        for slot in range(_TOGETHER, SLOTS, _TOGETHER):
            with k.if_(row.count > slot):
                self._add_slots(totals, row, slot, self._load(row, slot))
        with k.if_(row.count > SLOTS):
            self._add_further(totals, row)
        store_vector(self.tile.at(stage, row.row, self.column), totals)

    def _load(self, row: _Row, slot: int) -> list[tuple[Val, ...]]:
        """Loads the gradients of some slots' samples, zeros for those that are empty."""
        samples = row.samples.load(slot, _TOGETHER)
        return [self._gradients(sample, row.count > slot + i) for i, sample in enumerate(samples)]

    def _add_slots(
        self, totals: Sequence[Var], row: _Row, slot: int, loaded: Sequence[Sequence[Val]]
    ) -> None:
        """Adds what `_load` has loaded, times its weights."""
        weights = load_elements(row.weights + slot, _TOGETHER)
        for weight, words in zip(weights, loaded, strict=True):
            self._add(totals, weight, words)

    def _add_further(self, totals: Sequence[Var], row: _Row) -> None:
        """Adds the samples of a row for which the table has no slot."""
        k, table = self.k, self.table
        cell, lists = table.row_cells.load(row.row), table.lists.of(table.offset_group, self.tap)
        runs = PixelRuns(*(lists.run(cell - above, None) for above in (0, table.lists.pitch)))
        with k.loop(SLOTS, row.count, name="further", unroll=False) as index:
            sample, weight = lists.sample(runs, index, None)
            self._add(totals, weight, self._gradients(sample, None))

    def _gradients(self, sample: Val, where: Val | None) -> tuple[Val, ...]:
        address = self.gradients + self.k.mul_wide(sample, self.table.lists.config.out_channels)
        return load_words(address, self.width, where=where)

    def _add(self, total: Sequence[Var], weight: Val, words: Sequence[Val]) -> None:
        for element, value in zip(total, widen(self.k, words), strict=True):
            element.set(self.k.fma(weight, value, element))
