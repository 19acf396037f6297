"""The fast kernels backward to input, and to offset and mask: grad_y in registers.

Both form the gradients of the sampled values, `gcol = grad_y @ weights^T`, tile by tile, and use
each where it is: in the registers of a lane, which has 8 neighbouring channels of a pixel and tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import DTYPES, f32, tf32, u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.corners import CornerTable, PixelRows, TableRows
from ptx.kernels.deform_conv.gather import corner_index_places
from ptx.kernels.deform_conv.gradients import OffsetGradients
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.sampling import Offsets, Position
from ptx.tile.loop import Cursor, Loop
from ptx.tile.occupancy import enough_blocks
from ptx.tile.pixels import OutputPixel, pixel_index
from ptx.tile.plan import atom_of
from ptx.tile.stream import ROW_BYTES, LaneRows, StreamedProduct, StreamedTile
from ptx.tile.vectors import load_words, widen

__all__ = ["streamed_backward_input", "streamed_backward_offset", "taps_per_block"]

LANE_CHANNELS = 8  # neighbours in a lane's sums
PART = 32  # columns from a lane's 8 to its next ones


def streamed_backward_offset(
    k: Kernel,
    config: DeformConvConfig,
    plan: SamplePlan,
    p: Any,
    offsets: Offsets,
    gradients: OffsetGradients,
) -> None:
    """Writes the gradients to offset and mask.

    Where an offset group has several lanes' channels, each lane adds up its share of the dots of
    gcol with the corners over all tiles of a tap; then the lanes of a pixel add up theirs. Where it
    has one lane's or half of them, the lane has all and writes at once.
    """
    columns, x = _Columns(k, config, plan, p, offsets), p.x
    product = columns.product
    if columns.table is None:

        def part(pixel: OutputPixel, position: Position, group: Val, tap: Val, channel: Val,
                 values: Sequence[Val], there: Val | None) -> None:  # fmt: skip
            dots = _dots(k, x, config, offsets, pixel, position, channel, values, there)
            gradients.store(
                position.index, dots, position.ly, position.lx, position.mask, pixel.there
            )

        columns.run_positions(part)
        return

    dots = [[k.var(f32, 0.0) for _ in range(4)] for _ in range(len(columns.lane_rows))]

    def start() -> None:
        for dot in (dot for row in dots for dot in row):
            dot.set(0.0)

    def tile(rows: TableRows, first_channel: Val, channels: Val | int) -> None:
        k.comment("the dots of gcol with the four corners")
        image = x + first_channel
        for number, row in enumerate(product.rows()):
            _, places = rows.places(number, image)
            here = [k.var(f32, 0.0) for _ in range(4)]
            for part, (column, sums) in enumerate(row.parts):
                there = columns.there(column, channels)
                at = [place + part * PART for place in places]
                for total, place in zip(here, at, strict=True):
                    for value, element in zip(sums, _elements(k, place, there), strict=True):
                        total.set(k.fma(value, element, total))
            for dot, total, inside in zip(dots[number], here, rows.inside(number), strict=True):
                dot += k.select(inside, total, 0.0)

    def end(group: Val, tap: Val) -> None:
        k.comment("sum over the lanes of a pixel; each of them writes a row")
        for dot in (dot for row in dots for dot in row):
            for mask in (1, 2):
                dot += k.shuffle("bfly", dot, mask)
        member = columns.lane_rows.member
        mine = [dot.value() for dot in dots[0]]
        for number in range(1, len(columns.lane_rows)):
            own = member.eq(number)
            mine = [k.select(own, dot, m) for dot, m in zip(dots[number], mine, strict=True)]
        row = columns.lane_rows.first + (member >> 1) * 16 + (member & 1) * 8
        with k.if_(member < len(columns.lane_rows)):
            pixel = columns.pixels.read(row)
            position = offsets.position(pixel, group, tap, pixel.there)
            gradients.store(
                position.index, mine, position.ly, position.lx, position.mask, pixel.there
            )

    columns.run_table(start, tile, end)


def streamed_backward_input(
    k: Kernel,
    config: DeformConvConfig,
    plan: SamplePlan,
    p: Any,
    offsets: Offsets,
) -> None:
    """Adds gcol to the four corners of each sample."""
    columns, grad_x = _Columns(k, config, plan, p, offsets), p.grad_x
    product = columns.product

    def scatter(place: Pointer, weight: Val, values: Sequence[Val], where: Val) -> None:
        scaled = [weight * value for value in values]
        step = 4 if k.target.supports("sm_90") else 1
        for i in range(0, len(scaled), step):
            place.red(i, scaled[i] if step == 1 else scaled[i : i + step], where=where)

    if columns.table is None:

        def part(pixel: OutputPixel, position: Position, group: Val, tap: Val, channel: Val,
                 values: Sequence[Val], there: Val | None) -> None:  # fmt: skip
            places = _position_places(k, grad_x, config, offsets, pixel, position, channel)
            for place, weight, inside in zip(
                places, position.weights(), position.inside(), strict=True
            ):
                weight = k.convert(weight, f32, "rn")
                scatter(place, weight, values, inside if there is None else inside & there)

        columns.run_positions(part)
        return

    def tile(rows: TableRows, first_channel: Val, channels: Val | int) -> None:
        k.comment("add gcol to the four corners")
        image = grad_x + first_channel
        for number, row in enumerate(product.rows()):
            _, places = rows.places(number, image)
            inside, weights = rows.inside(number), rows.weights(number)
            for part, (column, sums) in enumerate(row.parts):
                there = columns.there(column, channels)
                for place, weight, where in zip(places, weights, inside, strict=True):
                    where = where if there is None else where & there
                    scatter(place + part * PART, weight, sums, where)

    columns.run_table(lambda: None, tile, lambda group, tap: None)


def taps_per_block(config: DeformConvConfig, plan: SamplePlan, blocks: int) -> int:
    """Taps of one block: as many as a table has room for, or fewer where the grid would be small.

    Args:
      config: the convolution.
      plan: tiles.
      blocks: of the grid, if each had all taps.
    """
    room = config.taps
    if not plan.narrow:
        room = CornerTable.taps_that_fit(config, plan.m)
    wanted = -(-enough_blocks(4) // max(1, blocks))  # parts that the taps are cut into
    return max(1, min(room, config.taps // wanted))


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
        offsets: Offsets,
    ):
        self.k, self.config, self.plan, self.offsets = k, config, plan, offsets
        self.weight, self.grad_y = p.weight, p.grad_y
        atom = atom_of(config, k.target)
        assert atom is not None
        dtype, threads = config.float_type, plan.threads
        self.pixels = PixelRows(
            k, config, offsets.geometry, p.strip_width, rows=plan.m, threads=threads
        )
        self.first_tap = k.ctaid("z") * p.taps_per_block
        self.taps = k.min(p.taps_per_block, config.taps - self.first_tap)
        self.in_group, self.out_group = config.in_channels_per_group, config.out_channels_per_group

        self.table, self.run_length = None, config.segment
        segments = config.channels_per_offset_group // config.segment
        tiles = -(-config.segment // plan.n)
        if plan.narrow:
            self.run_length, segments, tiles = self.in_group, 1, 1
            per_group = -(-self.in_group // plan.n)
            self.first_channel = k.ctaid("y") // per_group * self.in_group
            self.first_in_run = k.ctaid("y") % per_group * plan.n
        else:
            self.first_channel = k.ctaid("y") * config.channels_per_offset_group
            self.first_in_run = k.var(u32, 0)
            taps = CornerTable.taps_that_fit(config, plan.m)
            self.table = CornerTable(offsets, rows=plan.m, taps=taps)
        self.extents = {"segment": segments, "tile": tiles}
        self.group = self.first_channel // self.in_group  # of the first segment
        slices = {"slice": self.out_group // (ROW_BYTES // dtype.bytes)}
        self.b_cursor = Cursor(k, tap=self.taps, **self.extents, **slices)
        b = StreamedTile(
            k, dtype, rows=plan.n, stages=plan.stages, locate=self._weights,
            pitch=config.out_channels, threads=threads,
        )  # fmt: skip
        self.lane_rows = LaneRows.of(k, plan.m // (threads // 32 * 16))
        k.barrier()  # all pixels of the block are written
        self.a = _GradientRows(self, Cursor(k, **self.extents, **slices))
        self.product = StreamedProduct(k, atom, self.a, b.tile, self.lane_rows)
        self.loop = Loop(k, self.b_cursor, [b], stages=plan.stages)

    def run_table(self, start, tile, end) -> None:
        """Goes through the taps and tiles of the block's offset group.

        Args:
          start: called before the tiles of a tap.
          tile: called with gcol in `product`: (the table's rows, the lane's first channel, channels
            of the tile).
          end: called after the tiles of a tap: (offset group, tap).
        """
        k, plan, table, product = self.k, self.plan, self.table, self.product
        assert table is not None
        table.fill(self.pixels, k.ctaid("y"), self.first_tap, self.taps)
        k.barrier()
        self.loop.start()
        product.start()
        with k.loop(0, self.taps, name="tap") as tap:
            start()
            with (
                k.loop(self.extents["segment"], name="segment") as segment,
                k.loop(self.extents["tile"], name="tile") as number,
            ):
                self._product()
                done = number * plan.n
                channel = self.first_channel + segment * self.run_length + done
                first_row = tap * table.rows + self.lane_rows.first
                rows = TableRows(table, first_row, self.lane_rows.offset)
                tile(rows, channel + self.lane_rows.member * LANE_CHANNELS, self.run_length - done)
            end(k.ctaid("y"), self.first_tap + tap)
        self.loop.end()

    def run_positions(self, part) -> None:
        """Goes through the taps of the block's tile of channels.

        Args:
          part: called with values of gcol: (pixel, position, offset group, tap, first channel,
            values, predicate or None), all of one offset group.
        """
        k, config, product = self.k, self.config, self.product
        width = min(LANE_CHANNELS, config.channels_per_offset_group)
        self.loop.start()
        product.start()
        with k.loop(0, self.taps, name="tap") as number:
            tap = self.first_tap + number
            self._product()
            for row in product.rows():
                pixel = self.pixels.read(row.row)
                for column, sums in row.parts:
                    there = self.there(column, self.in_group - self.first_in_run)
                    if there is not None:
                        pixel = OutputPixel(
                            pixel.index, pixel.image, pixel.y, pixel.x, pixel.there & there
                        )
                    for i in range(0, LANE_CHANNELS, width):
                        channel = self.first_channel + self.first_in_run + column + i
                        group = channel // config.channels_per_offset_group
                        position = self.offsets.position(pixel, group, tap, pixel.there)
                        values = sums[i : i + width]
                        part(pixel, position, group, tap, channel, values, there)
        self.loop.end()

    def segment(self, cursor: Cursor) -> tuple[Val, Val]:
        """First channel, and group, of the segment that a cursor is at."""
        if self.extents["segment"] == 1:
            return self.first_channel, self.group
        first = self.first_channel + cursor["segment"] * self.run_length
        return first, first // self.in_group

    def there(self, column: Val, channels: Val | int) -> Val | None:
        """Whether a lane's columns are channels at all; None where all are."""
        return column < channels if self.run_length % self.plan.n else None

    def _product(self) -> None:
        """Gcol of one tile."""
        self.product.clear()
        with self.k.loop(self.a.cursor.extents["slice"], name="slice", unroll=False):
            self.product.multiply(self.loop.next())
            self.loop.release()

    def _weights(self, row: Val, column: Val):
        k, config, cursor = self.k, self.config, self.b_cursor
        out = cursor["slice"] * (ROW_BYTES // config.float_type.bytes) + column
        segment, group = self.segment(cursor)
        in_run = self.first_in_run + cursor["tile"] * self.plan.n + row
        channel = segment - group * self.in_group + in_run
        at = k.mad_wide(
            (self.first_tap + cursor["tap"]) * self.in_group + channel,
            config.out_channels,
            k.convert(group * self.out_group + out, u64),
        )

        def there(further: int) -> Val | None:
            return in_run + further < self.run_length if self.run_length % self.plan.n else None

        return self.weight + at, there


class _GradientRows:
    """Rows of A that are grad_y as it lies in memory."""

    def __init__(self, columns: _Columns, cursor: Cursor):
        self.k, self.columns, self.cursor = columns.k, columns, cursor
        k, config, rows = self.k, columns.config, columns.lane_rows
        self.places = []
        for row in range(len(rows)):
            index, there = columns.pixels.index(rows.first + rows.offset(row))
            index = k.select(there, index, 0)  # what is made of it nobody looks at
            first = columns.grad_y + k.mul_wide(index, config.out_channels)
            self.places.append(first + rows.member * (16 // config.float_type.bytes))

    def prepare(self) -> None:
        columns, cursor = self.columns, self.cursor
        config = columns.config
        slice_ = cursor["slice"] * (ROW_BYTES // config.float_type.bytes)
        self.channel = columns.segment(cursor)[1] * columns.out_group + slice_

    def begin(self, row: int) -> tuple[Val, ...]:
        place = self.places[row] + self.channel
        return load_words(place, 16 // place.dtype.bytes)

    def finish(self, loaded: tuple[Val, ...]) -> Sequence[Val]:
        if loaded[0].dtype is f32:
            return [self.k.convert(value, tf32, "rna") for value in loaded]
        assert loaded[0].dtype is DTYPES[f"{self.columns.config.float_type}x2"]
        return loaded


def _elements(k: Kernel, place: Pointer, where: Val | None) -> list[Val]:
    """A lane's channels at a place, in f32."""
    count = 16 // place.dtype.bytes
    return [
        value
        for i in range(0, LANE_CHANNELS, count)
        for value in widen(k, load_words(place + i, count, where=where))
    ]


def _position_places(
    k: Kernel,
    image: Pointer,
    config: DeformConvConfig,
    offsets: Offsets,
    pixel: OutputPixel,
    position: Position,
    channel: Val,
) -> list[Pointer]:
    """Where the four corners of a position lie, at a channel; only those inside exist."""
    sizes = offsets.geometry
    corner = pixel_index(pixel.image, position.y, position.x, sizes.in_h, sizes.in_w)
    return corner_index_places(image, corner, channel, config.in_channels, sizes.in_w)


def _dots(k, x, config, offsets, pixel, position, channel, values, there) -> list[Val]:
    """The dots of values of gcol with the four corners of a position."""
    dots = []
    places = _position_places(k, x, config, offsets, pixel, position, channel)
    count = min(16 // x.dtype.bytes, len(values))
    for place, inside in zip(places, position.inside(), strict=True):
        where = inside if there is None else inside & there
        elements = [
            value
            for i in range(0, len(values), count)
            for value in widen(k, load_words(place + i, count, where=where))
        ]
        total = values[0] * elements[0]
        for value, element in zip(values[1:], elements[1:], strict=True):
            total = k.fma(value, element, total)
        dots.append(total)
    return dots
