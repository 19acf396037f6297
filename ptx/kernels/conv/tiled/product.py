"""Products of windows of images with weights, forward and backward to input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import f32, s64, tf32
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.tiled.windows import WindowRows
from ptx.tile.dense import DenseTile
from ptx.tile.epilogue import Finish, LocateColumn, store_rows
from ptx.tile.loop import Cursor, multiply_all
from ptx.tile.math import TileMath
from ptx.tile.plan import TilePlan, atom_of, make_product
from ptx.tile.stream import LaneRows, StreamedProduct, StreamedTile
from ptx.tile.vectors import load_words, vector_width

__all__ = ["GroupWeights", "WindowProduct"]


@dataclasses.dataclass(frozen=True, eq=False)
class GroupWeights:
    """How the weights of one group lie in memory: those of neighbouring channels along K together.

    Attributes:
      first: the first weight of the group and of the block's first column.
      columns: the number of columns that the group has from the block's first one on.
      column: elements from a column of the product to the next.
      tap: elements from a tap to the next.
      all_columns: whether every block has all its columns.
    """

    first: Pointer
    columns: Val
    column: int
    tap: int
    all_columns: bool


@dataclasses.dataclass(eq=False)
class WindowProduct:
    """For each window: the sum over taps and channels of image times weight.

    Attributes:
      k: the kernel.
      config: the convolution.
      plan: the tiles.
      rows: the block's windows.
      image: the group's first channel of the first pixel of all images.
      image_channels: the channels of all groups: elements from a pixel to the next.
      channels: the channels of the group.
      weights: where the weights lie.
    """

    k: Kernel
    config: ConvConfig
    plan: TilePlan
    rows: WindowRows
    image: Pointer
    image_channels: int
    channels: int
    weights: GroupWeights

    def run(self) -> TileMath | StreamedProduct:
        """Writes the main loop, and returns the sums."""
        return self._streamed() if self.plan.streamed else self._tiled()

    def store(
        self,
        math: TileMath | StreamedProduct,
        result: Pointer,
        channels: int,
        finish: Finish | None = None,
    ) -> None:
        """Writes the sums.

        Args:
          math: the sums.
          result: the block's first column of the first pixel of all results.
          channels: elements from a pixel to the next.
          finish: see `store_rows`.
        """
        k, weights = self.k, self.weights

        def locate(row: Val) -> LocateColumn:
            pixel, exists = self.rows.result(row)

            def element(column: Val, further: int) -> tuple[Pointer, Val]:
                column = column + further
                address = result + k.mul_wide(pixel, channels) + column
                if weights.all_columns:
                    return address, exists
                return address, exists & (column < weights.columns)

            return element

        group = channels // self.config.groups
        store_rows(math, locate, dtype=result.dtype, extent=group, finish=finish)

    def _tap(self, tap_y: Val, tap_x: Val) -> Val:
        """The index of a tap in the convolution's kernel."""
        return self.rows.y.kernel_tap(tap_y) * self.config.kernel_w + self.rows.x.kernel_tap(tap_x)

    def _weight(self, tap: Val, channel: Val, column: Val) -> Pointer:
        """The address of a weight."""
        k, weights = self.k, self.weights
        return weights.first + k.mul_wide(column, weights.column) + (tap * weights.tap + channel)

    def _streamed(self) -> StreamedProduct:
        k, plan, weights = self.k, self.plan, self.weights
        atom = atom_of(self.config, k.target)
        assert atom is not None
        extents = {
            "slice": self.channels // plan.k,
            "y": self.rows.y.taps,
            "x": self.rows.x.taps,
        }  # taps inside: what they share is in L1
        a_cursor, b_cursor = Cursor(k, **extents), Cursor(k, **extents)

        def locate(row: Val, column: Val) -> tuple[Pointer, Callable[[int], Val | None]]:
            tap = self._tap(b_cursor["y"], b_cursor["x"])
            address = self._weight(tap, b_cursor["slice"] * plan.k + column, row)

            def column_ok(further: int) -> Val | None:
                return None if weights.all_columns else row + further < weights.columns

            return address, column_ok

        b = StreamedTile(
            k, self.config.float_type, rows=plan.n, stages=plan.stages, locate=locate,
            pitch=weights.column, threads=plan.threads,
        )  # fmt: skip
        lane_rows = LaneRows.of(k, plan.m // (plan.threads // 32 * 16))
        a = _WindowGather(self, lane_rows, a_cursor)
        product = StreamedProduct(k, atom, a, b.tile, lane_rows)
        multiply_all(k, b_cursor, [b], product, stages=plan.stages)
        return product

    def _tiled(self) -> TileMath:
        k, plan, config = self.k, self.plan, self.config
        dtype = config.float_type
        a, b, math = make_product(k, config, plan, k_axis=1)
        y, x = self.rows.y, self.rows.x
        # Few channels would leave most of a chunk empty: then a chunk has several taps.
        known = isinstance(y.taps, int) and isinstance(x.taps, int)
        joined = known and self.channels % plan.k != 0
        depth = y.most_taps * x.most_taps * self.channels
        if joined:
            cursor = Cursor(k, chunk=-(-depth // plan.k))
        else:
            cursor = Cursor(k, y=y.taps, x=x.taps, slice=-(-self.channels // plan.k))

        def at(along: Val) -> tuple[Val, Val, Val, Val]:
            """Splits an index along K: (tap down, tap across, channel, whether these exist)."""
            if not joined:
                channel = cursor["slice"] * plan.k + along
                return cursor["y"], cursor["x"], channel, channel < self.channels
            index = cursor["chunk"] * plan.k + along
            tap, channel = index // self.channels, index % self.channels
            exists = index < depth
            return tap // x.most_taps, tap % x.most_taps, channel, exists

        def windows(row: Val, column: Val) -> tuple[Pointer, Val]:
            tap_y, tap_x, channel, channel_ok = at(column)
            pixel = self.rows.start(row) + self.rows.shift(tap_y, tap_x)
            address = self.image + k.mul_wide(pixel, self.image_channels) + channel
            inside = self.rows.inside(self.rows.bounds_of(row), tap_y, tap_x)
            return address, channel_ok & inside

        def weights(row: Val, column: Val) -> tuple[Pointer, Val]:
            tap_y, tap_x, channel, weight_ok = at(column)
            address = self._weight(self._tap(tap_y, tap_x), channel, row)
            if not self.weights.all_columns:
                weight_ok = weight_ok & (row < self.weights.columns)
            return address, weight_ok

        image_width = vector_width(dtype, self.channels, self.image_channels, plan.k)
        weight_width = vector_width(dtype, self.channels, self.weights.column, plan.k)
        producers = [
            DenseTile(k, a, windows, width=image_width, threads=plan.threads),
            DenseTile(k, b, weights, width=weight_width, threads=plan.threads),
        ]
        multiply_all(k, cursor, producers, math)
        return math


class _WindowGather:
    """Loads rows of A: each lane 16 bytes of the pixel that a tap reads."""

    def __init__(self, product: WindowProduct, lane_rows: LaneRows, cursor: Cursor):
        self.k, self.product, self.cursor = product.k, product, cursor
        k, rows = product.k, product.rows
        self.lane = 16 // product.config.float_type.bytes
        self.addresses, self.bounds = [], []
        for index in range(len(lane_rows)):
            row = lane_rows.first + lane_rows.offset(index)
            start = k.mul_wide(rows.start(row), product.image_channels)
            self.addresses.append(product.image + start + lane_rows.member * self.lane)
            self.bounds.append(rows.bounds_of(row))

    def prepare(self) -> None:
        k, cursor, product = self.k, self.cursor, self.product
        shift = product.rows.shift(cursor["y"], cursor["x"])
        slice_ = k.convert(cursor["slice"] * product.plan.k, s64)
        self.shift = k.mad_wide(shift, product.image_channels, slice_)

    def begin(self, row: int) -> tuple[Val, ...]:
        cursor = self.cursor
        inside = self.product.rows.inside(self.bounds[row], cursor["y"], cursor["x"])
        return load_words(self.addresses[row] + self.shift, self.lane, where=inside)

    def finish(self, loaded: Any) -> Sequence[Val]:
        if loaded[0].dtype is f32:
            return [self.k.convert(value, tf32, "rna") for value in loaded]
        return loaded
