"""Rows of sampled images as fragments in registers: from a table of corners, or from positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.dtypes import DTYPES, f32, s32, tf32, u8, u32
from ptx.kernels.deformable.config import DeformableConvConfig
from ptx.kernels.deformable.gather import corner_index_places
from ptx.kernels.deformable.sampling import Geometry, Offsets, OutputPixel
from ptx.tile.pipeline import Cursor
from ptx.tile.vectors import load_words, widen

__all__ = ["CornerTable", "PixelRows", "PositionGather", "TableGather", "TableRows"]


class PixelRows:
    """The output pixels of a block's rows, in shared memory.

    The outputs of all images lie below each other and are cut into strips of `strip_width` columns;
    a block has neighbouring pixels of one strip, row by row. So its samples lie close together, and
    no block is cut by an edge.

    Args:
      k: the kernel, whose grid has `blocks(...)` blocks in x.
      geometry: sizes.
      rows: pixels of a block.
      threads: of the block.
    """

    def __init__(self, k: Kernel, geometry: Geometry, *, rows: int, threads: int):
        self.k, self.geometry, self.count, self.threads = k, geometry, rows, threads
        assert threads % rows == 0
        strip_width = k.param("strip_width", u32)
        self.places = k.shared("pixels", u32, 4 * rows)  # index, image, y, x of each
        lines = geometry.images * geometry.out_h
        blocks = (lines * strip_width + (rows - 1)) // rows  # of a strip
        first_column = k.ctaid("x") // blocks * strip_width
        width = k.min(strip_width, geometry.out_w - first_column)
        number = k.ctaid("x") % blocks * rows + k.tid() % rows
        line, x = number // width, first_column + number % width
        index, image, y = line * geometry.out_w + x, line // geometry.out_h, line % geometry.out_h
        there = line < lines
        index = k.select(there, index, 0xFFFFFFFF)
        self.own = OutputPixel(index, image, y, x, there)
        with k.if_(k.tid() < rows):
            self.places.store(k.tid() * 4, (index, image, y, x))

    @staticmethod
    def strip_width(out_w: int) -> int:
        """Columns of a strip: near 16, and so that strips are nearly alike."""
        return -(-out_w // max(1, round(out_w / 16)))

    @staticmethod
    def blocks(images: int, out_h: int, out_w: int, rows: int) -> int:
        """Blocks that cover all outputs."""
        if not out_w:
            return 0
        width = PixelRows.strip_width(out_w)
        return -(-images * out_h * width // rows) * -(-out_w // width)

    def read(self, row: Val) -> OutputPixel:
        """The pixel of a row; a barrier has passed since the beginning."""
        index, image, y, x = self.places.load(row * 4, 4)
        return OutputPixel(index, image, y, x, index.ne(0xFFFFFFFF))

    def index(self, row: Val) -> tuple[Val, Val]:
        """Index of a row's pixel, and the predicate that it is there."""
        index = self.places.load(row * 4)
        return index, index.ne(0xFFFFFFFF)


