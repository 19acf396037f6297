"""The pixels of a block and the corners that they sample, in shared memory."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from ptx.builder import Kernel, Pointer, Val, Var
from ptx.isa.dtypes import f32, s32, u8, u32
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.samples.positions import Offsets, interpolate
from ptx.kernels.limits import TABLE_PIXELS
from ptx.tile.pixels import NO_PIXEL, Geometry, OutputPixel, pixel_index
from ptx.tile.vectors import load_words, widen

__all__ = [
    "CornerTable",
    "Entries",
    "PixelRange",
    "PixelRows",
    "PixelTable",
    "Table",
    "TableRows",
]

Loaded = tuple[Any, list[tuple[Val, ...]]]  # what weights are made of, and the corners' words


class PixelTable:
    """Output pixels in shared memory.

    Args:
      k: the kernel.
      config: the convolution.
      count: the number of pixels.
    """

    def __init__(self, k: Kernel, config: DeformConvConfig, count: int):
        self.k, self.count = k, count
        # A row for pixels that do not exist: below all images, so that all taps are outside.
        self.nowhere = (1 << 30) // config.stride_h
        self.pixels = k.shared("pixels", u32, 4 * count)  # index, image, y, x of each

    def store(self, at: Val, pixel: OutputPixel) -> None:
        """Stores a pixel. A barrier has to follow before it is loaded."""
        index = self.k.select(pixel.exists, pixel.index, NO_PIXEL)
        y = self.k.select(pixel.exists, pixel.y, self.nowhere)
        self.pixels.store(at * 4, (index, pixel.image, y, pixel.x))

    def load(self, at: Val) -> OutputPixel:
        """Loads a pixel; where `exists` is off, its index means nothing, its taps are outside."""
        index, image, y, x = self.pixels.load(at * 4, 4)
        return OutputPixel(index, image, y, x, index.ne(NO_PIXEL))

    def index(self, at: Val) -> tuple[Val, Val]:
        """Loads the index of a pixel, and the predicate whether there is one."""
        index = self.pixels.load(at * 4)
        return index, index.ne(NO_PIXEL)


class PixelRows(PixelTable):
    """The output pixels of a block's rows.

    The outputs of all images lie below each other and are cut into strips of `strip_width` columns;
    a block has neighbouring pixels of one strip, row by row. So its samples lie close together, and
    no block is cut by an edge.

    Args:
      k: the kernel, whose grid has `strip_blocks(...)` blocks in x.
      config: the convolution.
      geometry: the sizes.
      strip_width: columns of a strip.
      rows: pixels of a block.
      threads: threads of the block.
    """

    def __init__(
        self,
        k: Kernel,
        config: DeformConvConfig,
        geometry: Geometry,
        strip_width: Val,
        *,
        rows: int,
        threads: int,
    ):
        super().__init__(k, config, rows)
        self.threads = threads
        assert threads % rows == 0
        lines = geometry.images * geometry.out_h
        blocks = (lines * strip_width + (rows - 1)) // rows  # of a strip
        first_column = k.ctaid("x") // blocks * strip_width
        width = k.min(strip_width, geometry.out_w - first_column)
        in_strip = k.ctaid("x") % blocks * rows + k.tid() % rows
        line, x = in_strip // width, first_column + in_strip % width
        index, image, y = line * geometry.out_w + x, line // geometry.out_h, line % geometry.out_h
        self.own = OutputPixel(index, image, y, x, line < lines)
        with k.if_(k.tid() < rows):
            self.store(k.tid(), self.own)


class PixelRange:
    """The output pixels of a block's rows: neighbours in memory.

    Args:
      geometry: the sizes.
      first: the index of the first one.
      rows: pixels of a block.
      threads: threads of the block.
    """

    def __init__(self, geometry: Geometry, first: Val, *, rows: int, threads: int):
        self.geometry, self.first, self.rows, self.threads = geometry, first, rows, threads
        assert threads % rows == 0

    @property
    def own(self) -> OutputPixel:
        """The pixel of a thread, calculated anew each time."""
        return self.geometry.pixel(self.first + self.first.kernel.tid() % self.rows)

    def index(self, row: Val) -> tuple[Val, Val]:
        """The index of a row's pixel, and the predicate whether there is one."""
        index = self.first + row
        return index, index < self.geometry.pixels


