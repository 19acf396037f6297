"""The pixels that a block's rows read: windows that move over images, tap by tap."""

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
      size: the number of rows, or columns, of the images that are read: u32.
      windows: the number of windows: u32.
      scale: rows from a window to the next.
      step: rows from a tap to the next; may be negative.
      first: the row that the first tap of window 0 reads: an s32 register, or an int.
      taps: the number of taps: a register, or an int.
      most_taps: an upper limit of `taps`; the same where that is an int.
      kernel_first, kernel_step: tap t has the weights of tap `kernel_first + t * kernel_step`.
      result_first, result_scale: window u makes row `u * result_scale + result_first` of the
        result.
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
    result_first: Val | int = 0
    result_scale: int = 1

    def kernel_tap(self, tap: Val) -> Val:
        """The index of a tap among those of the convolution's kernel."""
        return tap * self.kernel_step + self.kernel_first


class WindowRows:
    """The windows of a block's rows, in shared memory.

    Windows of all images lie below each other and are cut into strips of `strip_width` columns; a
    block has neighbours of one strip, row by row, so that what they read overlaps.

    The arrays hold for each row where its window begins and, as a bit for each tap, which taps lie
    inside of the image. If there are more than 32 taps, they hold the row and column of the first
    tap instead, which `inside` compares with the image's size.

    Args:
      k: the kernel, whose grid has `strip_blocks(...)` blocks in x.
      images: the number of images: u32.
      y, x: the axes.
      result: height and width of the images that are written.
      strip_width: columns of a strip: what the function of this name returns.
      rows: windows of a block.
      threads: threads of the block, at least as many.
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
        self.bounds = [k.shared(f"window_{name}", s32, rows) for name in names]
        lines = images * y.windows
        blocks = k.max((lines * strip_width + (rows - 1)) // rows, 1)  # of a strip
        first_column = k.ctaid("x") // blocks * strip_width
        strip_ok = first_column < x.windows
        width = k.select(strip_ok, k.min(strip_width, x.windows - first_column), 1)
        k.comment("windows: a thread for each row")
        with k.if_(k.tid() < rows):
            window = k.ctaid("x") % blocks * rows + k.tid()  # of the strip
            line, column = window // width, first_column + window % width
            window_ok = strip_ok & (line < lines)
            height = k.max(y.windows, 1)
            image, row = line // height, line % height
            result_y = row * y.result_scale + y.result_first
            result_x = column * x.result_scale + x.result_first
            index = pixel_index(image, result_y, result_x, *result)
            self.indices.store(k.tid(), k.select(window_ok, index, NO_PIXEL))
            start_y = k.bitcast(row, s32) * y.scale + y.first
            start_x = k.bitcast(column, s32) * x.scale + x.first
            start = pixel_index(image, start_y, start_x, y.size, x.size)
            self.starts.store(k.tid(), k.select(window_ok, start, 0))
            if not self.masked:
                # A window that does not exist is above all images, so that it reads nothing.
                self.bounds[0].store(k.tid(), k.select(window_ok, start_y, -(1 << 30)))
                self.bounds[1].store(k.tid(), start_x)
            else:
                bits = k.var(u32, 0)
                for i in range(y.most_taps):
                    inside_y = self._inside(y, start_y, i) & window_ok
                    for j in range(x.most_taps):
                        inside = inside_y & self._inside(x, start_x, j)
                        bits.set(bits | k.select(inside, 1 << (i * x.most_taps + j), 0, u32))
                self.bounds[0].store(k.tid(), k.bitcast(bits, s32))
        k.barrier()

    def result(self, row: Val) -> tuple[Val, Val]:
        """The index of the pixel that a row makes, and whether there is one."""
        index = self.indices.load(row)
        return index, index.ne(NO_PIXEL)

    def start(self, row: Val) -> Val:
        """The index of the pixel that a window's first tap reads; it may lie outside: s32."""
        return self.starts.load(row)

    def bounds_of(self, row: Val) -> tuple[Val, ...]:
        """What `inside` takes of a row's window."""
        return tuple(bound.load(row) for bound in self.bounds)

    def inside(self, bounds: tuple[Val, ...], tap_y: Val, tap_x: Val) -> Val:
        """Whether a tap of the window with these bounds lies inside of the image."""
        k = self.k
        if self.masked:
            bit = k.bitcast(bounds[0], u32) >> (tap_y * self.x.most_taps + tap_x)
            return (bit & 1).ne(0)
        return self._inside(self.y, bounds[0], tap_y) & self._inside(self.x, bounds[1], tap_x)

    def shift(self, tap_y: Val, tap_x: Val) -> Val:
        """The pixels from a window's first tap to another one: s32."""
        k, width = self.k, self.k.bitcast(self.x.size, s32)
        down, right = k.bitcast(tap_y, s32) * self.y.step, k.bitcast(tap_x, s32) * self.x.step
        return down * width + right

    def _inside(self, axis: Axis, start: Val, tap: Val | int) -> Val:
        k = self.k
        step = tap * axis.step if isinstance(tap, int) else k.bitcast(tap, s32) * axis.step
        position = k.bitcast(start + step, u32)  # what is negative becomes large
        inside = position < axis.size
        if isinstance(axis.taps, Val) and isinstance(tap, int):
            inside = inside & (axis.taps > tap)
        return inside