class CornerTable:
    """For each row and tap the four corners' weights, with the mask, and where they lie.

    What is outside of the image has weight 0, or NaN where the position is, and the address of a
    corner inside, so that loads need no predicate.

    Args:
      offsets: where positions come from.
      pixels: of the rows.
      taps: that are kept at a time.
    """

    def __init__(self, offsets: Offsets, pixels: PixelRows, *, taps: int):
        self.k, self.offsets, self.pixels, self.taps = offsets.k, offsets, pixels, taps
        count = pixels.count * taps
        self.weights = self.k.shared("corner_weights", f32, 4 * count)
        # Index of the first corner's pixel, times 4; +1 if the next is a column on, +2 if a row.
        self.corners = self.k.shared("corner_pixels", u32, count)
        self.insides = self.k.shared("corner_insides", u8, count)  # a bit for each
        # Elements from a pixel of the images to the one below it, and to itself.
        self.below = self.k.mul_wide(offsets.geometry.in_w, offsets.config.in_channels)
        self.no_rows = self.k.mul_wide(offsets.geometry.in_w, 0)

    @staticmethod
    def taps_that_fit(config: DeformableConvConfig, rows: int, bytes_: int) -> int:
        """How many taps of `rows` pixels fit so many bytes: all, or at least one."""
        return max(1, min(config.taps, bytes_ // (rows * 21)))

    def fill(self, group: Val | int, first_tap: Val, taps: Val | None = None) -> None:
        """Calculates the corners of some taps, for an offset group.

        A barrier has to follow before they are read, and to precede where they are overwritten.

        Args:
          group: offset group.
          first_tap: the first one.
          taps: how many; None for as many as the table has room for.
        """
        k, rows, sizes = self.k, self.pixels.count, self.offsets.geometry
        step = self.pixels.threads // rows
        k.comment("corners: a thread for each pixel")
        pixel = self.pixels.own
        count = self.taps if taps is None else taps
        with k.loop(k.tid() // rows, count, step, name="corner") as number:
            tap = first_tap + number
            there = pixel.there & (tap < self.offsets.config.taps)
            position = self.offsets.position(pixel, group, tap, there)
            y, x = self._clamped(position.y, sizes.in_h), self._clamped(position.x, sizes.in_w)
            corner = (pixel.image * sizes.in_h + y) * sizes.in_w + x
            right = position.inside_x[0] & position.inside_x[1]
            below = position.inside_y[0] & position.inside_y[1]
            corner = corner * 4 + k.select(right, 1, 0, u32) + k.select(below, 2, 0, u32)
            bits = k.var(u32, 0)
            weights = []
            for i, (inside, weight) in enumerate(
                zip(position.inside(), position.weights(), strict=True)
            ):
                inside = inside & there
                bits.set(bits | k.select(inside, 1 << i, 0, u32))
                weight = weight if weight.dtype is f32 else k.convert(weight, f32, "rn")
                weights.append(k.select(inside, weight, weight * 0.0))  # NaN stays
            at = number * rows + k.tid() % rows
            self.weights.store(at * 4, weights)
            self.corners.store(at, k.select(there, corner, 0))
            self.insides.store(at, bits)

    def _clamped(self, place: Val, size: Val) -> Val:
        """The nearest row, or column, of the image."""
        k = self.k
        return k.bitcast(k.max(k.min(place, k.bitcast(size, s32) - 1), 0), u32)


class TableRows:
    """A lane's rows of a table, at one tap.

    Args:
      table: filled.
      first_row: of the lane.
      tap: among those in the table.
      row: rows from the first one to the lane's row of a number.
    """

    def __init__(self, table: CornerTable, first_row: Val, tap: Val, row: Callable[[int], int]):
        self.k, self.table, self.row = table.k, table, row
        at = tap * table.pixels.count + first_row
        self.weight_place = table.weights + at * 4
        self.corners, self.inside_place = table.corners + at, table.insides + at

    def weights(self, row: int) -> Sequence[Val]:
        """Of the four corners, with the mask: f32."""
        return self.weight_place.load(4 * self.row(row), 4)

    def inside(self, row: int) -> list[Val]:
        """Predicates: which corners are inside."""
        bits = self.inside_place.load(self.row(row))
        return [(bits & (1 << i)).ne(0) for i in range(4)]

    def places(self, row: int, image: Pointer) -> tuple[Val, list[Pointer]]:
        """Where the four corners lie, or for what is outside some pixel inside.

        Args:
          row: number of the row.
          image: the channel of interest of the first pixel of all images [N, H, W, C].

        Returns:
          Which corners are inside, for `zeroed`, and the places.
        """
        k, channels = self.k, self.table.offsets.config.in_channels
        corner = self.corners.load(self.row(row))
        first = image + k.mul_wide(corner >> 2, channels)
        right = k.select((corner & 1).ne(0), channels, 0, u32)
        down = k.select((corner & 2).ne(0), self.table.below, self.table.no_rows)
        below = first + down
        return corner & 3, [first, first + right, below, below + right]

    def zeroed(self, row: int, steps: Val, loaded: Sequence[Sequence[Val]]) -> list[list[Var]]:
        """What was loaded from `places`, with zeros for corners that are outside."""
        k = self.k
        corners = [[k.var(v.dtype, v) for v in corner] for corner in loaded]
        with k.if_(k.any(steps.ne(3))):
            for there, corner in zip(self.inside(row), corners, strict=True):
                for word in corner:
                    bits = k.select(there, k.bitcast(word, u32), 0)
                    word.set(k.bitcast(bits, word.dtype))
        return corners


class TableGather:
    """Rows of A from a table: 16 bytes of each corner a lane.

    Args:
      table: filled for the taps that the cursor counts.
      x: images [N, H, W, C].
      cursor: has `slice`, of 64 bytes, and `tap`.
      first_row: of the lane in the table.
      row: rows from there to the lane's row of a number.
      channel: the lane's first one in slice 0; may be a variable.
    """

    def __init__(
        self,
        table: CornerTable,
        x: Pointer,
        cursor: Cursor,
        *,
        first_row: Val,
        row: Callable[[int], int],
        channel: Val,
    ):
        self.k, self.table, self.x, self.cursor = table.k, table, x, cursor
        self.first_row, self.row, self.channel = first_row, row, channel

    def prepare(self) -> None:
        self.rows = TableRows(self.table, self.first_row, self.cursor["tap"], self.row)
        slice_ = self.cursor["slice"] * (64 // self.x.dtype.bytes)
        self.first = self.x + (self.channel + slice_)

    def begin(self, row: int) -> tuple[int, Val, Sequence[Val], list[tuple[Val, ...]]]:
        steps, places = self.rows.places(row, self.first)
        words = [load_words(place, 16 // self.x.dtype.bytes) for place in places]
        return row, steps, self.rows.weights(row), words

    def finish(
        self, loaded: tuple[int, Val, Sequence[Val], list[tuple[Val, ...]]]
    ) -> Sequence[Val]:
        k = self.k
        row, steps, weights, words = loaded
        # Zeros although their weight is zero: a pixel at the edge may be infinite.
        corners = [widen(k, corner) for corner in self.rows.zeroed(row, steps, words)]
        return packed(k, weighted_sums(k, weights, corners), self.x)


class PositionGather:
    """Rows of A from positions that each lane calculates: for narrow offset groups.

    Args:
      offsets: where positions come from.
      pixels: of the rows.
      x: images [N, H, W, C].
      cursor: has `slice`, of 64 bytes, and `tap`.
      first_row: of the lane in the tile.
      row: rows from there to the lane's row of a number.
      channel: the lane's first one in slice 0; may be a variable.
    """

    def __init__(
        self,
        offsets: Offsets,
        pixels: PixelRows,
        x: Pointer,
        cursor: Cursor,
        *,
        first_row: Val,
        row: Callable[[int], int],
        channel: Val,
    ):
        self.k, self.offsets, self.pixels = offsets.k, offsets, pixels
        self.x, self.cursor, self.channel = x, cursor, channel
        self.first_row, self.row = first_row, row
        count = 16 // x.dtype.bytes
        self.width = min(count, offsets.config.channels_per_offset_group)
        self.parts = range(0, count, self.width)

    def prepare(self) -> None:
        slice_ = self.cursor["slice"] * (64 // self.x.dtype.bytes)
        self.first = self.channel + slice_
        self.tap = self.cursor["tap"].value()

    def begin(self, row: int) -> list[tuple[Sequence[Val], list[tuple[Val, ...]]]]:
        k, config = self.k, self.offsets.config
        pixel = self.pixels.read(self.first_row + self.row(row))
        sizes, loaded = self.offsets.geometry, []
        for part in self.parts:
            channel = self.first + part
            group = channel // config.channels_per_offset_group
            position = self.offsets.position(pixel, group, self.tap, pixel.there)
            height, width = (k.bitcast(v, position.y.dtype) for v in (sizes.in_h, sizes.in_w))
            line = k.bitcast(pixel.image, position.y.dtype) * height + position.y
            places = corner_index_places(
                self.x, line * width + position.x, channel, config.in_channels, sizes.in_w
            )
            words = [
                load_words(place, self.width, where=inside & pixel.there)
                for place, inside in zip(places, position.inside(), strict=True)
            ]
            weights = [w if w.dtype is f32 else k.convert(w, f32, "rn") for w in position.weights()]
            loaded.append((weights, words))
        return loaded

    def finish(self, loaded: list[tuple[Sequence[Val], list[tuple[Val, ...]]]]) -> Sequence[Val]:
        k, values = self.k, []
        for weights, words in loaded:
            values += weighted_sums(k, weights, [widen(k, corner) for corner in words])
        return packed(k, values, self.x)


def weighted_sums(k: Kernel, weights: Sequence[Val], corners: Sequence[Sequence[Val]]) -> list[Val]:
    """The weighted sum of corners in f32."""
    values = []
    for elements in zip(*corners, strict=True):
        total = weights[0] * elements[0]
        for weight, element in zip(weights[1:], elements[1:], strict=True):
            total = k.fma(weight, element, total)
        values.append(total)
    return values


def packed(k: Kernel, values: Sequence[Val], x: Pointer) -> list[Val]:
    """f32 values as registers of A: tf32, or two halves each."""
    if x.dtype is f32:
        return [k.convert(value, tf32, "rna") for value in values]
    pair = DTYPES[f"{x.dtype}x2"]
    return [k.pack(a, b, pair) for a, b in zip(values[::2], values[1::2], strict=True)]