class Table(abc.ABC):
    """The samples of a block's rows, for some taps.

    Args:
      offsets: the source of the positions.
      rows: rows of each tap.
      taps: the number of taps that are kept at a time.
    """

    most_pixels: ClassVar[int]  # of all images

    def __init__(self, offsets: Offsets, *, rows: int, taps: int = 1):
        self.k, self.offsets, self.rows, self.taps = offsets.k, offsets, rows, taps

    @staticmethod
    def taps_that_fit(config: DeformConvConfig, rows: int, room: int) -> int:
        """The number of taps that fit a room, in bytes, with so many rows: all, or at least one."""
        return 1

    def fill(
        self,
        pixels: PixelRows | PixelRange,
        group: Val | int,
        first_tap: Val,
        taps: Val | None = None,
    ) -> None:
        """Calculates the entries of a block's pixels, for an offset group.

        A barrier has to follow before they are read, and to precede where they are overwritten.

        Args:
          pixels: as many as the table has rows.
          group: the offset group.
          first_tap: the first tap; those beyond the last one sample nothing.
          taps: the number of taps; None for as many as the table has room for.
        """
        k, pixel = self.k, pixels.own
        k.comment("corners: a thread for each pixel")
        count = self.taps if taps is None else taps
        step = pixels.threads // self.rows
        with k.loop(k.tid() // self.rows, count, step, name="corner") as tap_index:
            tap = first_tap + tap_index
            sample_ok = pixel.exists & (tap < self.offsets.config.taps)
            self.store(tap_index * self.rows + k.tid() % self.rows, pixel, group, tap, sample_ok)

    @abc.abstractmethod
    def store(
        self, at: Val, pixel: OutputPixel, group: Val | int, tap: Val, sample_ok: Val
    ) -> None:
        """Calculates one entry; it samples nothing where `sample_ok` is off."""

    @abc.abstractmethod
    def entries(self, first: Val) -> Entries:
        """The entries from one on."""


class Entries(Protocol):
    """Entries of a table, whose samples are loaded and interpolated."""

    def begin(self, row: int, x: Pointer, channel: Val, width: int, where: Val | None) -> Loaded:
        """Starts to load the corners of an entry.

        Args:
          row: entries from the first one on.
          x: images [N, H, W, C].
          channel: the first one that is loaded.
          width: channels.
          where: a predicate; nothing is loaded where it is off. None loads always.

        Returns:
          What `finish` takes.
        """
        ...

    def finish(self, loaded: Loaded) -> list[Val]:
        """The sampled channels, with the mask."""
        ...


class CornerTable(Table):
    """For rows and taps the four corners' weights, with the mask, and their pixels.

    A corner outside of the image has weight 0, or NaN where the position is, and the address of a
    corner inside, so that loads need no predicate. See `Table` for the arguments.
    """

    most_pixels = TABLE_PIXELS

    def __init__(self, offsets: Offsets, *, rows: int, taps: int = 1):
        super().__init__(offsets, rows=rows, taps=taps)
        count = rows * taps
        self.weights = self.k.shared("corner_weights", f32, 4 * count)
        # Index of the first corner's pixel, times 4; +1 if the next is a column on, +2 if a row.
        self.corners = self.k.shared("corner_pixels", u32, count)
        self.insides = self.k.shared("corner_insides", u8, count)  # a bit for each
        # Elements from a pixel of the images to the one below it, and to itself.
        self.below = self.k.mul_wide(offsets.geometry.in_w, offsets.config.in_channels)
        self.no_rows = self.k.mul_wide(offsets.geometry.in_w, 0)

    @staticmethod
    def taps_that_fit(config: DeformConvConfig, rows: int, room: int) -> int:
        return max(1, min(config.taps, room // (rows * 21)))

    def entries(self, first: Val) -> TableRows:
        return TableRows(self, first, lambda row: row)

    def store(
        self, at: Val, pixel: OutputPixel, group: Val | int, tap: Val, sample_ok: Val
    ) -> None:
        k, sizes = self.k, self.offsets.geometry
        position = self.offsets.position(pixel, group, tap, sample_ok)
        y, x = self._clamped(position.y, sizes.in_h), self._clamped(position.x, sizes.in_w)
        corner = pixel_index(pixel.image, y, x, sizes.in_h, sizes.in_w)
        right = position.inside_x[0] & position.inside_x[1]
        below = position.inside_y[0] & position.inside_y[1]
        corner = corner * 4 + k.select(right, 1, 0, u32) + k.select(below, 2, 0, u32)
        bits = k.var(u32, 0)
        weights = []
        for i, (inside, weight) in enumerate(
            zip(position.inside(), position.weights(), strict=True)
        ):
            inside = inside & sample_ok
            bits.set(bits | k.select(inside, 1 << i, 0, u32))
            weight = k.convert(weight, f32, "rn")
            weights.append(k.select(inside, weight, weight * 0.0))  # NaN stays
        self.weights.store(at * 4, weights)
        self.corners.store(at, k.select(sample_ok, corner, 0))
        self.insides.store(at, bits)

    def _clamped(self, line: Val, size: Val) -> Val:
        """The nearest row, or column, of the image."""
        k = self.k
        return k.bitcast(k.max(k.min(line, k.bitcast(size, s32) - 1), 0), u32)


class TableRows:
    """A thread's rows of a table.

    Args:
      table: a filled table.
      at: the thread's first entry.
      row: index of a row -> entries from the first one to it.
    """

    def __init__(self, table: CornerTable, at: Val, row: Callable[[int], int]):
        self.k, self.table, self.row = table.k, table, row
        self.weight_address = table.weights + at * 4
        self.corners, self.inside_address = table.corners + at, table.insides + at

    def weights(self, row: int) -> Sequence[Val]:
        """The weights of the four corners, with the mask: f32."""
        return self.weight_address.load(4 * self.row(row), 4)

    def inside(self, row: int) -> list[Val]:
        """Predicates: which corners are inside."""
        bits = self.inside_address.load(self.row(row))
        return [(bits & (1 << i)).ne(0) for i in range(4)]

    def addresses(self, row: int, image: Pointer) -> tuple[Val, list[Pointer]]:
        """The addresses of the four corners, or for those outside of some pixel inside.

        Args:
          row: index of the row.
          image: the channel of interest of the first pixel of all images [N, H, W, C].

        Returns:
          Which corners are inside, for `zeroed`, and their addresses.
        """
        k, channels = self.k, self.table.offsets.config.in_channels
        corner = self.corners.load(self.row(row))
        first = image + k.mul_wide(corner >> 2, channels)
        right = k.select((corner & 1).ne(0), channels, 0, u32)
        down = k.select((corner & 2).ne(0), self.table.below, self.table.no_rows)
        below = first + down
        return corner & 3, [first, first + right, below, below + right]

    def begin(self, row: int, x: Pointer, channel: Val, width: int, where: Val | None) -> Loaded:
        steps, addresses = self.addresses(row, x + channel)
        return (row, steps), [load_words(address, width, where=where) for address in addresses]

    def finish(self, loaded: Loaded) -> list[Val]:
        (row, steps), words = loaded
        corners = [widen(self.k, c) for c in self.zeroed(row, steps, words)]
        return interpolate(self.weights(row), corners)

    def zeroed(self, row: int, steps: Val, loaded: Sequence[Sequence[Val]]) -> list[list[Var]]:
        """What was loaded from `addresses`, with zeros for corners that are outside."""
        k = self.k
        corners = [[k.var(v.dtype, v) for v in corner] for corner in loaded]
        with k.if_(k.any(steps.ne(3))):
            for corner_ok, corner in zip(self.inside(row), corners, strict=True):
                for word in corner:
                    bits = k.select(corner_ok, k.bitcast(word, u32), 0)
                    word.set(k.bitcast(bits, word.dtype))
        return corners
