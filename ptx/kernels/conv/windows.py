"""Which pixels a block's rows read: windows that move over images, tap by tap."""

from __future__ import annotations

import dataclasses

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32, u32
from ptx.tile.pixels import NO_PIXEL, pixel_index

__all__ = ["Axis", "WindowRows"]

_MASK_TAPS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """Rows, or columns, of the images: tap t of window u reads `u * scale + first + t * step`.

    Attributes:
      size: of the images that are read: u32.
      windows: how many there are: u32.
      scale, step: from a window, or tap, to the next; a step may be negative.
      first: s32 register, or a number.
      taps: how many there are: a number, or a register.
      most_taps: an upper limit.
      kernel_first, kernel_step: tap t has the weights of tap `kernel_first + t * kernel_step`.
      place_first, place_scale: window u makes row `u * place_scale + place_first` of the result.
    """

    size: Val
    windows: Val
    scale: int
    step: int
    first: Val | int
    taps: Val | int
    most_taps: int
    kernel_first: Val | int = 0
    kernel_step: int = 1
    place_first: Val | int = 0
    place_scale: int = 1

    def kernel_tap(self, tap: Val) -> Val:
        """The number of a tap among those of the convolution's kernel."""
        return tap * self.kernel_step + self.kernel_first


class WindowRows:
    """The windows of a block's rows, in shared memory.

    Windows of all images lie below each other and are cut into strips of `strip_width` columns; a
    block has neighbours of one strip, row by row, so that what they read overlaps.

    For each row there is where its window begins and, as a bit for each tap, which taps are inside
    of the image. Kernels of more than 32 taps have the place instead, to be compared.

    Args:
      k: the kernel, whose grid has `blocks(...)` blocks in x.
      images: how many.
      y, x: the axes.
      result: height and width of the images that are written.
      strip_width: what the function of this name says of a row's windows.
      rows: windows of a block.
      threads: of the block.
    """

    def __init__(
        self,
        k: Kernel,
        images: Val,
        y: Axis,
        x: Axis,
        result: tuple[Val, Val],
        *,
        strip_width: Val,
        rows: int,
        threads: int,
    ):
        self.k, self.y, self.x = k, y, x
        assert threads >= rows
        self.indices = k.shared("window_results", u32, rows)
        self.starts = k.shared("window_starts", s32, rows)
        self.masked = y.most_taps * x.most_taps <= _MASK_TAPS
        names = ("taps",) if self.masked else ("y", "x")
        self.places = [k.shared(f"window_{name}", s32, rows) for name in names]
        lines = images * y.windows
        blocks = k.max((lines * strip_width + (rows - 1)) // rows, 1)  # of a strip
        first_column = k.ctaid("x") // blocks * strip_width
        there = first_column < x.windows
        width = k.select(there, k.min(strip_width, x.windows - first_column), 1)
        k.comment("windows: a thread for each row")
        with k.if_(k.tid() < rows):
            number = k.ctaid("x") % blocks * rows + k.tid()
            line, column = number // width, first_column + number % width
            there = there & (line < lines)
            height = k.max(y.windows, 1)
            image, row = line // height, line % height
            row_place = row * y.place_scale + y.place_first
            column_place = column * x.place_scale + x.place_first
            index = pixel_index(image, row_place, column_place, *result)
            self.indices.store(k.tid(), k.select(there, index, NO_PIXEL))
            start_y = k.bitcast(row, s32) * y.scale + y.first
            start_x = k.bitcast(column, s32) * x.scale + x.first
            start = pixel_index(image, start_y, start_x, y.size, x.size)
            self.starts.store(k.tid(), k.select(there, start, 0))
            if not self.masked:
                # A row that is not there reads nothing: it is above all images.
                self.places[0].store(k.tid(), k.select(there, start_y, -(1 << 30)))
                self.places[1].store(k.tid(), start_x)
            else:
                bits = k.var(u32, 0)
                for i in range(y.most_taps):
                    inside_y = self._inside(y, start_y, i) & there
                    for j in range(x.most_taps):
                        inside = inside_y & self._inside(x, start_x, j)
                        bits.set(bits | k.select(inside, 1 << (i * x.most_taps + j), 0, u32))
                self.places[0].store(k.tid(), k.bitcast(bits, s32))
        k.barrier()

    @staticmethod
    def strip_width(columns: int) -> int:
        """Columns of a strip: near 16, and so that strips are nearly alike."""
        return -(-columns // max(1, round(columns / 16)))

    @staticmethod
    def blocks(images: int, height: int, width: int, rows: int) -> int:
        """Blocks that cover so many windows."""
        if not width:
            return 0
        strip = WindowRows.strip_width(width)
        return -(-images * height * strip // rows) * -(-width // strip)

    def result(self, row: Val) -> tuple[Val, Val]:
        """Index of the pixel that a row makes, and the predicate that there is one."""
        index = self.indices.load(row)
        return index, index.ne(NO_PIXEL)

    def start(self, row: Val) -> Val:
        """Index among the pixels of all images of a window's first tap; it may be of no pixel."""
        return self.starts.load(row)

    def place(self, row: Val) -> tuple[Val, ...]:
        """What `inside` needs to know of a row."""
        return tuple(place.load(row) for place in self.places)

    def inside(self, place: tuple[Val, ...], tap_y: Val, tap_x: Val) -> Val:
        """Whether a tap is inside of the image."""
        k = self.k
        if self.masked:
            bit = k.bitcast(place[0], u32) >> (tap_y * self.x.most_taps + tap_x)
            return (bit & 1).ne(0)
        return self._inside(self.y, place[0], tap_y) & self._inside(self.x, place[1], tap_x)

    def shift(self, tap_y: Val, tap_x: Val) -> Val:
        """Pixels from a window's first tap to another one, as s32."""
        k, width = self.k, self.k.bitcast(self.x.size, s32)
        down, right = k.bitcast(tap_y, s32) * self.y.step, k.bitcast(tap_x, s32) * self.x.step
        return down * width + right

    def _inside(self, axis: Axis, start: Val, tap: Val | int) -> Val:
        k = self.k
        step = tap * axis.step if isinstance(tap, int) else k.bitcast(tap, s32) * axis.step
        place = k.bitcast(start + step, u32)  # what is negative becomes large
        there = place < axis.size
        if isinstance(axis.taps, Val) and isinstance(tap, int):
            there = there & (axis.taps > tap)
        return there
