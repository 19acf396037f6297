"""Forward for everything but tiny groups: sampled images in fragments, or in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.corners import CornerTable, PixelRange, PixelRows, Table
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.samples.rows import PositionGather, TableGather
from ptx.kernels.deform_conv.samples.tiles import GatherTile
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all, multiply_in_parts
from ptx.tile.math import TileMath
from ptx.tile.plan import atom_of, make_product
from ptx.tile.stream import LaneRows, StreamedProduct, StreamedTile
from ptx.tile.vectors import both, load_words, vector_width, widen

__all__ = ["tiled_forward"]


def tiled_forward(k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any) -> None:
    """Writes the kernel: a block has `plan.m` pixels (grid x) and `plan.n` outputs (grid y)."""
    block = _Block(k, config, plan, p)
    first_out, out_group = block.first_out, config.out_channels_per_group
    math = _streamed_product(block) if plan.streamed else _shared_product(block)

    k.comment("bias, and the output")
    first_channel = block.group * out_group + first_out

    def locate(row: Val) -> LocateColumn:
        pixel, exists = block.pixels.index(row)

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            channel = k.convert(first_channel + column + further, u64)
            address = p.y + k.mad_wide(pixel, config.out_channels, channel)
            return address, exists & (first_out + column + further < out_group)

        return element

    def with_bias(sums: Sequence[Val], column: Val, address: Pointer, exists: Val) -> Sequence[Val]:
        words = load_words(p.bias + (first_channel + column), len(sums), where=exists)
        return [total + b for total, b in zip(sums, widen(k, words), strict=True)]

    finish = with_bias if config.use_bias else None
    store_rows(math, locate, dtype=config.float_type, extent=out_group, finish=finish)


def _streamed_product(block: _Block) -> StreamedProduct:
    """Writes the main loop in which sampled images go from global memory straight into fragments.

    Where an offset group has whole slices of 64 bytes of channels, corners are calculated once for
    each pixel and tap and kept in shared memory. Narrower ones would need many such tables: there
    every lane calculates the positions of its own channels.
    """
    k, config, plan, x = block.k, block.config, block.plan, block.p.x
    atom = atom_of(config, k.target)
    assert atom is not None
    dtype, threads = config.float_type, plan.threads
    a_cursor, b_cursor = block.cursor(), block.cursor()

    def weights(row: Val, column: Val) -> tuple[Pointer, Callable[[int], Val | None]]:
        address = block.weight(b_cursor, row, column)
        return address, lambda further: block.weight_ok(b_cursor, row + further)

    b = StreamedTile(
        k, dtype, rows=plan.n, stages=plan.stages, locate=weights,
        pitch=config.taps * config.in_channels_per_group, threads=threads,
    )  # fmt: skip
    rows = LaneRows.of(k, plan.m // (threads // 32 * 16))
    first = rows.member * (16 // dtype.bytes)
    channel = k.var(u32, block.image_channel(first), "lane_channel")
    if isinstance(block.table, CornerTable):
        a = TableGather(x, a_cursor, rows, channel, block.table)
    else:
        assert isinstance(block.pixels, PixelRows)
        a = PositionGather(x, a_cursor, rows, channel, block.offsets, block.pixels)
    product = StreamedProduct(k, atom, a, b.tile, rows)

    def multiply() -> None:
        channel.set(block.image_channel(first))
        multiply_all(k, b_cursor, [b], product, stages=plan.stages)

    if block.table is None:
        k.barrier()  # all pixels of the block are written
        multiply()
    else:
        block.each_table(multiply)
    return product


def _shared_product(block: _Block) -> TileMath:
    """Writes the main loop in which all warps share the sampled images, through shared memory."""
    k, config, plan, x = block.k, block.config, block.plan, block.p.x
    dtype, threads = config.float_type, plan.threads
    table, cursor = block.table, block.cursor()
    assert table is not None
    a, b, math = make_product(k, config, plan, k_axis=1, dynamic=plan.n > 128 or plan.parts > 1)

    def weights(row: Val, column: Val) -> tuple[Pointer, Val | None]:
        channel_ok = block.channel_ok(cursor, column)
        address = block.weight(cursor, row, column)
        return address, both(block.weight_ok(cursor, row), channel_ok)

    def sampled(column: Val) -> tuple[Val, Val, Val | None]:
        channel = block.image_channel(cursor["slice"] * plan.k + column)
        return cursor["tap"] * plan.m, channel, block.channel_ok(cursor, column)

    width = vector_width(dtype, config.segment, plan.k)
    gathered = GatherTile(
        *(k, a, x, table, sampled),
        width=width, threads=threads, parts=plan.parts, in_flight=plan.in_flight,
    )  # fmt: skip
    copied = DenseTile(k, b, weights, width=width, threads=threads)
    block.each_table(lambda: multiply_in_parts(k, cursor, gathered, [copied], math))
    return math


class _Block:
    """A block along K: the channels of an extent, for each of some taps, and again.

    Attributes:
      group, first_out: the group, and the first of its outputs, that the block has.
      extent: see `SamplePlan.channel_extent`.
      table: the table of the corners of an extent's channels; None where it has several offset
        groups.
      pixels: the pixels of the rows.
      channel, first_tap: the first of the group's channels, and of the taps, of the extent and
        table at hand.
    """

    def __init__(self, k: Kernel, config: DeformConvConfig, plan: SamplePlan, p: Any):
        self.k, self.config, self.plan, self.p = k, config, plan, p
        self.offsets = Offsets.of(k, config, p)
        tiles = -(-config.out_channels_per_group // plan.n)
        self.group, self.first_out = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
        k.name(group=self.group, first_out=self.first_out)
        shape, geometry = {"rows": plan.m, "threads": plan.threads}, self.offsets.geometry
        self.pixels = (
            PixelRows(k, config, geometry, p.strip_width, **shape)
            if plan.has_strips
            else PixelRange(geometry, k.ctaid("x") * plan.m, **shape)
        )
        self.table: Table | None = None
        self.taps, self.extent = config.taps, plan.channel_extent(config)
        if not plan.narrow:
            self.taps = plan.table_taps(config)
            self.table = plan.table(self.offsets, rows=plan.m, taps=self.taps)
        self.channel: Var = k.var(u32, 0, "channel")
        self.first_tap: Var = k.var(u32, 0, "first_tap")

    def cursor(self) -> Cursor:
        """Taps are inside: their corners are in L1."""
        return Cursor(self.k, slice=-(-self.extent // self.plan.k), tap=self.taps)

    def image_channel(self, channel: Val) -> Val:
        """A channel of the extent, in all channels."""
        return self.group * self.config.in_channels_per_group + self.channel + channel

    def weight(self, cursor: Cursor, row: Val, column: Val) -> Pointer:
        """The cursor's weight of an output channel of the tile and a channel of the slice."""
        k, config = self.k, self.config
        in_group = config.in_channels_per_group
        tap = self.first_tap + cursor["tap"]
        at = tap * in_group + self.channel + cursor["slice"] * self.plan.k + column
        out = self.group * config.out_channels_per_group + self.first_out + row
        return self.p.weight + k.mad_wide(out, config.taps * in_group, k.convert(at, u64))

    def weight_ok(self, cursor: Cursor, row: Val) -> Val | None:
        """Whether there is such an output channel and tap; None where all are."""
        out_ok = tap_ok = None
        if self.config.out_channels_per_group % self.plan.n:
            out_ok = self.first_out + row < self.config.out_channels_per_group
        if self.config.taps % self.taps:
            tap_ok = self.first_tap + cursor["tap"] < self.config.taps
        return both(out_ok, tap_ok)

    def channel_ok(self, cursor: Cursor, column: Val) -> Val | None:
        """Whether a column of the slice is a channel of the extent; None where all are."""
        if self.extent % self.plan.k == 0:
            return None
        return cursor["slice"] * self.plan.k + column < self.extent

    def each_table(self, multiply: Callable[[], None]) -> None:
        """Fills the table for each extent and some taps, and multiplies."""
        k, config = self.k, self.config
        assert self.table is not None
        with k.loop(0, config.in_channels_per_group, self.extent, name="segment") as segment:
            self.channel.set(segment)
            with k.loop(0, config.taps, self.taps, name="first_tap") as tap:
                self.first_tap.set(tap)
                first = self.group * config.in_channels_per_group + segment
                self.table.fill(self.pixels, first // config.channels_per_offset_group, tap)
                k.barrier()
                multiply()
