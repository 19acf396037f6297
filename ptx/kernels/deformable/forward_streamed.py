"""The fast forward kernel: sampled images go from global memory straight into fragments."""

from __future__ import annotations

from collections.abc import Callable

from ptx.builder import Kernel, Pointer, Val
from ptx.dtypes import u32, u64
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.kernels.deformable.corners import CornerTable, PixelRows
from ptx.kernels.deformable.gather_rows import PositionGather, TableGather
from ptx.kernels.deformable.plan import TilePlan, atom_of
from ptx.kernels.deformable.sampling import Offsets
from ptx.tile.pipeline import Cursor
from ptx.tile.stream import ROW_BYTES, StreamedProduct, StreamedTile

__all__ = ["streamed_forward"]

TABLE_BYTES = 24 * 1024  # of corners: nine taps of 128 pixels


def streamed_forward(
    k: Kernel,
    config: DeformableConvConfig,
    plan: TilePlan,
    x: Pointer,
    weight: Pointer,
    offsets: Offsets,
    *,
    group: Val,
    first_out: Val,
) -> tuple[StreamedProduct, Callable[[Val], tuple[Val, Val]]]:
    """Writes the main loop.

    Where an offset group has whole slices of 64 bytes of channels, corners are calculated once for
    each pixel and tap and kept in shared memory. Narrower ones would need many such tables: there
    every lane calculates the positions of its own channels.

    Args:
      k: the kernel, for sm_80 or newer.
      config: the convolution; see `forward_plan` for those that this is for.
      plan: tiles.
      x: images.
      weight: [Co, T, C/G].
      offsets: where positions come from.
      group: of the block.
      first_out: first output channel of the block, in the group.

    Returns:
      The sums, and a function of a row of theirs -> index of its output pixel, and the predicate
      that there is one.
    """
    atom = atom_of(config, k.target)
    assert atom is not None
    dtype, threads = config.float_type, plan.threads
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    pixels = PixelRows(k, offsets.geometry, rows=plan.m, threads=threads)
    per_slice = ROW_BYTES // dtype.bytes
    table = None
    taps, run = config.taps, in_group
    if not plan.narrow:
        taps = CornerTable.taps_that_fit(config, plan.m, TABLE_BYTES)
        table, run = CornerTable(offsets, rows=plan.m, taps=taps), config.segment

    extents = {"slice": run // per_slice, "tap": taps}  # taps inside: their corners are in L1
    a_cursor, b_cursor = Cursor(k, **extents), Cursor(k, **extents)
    channel, first_tap = k.var(u32, 0, "channel"), k.var(u32, 0, "first_tap")  # of a run

    def weights(row: Val, column: Val) -> tuple[Pointer, Callable[[int], Val | None]]:
        tap, out = first_tap + b_cursor["tap"], first_out + row
        place = tap * in_group + channel + b_cursor["slice"] * per_slice + column
        at = k.mad_wide(group * out_group + out, config.taps * in_group, k.convert(place, u64))

        def there(further: int) -> Val | None:
            where = None
            if out_group % plan.n:
                where = out + further < out_group
            if config.taps % taps:
                where = tap < config.taps if where is None else where & (tap < config.taps)
            return where

        return weight + at, there

    b = StreamedTile(
        k, dtype, rows=plan.n, stages=plan.stages, cursor=b_cursor, locate=weights,
        pitch=config.taps * in_group, threads=threads,
    )  # fmt: skip
    product = StreamedProduct(k, atom, b, plan.m // (threads // 32 * 16))
    in_images = group * in_group + channel + product.member * (16 // dtype.bytes)
    lane = k.var(u32, in_images, "lane_channel")
    places = {"first_row": product.first_row, "row": product.row, "channel": lane}
    if table is None:
        k.barrier()  # the pixels are there
        product.multiply_all(PositionGather(offsets, pixels, x, a_cursor, **places))
        return product, pixels.index

    gather = TableGather(table, x, a_cursor, **places)
    with k.loop(0, in_group, run, name="segment") as segment:
        channel.set(segment)
        lane.set(group * in_group + segment + product.member * (16 // dtype.bytes))
        with k.loop(0, config.taps, taps, name="first_tap") as tap:
            first_tap.set(tap)
            offset_group = (group * in_group + segment) // config.channels_per_offset_group
            table.fill(pixels, offset_group, tap)
            k.barrier()
            product.multiply_all(gather)
    return product, pixels.index
