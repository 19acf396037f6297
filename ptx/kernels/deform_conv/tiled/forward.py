"""The main loops of forward: images sampled straight into fragments, or into shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import u32, u64
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.corners import CornerTable, PixelRows, PixelRun, Table
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.samples.rows import PositionGather, TableGather
from ptx.kernels.deform_conv.samples.tiles import GatherTile, multiply_gathered
from ptx.tile.dense import DenseTile
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.math import TileMath
from ptx.tile.plan import atom_of, make_product
from ptx.tile.stream import LaneRows, StreamedProduct, StreamedTile
from ptx.tile.vectors import both, vector_width

__all__ = ["ForwardBlock", "streamed_forward", "tiled_forward"]

PixelOf = Callable[[Val], tuple[Val, Val]]  # row of the sums -> output pixel, and whether it exists


def streamed_forward(block: ForwardBlock) -> tuple[StreamedProduct, PixelOf]:
    """Writes the main loop in which sampled images go from global memory straight into fragments.

    Where an offset group has whole slices of 64 bytes of channels, corners are calculated once for
    each pixel and tap and kept in shared memory. Narrower ones would need many such tables: there
    every lane calculates the positions of its own channels.

    Args:
      block: of a kernel for sm_80 or newer; see `forward_plan` for the configurations.

    Returns:
      The sums, and a function of a row of theirs -> index of its output pixel, and the predicate
      that there is one.
    """
    k, config, plan, x = block.k, block.config, block.plan, block.p.x
    atom = atom_of(config, k.target)
    assert atom is not None
    dtype, threads = config.float_type, plan.threads
    a_cursor, b_cursor = block.cursor(), block.cursor()
    address = block.weights(b_cursor)

    def weights(row: Val, column: Val) -> tuple[Pointer, Callable[[int], Val | None]]:
        return address(row, column), lambda further: block.weight_ok(b_cursor, row + further)

    b = StreamedTile(
        k, dtype, rows=plan.n, stages=plan.stages, locate=weights,
        pitch=config.taps * config.in_channels_per_group, threads=threads,
    )  # fmt: skip
    rows = LaneRows.of(k, plan.m // (threads // 32 * 16))
    first = rows.member * (16 // dtype.bytes)
    channel = k.var(u32, block.image_channel(first), "lane_channel")
    if isinstance(block.table, CornerTable):
        a = TableGather(block.table, x, a_cursor, rows=rows, channel=channel)
    else:
        assert isinstance(block.pixels, PixelRows)
        a = PositionGather(block.offsets, block.pixels, x, a_cursor, rows=rows, channel=channel)
    product = StreamedProduct(k, atom, a, b.tile, rows)

    def multiply() -> None:
        channel.set(block.image_channel(first))
        multiply_all(k, b_cursor, [b], product, stages=plan.stages)

    if block.table is None:
        k.barrier()  # all pixels of the block are written
        multiply()
    else:
        block.each_table(multiply)
    return product, block.pixels.index


def tiled_forward(block: ForwardBlock) -> tuple[TileMath, PixelOf]:
    """Writes the main loop in which all warps share the sampled images, through shared memory.

    See `streamed_forward`.
    """
    k, config, plan, x = block.k, block.config, block.plan, block.p.x
    dtype, threads = config.float_type, plan.threads
    table, cursor = block.table, block.cursor()
    assert table is not None
    a, b, math = make_product(k, config, plan, k_axis=1, dynamic=plan.n > 128 or plan.parts > 1)
    address = block.weights(cursor)

    def weights(row: Val, column: Val) -> tuple[Pointer, Val | None]:
        channel_ok = block.channel_ok(cursor, column)
        return address(row, column), both(block.weight_ok(cursor, row), channel_ok)

    def sampled(column: Val) -> tuple[Val, Val, Val | None]:
        channel = block.image_channel(cursor["slice"] * plan.k + column)
        return cursor["tap"] * plan.m, channel, block.channel_ok(cursor, column)

    width = vector_width(dtype, config.segment, plan.k)
    gathered = GatherTile(
        *(k, a, x, table, sampled),
        width=width, threads=threads, parts=plan.parts, in_flight=plan.in_flight,
    )  # fmt: skip
    copied = DenseTile(k, b, weights, width=width, threads=threads)
    block.each_table(lambda: multiply_gathered(k, cursor, gathered, copied, math))
    return math, block.pixels.index


@dataclasses.dataclass(eq=False)
class ForwardBlock:
    """What a block does along K: the channels of a run, for each of some taps, and again.

    Attributes:
      table: of the corners of a run's channels, all in one offset group; None where a run is a
        whole group.
      pixels: of the rows.
      channel, first_tap: of the run and the taps that it is at; the channel is in the group.
    """

    k: Kernel
    config: DeformConvConfig
    plan: SamplePlan
    p: Any
    offsets: Offsets
    group: Val
    first_out: Val

    def __post_init__(self):
        k, config, plan = self.k, self.config, self.plan
        shape, geometry = {"rows": plan.m, "threads": plan.threads}, self.offsets.geometry
        self.pixels = (
            PixelRows(k, config, geometry, self.p.strip_width, **shape)
            if plan.has_strips
            else PixelRun(geometry, k.ctaid("x") * plan.m, **shape)
        )
        self.table: Table | None = None
        self.taps, self.run = config.taps, config.in_channels_per_group
        if not plan.narrow:
            self.taps = plan.table_taps(config)
            self.table = plan.table(self.offsets, rows=plan.m, taps=self.taps)
            self.run = config.segment
        self.channel: Var = k.var(u32, 0, "channel")
        self.first_tap: Var = k.var(u32, 0, "first_tap")

    def cursor(self) -> Cursor:
        """Taps are inside: their corners are in L1."""
        return Cursor(self.k, slice=-(-self.run // self.plan.k), tap=self.taps)

    def image_channel(self, channel: Val) -> Val:
        """A channel of the run, in all channels."""
        return self.group * self.config.in_channels_per_group + self.channel + channel

    def weights(self, cursor: Cursor) -> Callable[[Val, Val], Pointer]:
        """(output channel of the tile, channel of the slice) -> where the cursor's weight is."""
        k, config = self.k, self.config
        in_group = config.in_channels_per_group

        def address(row: Val, column: Val) -> Pointer:
            tap = self.first_tap + cursor["tap"]
            at = tap * in_group + self.channel + cursor["slice"] * self.plan.k + column
            out = self.group * config.out_channels_per_group + self.first_out + row
            return self.p.weight + k.mad_wide(out, config.taps * in_group, k.convert(at, u64))

        return address

    def weight_ok(self, cursor: Cursor, row: Val) -> Val | None:
        """Whether there is such an output channel and tap; None where all are."""
        out_ok = tap_ok = None
        if self.config.out_channels_per_group % self.plan.n:
            out_ok = self.first_out + row < self.config.out_channels_per_group
        if self.config.taps % self.taps:
            tap_ok = self.first_tap + cursor["tap"] < self.config.taps
        return both(out_ok, tap_ok)

    def channel_ok(self, cursor: Cursor, column: Val) -> Val | None:
        """Whether a column of the slice is a channel of the run; None where all are."""
        if self.run % self.plan.k == 0:
            return None
        return cursor["slice"] * self.plan.k + column < self.run

    def each_table(self, multiply: Callable[[], None]) -> None:
        """Fills the table for each run and some taps, and multiplies."""
        k, config = self.k, self.config
        assert self.table is not None
        with k.loop(0, config.in_channels_per_group, self.run, name="segment") as segment:
            self.channel.set(segment)
            with k.loop(0, config.taps, self.taps, name="first_tap") as tap:
                self.first_tap.set(tap)
                first = self.group * config.in_channels_per_group + segment
                self.table.fill(self.pixels, first // config.channels_per_offset_group, tap)
                k.barrier()
                multiply()
