"""Backward to input, and to offset and mask, the fast way: grad_y in registers.

Both form the gradients of the sampled values, `gcol = grad_y @ weights^T`, tile by tile, and use
each where it is: in the registers of a lane, which has 8 neighbouring channels of a pixel and tap.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import DTYPES, f32, tf32, u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.corners import CornerTable, PixelRows, TableRows
from ptx.kernels.deform_conv.samples.gradients import store_gradients
from ptx.kernels.deform_conv.samples.positions import Offsets, Position
from ptx.tile.loop import Cursor, Loop
from ptx.tile.occupancy import enough_blocks
from ptx.tile.pixels import OutputPixel
from ptx.tile.plan import atom_of
from ptx.tile.stream import (
    NEIGHBOURS,
    ROW_BYTES,
    ColumnOrder,
    LaneRows,
    StreamedProduct,
    StreamedTile,
)
from ptx.tile.vectors import add_weighted, any_infinite, both, load_elements, load_words

__all__ = ["streamed_backward_input", "streamed_backward_offset", "taps_per_block"]


def streamed_backward_offset(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    """Writes the gradients to offset and mask.

    Where an offset group has several lanes' channels, each lane adds up its share of the dots of
    gcol with the corners over all tiles of a tap; then the lanes of a pixel add up theirs. Where it
    has one lane's or half of them, the lane has all and writes at once.
    """
    columns = _Columns(k, config, plan, p)
    if columns.table is None:
        with columns.taps() as tap:
            for vector in columns.vectors(tap):
                position, dots = vector.position, _dots(columns, p.x, vector)
                store_gradients(p, position.index, dots, position, vector.pixel.exists)
        return
    rows = columns.lane_rows
    dots = [[k.var(f32, 0.0) for _ in range(4)] for _ in range(len(rows))]
    with columns.taps() as tap:
        for dot in (dot for of_row in dots for dot in of_row):
            dot.set(0.0)
        with columns.tiles(tap) as tile:
            k.comment("the dots of gcol with the four corners")
            _add_dots(k, columns, tile, p.x + tile.channel, dots)
        group, tap = k.ctaid("y"), columns.first_tap + tap
        k.comment("sum over the lanes of a pixel; each of them writes a row")
        for dot in (dot for of_row in dots for dot in of_row):
            for mask in (1, 2):
                dot += k.shuffle("bfly", dot, mask)
        own = [dot.value() for dot in dots[0]]
        for index in range(1, len(rows)):
            is_own = rows.member.eq(index)
            own = [k.select(is_own, dot, o) for dot, o in zip(dots[index], own, strict=True)]
        row = rows.first + (rows.member >> 1) * 16 + (rows.member & 1) * 8
        with k.if_(rows.member < len(rows)):
            pixel = columns.pixels.load(row)
            position = columns.offsets.position(pixel, group, tap, pixel.exists)
            store_gradients(p, position.index, own, position, pixel.exists)


def streamed_backward_input(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    """Adds gcol to the four corners of each sample."""
    columns = _Columns(k, config, plan, p, ColumnOrder(_together(k)))
    if columns.table is None:
        with columns.taps() as tap:
            for vector in columns.vectors(tap):
                corners = columns.corners(p.grad_x, vector)
                weights, inside = vector.position.weights(), vector.position.inside()
                infinite = any_infinite(vector.values)
                for address, weight, corner_ok in zip(corners, weights, inside, strict=True):
                    where = both(corner_ok, vector.channels_ok)
                    add_weighted(
                        address, k.convert(weight, f32, "rn"), vector.values, infinite,
                        where=where, together=_together(k),
                    )  # fmt: skip
        return
    with columns.taps() as tap, columns.tiles(tap) as tile:
        k.comment("add gcol to the four corners")
        image = p.grad_x + tile.channel
        for index, row in enumerate(columns.product.rows()):
            _, corners = tile.rows.addresses(index, image)
            inside, weights = tile.rows.inside(index), tile.rows.weights(index)
            for (column, sums), start in zip(row.parts, columns.column_starts(), strict=True):
                channels_ok = columns.channels_ok(column, tile.channels)
                infinite = any_infinite(sums)
                for address, weight, corner_ok in zip(corners, weights, inside, strict=True):
                    add_weighted(
                        address + start, weight, sums, infinite,
                        where=both(corner_ok, channels_ok), together=_together(k),
                    )  # fmt: skip


def taps_per_block(config: DeformConvConfig, plan: SamplePlan, blocks: int) -> int:
    """Taps of one block: as many as a table has room for, or fewer where the grid would be small.

    Args:
      config: the convolution.
      plan: the tiles.
      blocks: the number of blocks of the grid, if each had all taps.
    """
    room = config.taps if plan.narrow else plan.table_taps(config)
    wanted = -(-enough_blocks(4) // max(1, blocks))  # parts that the taps are cut into
    return max(1, min(room, config.taps // wanted))


@dataclasses.dataclass(frozen=True, eq=False)
class _Tile:
    """A tile whose gcol is in `_Columns.product`, of pixels whose corners are in a table.

    Attributes:
      rows: the lane's rows of the table.
      channel: the lane's first channel, of all.
      channels: the number of channels that are left in the extent, from the tile's first one on.
    """

    rows: TableRows
    channel: Val
    channels: Val | int


@dataclasses.dataclass(frozen=True, eq=False)
class _Vector:
    """Values of gcol of one pixel and tap, of neighbouring channels of one offset group.

    Attributes:
      pixel: the pixel of the output; it does not exist either where `channels_ok` is off.
      position: the position that the tap samples.
      channel: the first channel, of all.
      values: the values of gcol, one for each channel.
      channels_ok: predicate: whether there are such channels; None where all are.
    """

    pixel: OutputPixel
    position: Position
    channel: Val
    values: Sequence[Val]
    channels_ok: Val | None


class _Columns:
    """gcol of a block's pixels, tile by tile.

    A block has the taps of one z of the grid, and either the channels of an offset group (y), whose
    corners are in a table, or a tile of channels of a group (y).
    """

    def __init__(
        self,
        k: Kernel,
        config: DeformConvConfig,
        plan: SamplePlan,
        p: Any,
        order: ColumnOrder = NEIGHBOURS,
    ):
        self.k, self.config, self.plan, self.order = k, config, plan, order
        self.offsets = offsets = Offsets.of(k, config, p)
        self.weight, self.grad_y = p.weight, p.grad_y
        atom = atom_of(config, k.target)
        assert atom is not None
        dtype, threads = config.float_type, plan.threads
        self.pixels = PixelRows(
            k, config, offsets.geometry, p.strip_width, rows=plan.m, threads=threads
        )
        self.first_tap = k.ctaid("z") * p.taps_per_block
        self.tap_count = k.min(p.taps_per_block, config.taps - self.first_tap)
        self.in_group, self.out_group = config.in_channels_per_group, config.out_channels_per_group

        self.table, self.extent = None, plan.channel_extent(config)
        segments = config.channels_per_offset_group // config.segment
        tiles = -(-config.segment // plan.n)
        if plan.narrow:
            segments = tiles = 1
            per_group = -(-self.in_group // plan.n)
            self.first_channel = k.ctaid("y") // per_group * self.in_group
            self.first_in_extent = k.ctaid("y") % per_group * plan.n
        else:
            self.first_channel = k.ctaid("y") * config.channels_per_offset_group
            self.first_in_extent = k.var(u32, 0)
            taps = plan.table_taps(config)
            self.table = CornerTable(offsets, rows=plan.m, taps=taps)
        self.extents = {"segment": segments, "tile": tiles}
        self.group = self.first_channel // self.in_group  # of the first segment
        slices = {"slice": self.out_group // (ROW_BYTES // dtype.bytes)}
        self.b_cursor = Cursor(k, tap=self.tap_count, **self.extents, **slices)
        b = StreamedTile(
            k, dtype, rows=plan.n, stages=plan.stages, locate=self._weights,
            pitch=config.out_channels, threads=threads, columns=order,
        )  # fmt: skip
        self.lane_rows = LaneRows.of(k, plan.m // (threads // 32 * 16))
        k.barrier()  # all pixels of the block are written
        self.a = _GradientRows(self, Cursor(k, **self.extents, **slices))
        self.product = StreamedProduct(k, atom, self.a, b.tile, self.lane_rows, order)
        self.loop = Loop(k, self.b_cursor, [b], stages=plan.stages)

    @contextlib.contextmanager
    def taps(self) -> Iterator[Val]:
        """Writes the loop over the block's taps, which are counted from `first_tap`."""
        k = self.k
        if self.table is not None:
            self.table.fill(self.pixels, k.ctaid("y"), self.first_tap, self.tap_count)
            k.barrier()
        self.loop.start()
        self.product.start()
        with k.loop(0, self.tap_count, name="tap") as tap:
            yield tap
        self.loop.end()

    @contextlib.contextmanager
    def tiles(self, tap: Val) -> Iterator[_Tile]:
        """Writes the loops over a tap's tiles of channels of the block's offset group."""
        k, table, rows = self.k, self.table, self.lane_rows
        assert table is not None
        with (
            k.loop(self.extents["segment"], name="segment") as segment,
            k.loop(self.extents["tile"], name="tile") as tile,
        ):
            self._multiply()
            done = tile * self.plan.n
            channel = self.first_channel + segment * self.extent + done
            first_entry = tap * table.rows + rows.first
            table_rows = TableRows(table, first_entry, rows.offset)
            lane_channel = channel + rows.member * self.order.run
            yield _Tile(table_rows, lane_channel, self.extent - done)

    def vectors(self, tap: Val) -> Iterator[_Vector]:
        """Writes the product of a tap and the block's tile of channels; its vectors, one by one."""
        config, tap = self.config, self.first_tap + tap
        width = min(self.order.run, config.channels_per_offset_group)
        self._multiply()
        for row in self.product.rows():
            pixel = self.pixels.load(row.row)
            for column, sums in row.parts:
                channels_ok = self.channels_ok(column, self.in_group - self.first_in_extent)
                if channels_ok is not None:
                    pixel = dataclasses.replace(pixel, exists=pixel.exists & channels_ok)
                for i in range(0, self.order.run, width):
                    channel = self.first_channel + self.first_in_extent + column + i
                    group = channel // config.channels_per_offset_group
                    position = self.offsets.position(pixel, group, tap, pixel.exists)
                    yield _Vector(pixel, position, channel, sums[i : i + width], channels_ok)

    def corners(self, array: Pointer, vector: _Vector) -> list[Pointer]:
        """The addresses of a vector's four corners in an array [N, H, W, C]."""
        corner = self.offsets.corner(vector.pixel, vector.position)
        return self.offsets.corner_addresses(array, corner, vector.channel)

    def column_starts(self) -> list[int]:
        """Columns from the lane's first one to each vector of a row."""
        return [
            first + start for first in range(0, self.plan.n, 32) for _, start in self.order.starts()
        ]

    def segment(self, cursor: Cursor) -> tuple[Val, Val]:
        """First channel, and group, of the segment that a cursor is at."""
        if self.extents["segment"] == 1:
            return self.first_channel, self.group
        first = self.first_channel + cursor["segment"] * self.extent
        return first, first // self.in_group

    def channels_ok(self, column: Val, channels: Val | int) -> Val | None:
        """Whether a lane's columns are channels at all; None where all are."""
        return column < channels if self.extent % self.plan.n else None

    def _multiply(self) -> None:
        """Calculates gcol of one tile."""
        self.product.clear()
        with self.k.loop(self.a.cursor.extents["slice"], name="slice", unroll=False):
            self.product.multiply(self.loop.next())
            self.loop.release()

    def _weights(self, row: Val, column: Val):
        k, config, cursor = self.k, self.config, self.b_cursor
        out = cursor["slice"] * (ROW_BYTES // config.float_type.bytes) + column
        segment, group = self.segment(cursor)
        in_extent = self.first_in_extent + cursor["tile"] * self.plan.n + row
        channel = segment - group * self.in_group + in_extent
        at = k.mad_wide(
            (self.first_tap + cursor["tap"]) * self.in_group + channel,
            config.out_channels,
            k.convert(group * self.out_group + out, u64),
        )

        def channel_ok(further: int) -> Val | None:
            return in_extent + further < self.extent if self.extent % self.plan.n else None

        return self.weight + at, channel_ok


class _GradientRows:
    """Rows of A that are grad_y as it lies in memory."""

    def __init__(self, columns: _Columns, cursor: Cursor):
        self.k, self.columns, self.cursor = columns.k, columns, cursor
        k, config, rows = self.k, columns.config, columns.lane_rows
        self.addresses = []
        for row in range(len(rows)):
            index, pixel_ok = columns.pixels.index(rows.first + rows.offset(row))
            # Rows without a pixel read those of the first one: nobody uses their products.
            index = k.select(pixel_ok, index, 0)
            first = columns.grad_y + k.mul_wide(index, config.out_channels)
            self.addresses.append(first + rows.member * (16 // config.float_type.bytes))

    def prepare(self) -> None:
        columns, cursor = self.columns, self.cursor
        config = columns.config
        slice_ = cursor["slice"] * (ROW_BYTES // config.float_type.bytes)
        self.channel = columns.segment(cursor)[1] * columns.out_group + slice_

    def begin(self, row: int) -> tuple[Val, ...]:
        address = self.addresses[row] + self.channel
        return load_words(address, 16 // address.dtype.bytes)

    def finish(self, loaded: tuple[Val, ...]) -> Sequence[Val]:
        if loaded[0].dtype is f32:
            return [self.k.convert(value, tf32, "rna") for value in loaded]
        assert loaded[0].dtype is DTYPES[f"{self.columns.config.float_type}x2"]
        return loaded


def _add_dots(
    k: Kernel, columns: _Columns, tile: _Tile, image: Pointer, dots: Sequence[Sequence[Var]]
) -> None:
    """Adds to each row's four dots those of a tile's gcol with the four corners in an image."""
    for index, row in enumerate(columns.product.rows()):
        _, corners = tile.rows.addresses(index, image)
        totals = [k.var(f32, 0.0) for _ in range(4)]
        for (column, sums), start in zip(row.parts, columns.column_starts(), strict=True):
            channels_ok = columns.channels_ok(column, tile.channels)
            addresses = [corner + start for corner in corners]
            for total, address in zip(totals, addresses, strict=True):
                elements = load_elements(address, len(sums), where=channels_ok)
                for value, element in zip(sums, elements, strict=True):
                    total.set(k.fma(value, element, total))
        for dot, total, corner_ok in zip(dots[index], totals, tile.rows.inside(index), strict=True):
            dot += k.select(corner_ok, total, 0.0)


def _dots(columns: _Columns, x: Pointer, vector: _Vector) -> list[Val]:
    """The dots of a vector of gcol with its four corners."""
    k, dots, corners = columns.k, [], columns.corners(x, vector)
    for address, corner_ok in zip(corners, vector.position.inside(), strict=True):
        where = both(corner_ok, vector.channels_ok)
        elements = load_elements(address, len(vector.values), where=where)
        total = vector.values[0] * elements[0]
        for value, element in zip(vector.values[1:], elements[1:], strict=True):
            total = k.fma(value, element, total)
        dots.append(total)
    return dots


def _together(k: Kernel) -> int:
    """Neighbours that one instruction adds to memory.

    A lane has no more neighbouring columns: so what four lanes add to together are neighbours, in
    as few sectors of L2 as there can be (see `ptx.tile.stream.ColumnOrder`).
    """
    return 4 if k.target.supports("sm_90") else 1
