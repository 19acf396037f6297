"""Backward to the images in tiles of queries: a product on tensor cores, then few additions.

All samples of a query and head weigh the same gradient. What a tile of queries adds to a window of
an image is therefore a product: of factors [pixels, queries], each of them the sum of those with
which a query's samples read a pixel, and of gradients [queries, channels]. A block owns a tile and
a head. Two lanes have a query, and make its column of the factors in shared memory; tensor cores
multiply; and each pixel that the window's samples read is added to once. The window lies about the
mean of the tile's samples, in one level after the other.

Samples outside of the window are added one by one, as without tiles; also those whose weight the
type of the factors does not hold, and those of a query whose gradient is not finite, which would
make all of the window NaN.
"""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

from ptx.builder import ATOMS, Kernel, Pointer, Val, Var
from ptx.isa.dtypes import DTYPES, f16, f32, s32, u32
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.geometry import Window
from ptx.kernels.sampling.plan import TILE, SamplingPlan
from ptx.kernels.sampling.point_arrays import PointArrays
from ptx.kernels.sampling.points import Chunk, each_chunk, first_pixels
from ptx.kernels.sampling.softmax import Softmax
from ptx.kernels.sampling.units import Level, Place, Span, Unit
from ptx.tile.layout import Layout
from ptx.tile.vectors import add_weighted, any_infinite, load_elements

__all__ = ["write_tiles"]

_WARP = 32
_QUERIES = TILE * TILE
_WINDOW = 16  # pixels of the window along each axis: rows of a fragment
_PIECE = 8  # elements that ldmatrix reads of a row
_PIXEL_BYTES = 2 * _QUERIES
_ROW = _WINDOW * _QUERIES  # elements of the factors of a row of the window


def write_tiles(k: Kernel, config: SamplingConfig, plan: SamplingPlan, p: Any) -> None:
    """Writes the body of the kernel."""
    tile = _Tile(k, config, plan, p)
    for level in range(len(config.levels)):
        tile.add_level(level)


class _Tile:
    """A block's tile of queries of an image, and their head."""

    def __init__(self, k: Kernel, config: SamplingConfig, plan: SamplingPlan, p: Any):
        self.k, self.config, self.plan, self.p = k, config, plan, p
        self.unit = Unit(k, config, plan, p, _place(k, config, p))
        self.arrays = PointArrays(self.unit, p.locations, p.weights, p.packed)
        self.softmax = Softmax(self.unit, self.arrays) if config.normalize else None
        self.atom = ATOMS[f"m16n8k16.{config.float_type}"]
        self.factors = k.shared("factors", config.float_type, _WINDOW * _ROW)
        self.layout = Layout.padded(
            config.float_type, k_extent=_QUERIES, extent=plan.slice, k_axis=0
        )
        count = self.layout.rows * self.layout.pitch
        self.gradients = k.shared("gradients", config.float_type, count)
        self.sums = k.shared("sums", s32, plan.threads // _WARP * len(config.axes))
        self.lane, self.warp = k.laneid(), k.tid() // _WARP
        # Two lanes have a query, one of them its pixels of even columns. Along K, the queries of a
        # warp are every other one, so that all of its lanes write to banks of their own.
        self.of_warp, self.odd = self.lane // 2, self.lane & 1
        piece = (self.warp % 2 * 4 + self.of_warp // 4) ^ self.odd * 4
        self.own_factors = self.factors + (piece * _PIECE + self.of_warp % 4 * 2 + self.warp // 2)
        self.images = self.unit.pixels(p.grad_value, 0)
        self.finite = self._read_gradients()

    # ---- gradients

    def _read_gradients(self) -> Val:
        """Whether the gradient of the thread's query is finite; if there is one slice, keeps it."""
        k, infinite, words = self.k, None, []
        k.comment("whether the gradient of the thread's query is finite")
        for first in range(0, self.config.channels, self.plan.slice):
            words = self._gradient(first)
            found = any_infinite(self._widened(words))
            infinite = found if infinite is None else infinite | found
        assert infinite is not None
        of_lane = k.select(infinite, 1, 0, u32)
        finite = (of_lane | k.shuffle("bfly", of_lane, 1)).eq(0)
        if self.plan.slice == self.config.channels:
            self._keep(words, finite)
        return finite

    def _gradient(self, first: Val | int) -> list[Val]:
        """The lane's half of a slice of its query's gradient, two elements in a word."""
        half = self.plan.slice // 2
        source = self.unit.sums(self.p.grad_y, self.odd * half + first).view(u32)
        return [
            word
            for i in range(0, half // 2, 4)
            for word in source.load(i, 4, where=self.unit.exists)
        ]

    def _widened(self, words: list[Val]) -> list[Val]:
        packed = DTYPES[f"{self.config.float_type}x2"]
        return [
            value for word in words for value in self.k.unpack(self.k.bitcast(word, packed), f32)
        ]

    def _keep(self, words: list[Val], finite: Val) -> None:
        """Writes a half of a slice to shared memory, zeros where the gradient is not finite."""
        k, layout = self.k, self.layout
        words = [k.select(finite, word, 0) for word in words]
        # In the order in which `_multiply` has them along K.
        row = self.warp % 2 * 32 + self.of_warp % 4 * 8 + self.of_warp // 4 * 2 + self.warp // 2
        target = (self.gradients + row * layout.pitch).view(u32)
        if self.plan.width == 1:
            target = target + self.odd * len(words)
            for i in range(0, len(words), 4):
                target.store(i, words[i : i + 4])
            return
        # Of two fragments a lane has four neighbouring channels then.
        target = target + self.odd * (2 if len(words) == 4 else len(words))
        for i in range(0, len(words), 4):
            first = i // 8 * 8 + i % 8 // 2
            target.store(first, [words[i], words[i + 2]])
            target.store(first + 4, [words[i + 1], words[i + 3]])

    # ---- factors

    def add_level(self, index: int) -> None:
        """Adds to the pixels of a level."""
        k, level = self.k, self.unit.levels[index]
        of_all_channels = self.plan.slice == self.config.channels
        if index and of_all_channels:
            k.barrier()  # until the product of the level before has been made
        zeros = (self.factors + k.tid() * 8).view(u32)
        for i in range(0, _WINDOW * _ROW // 2, 4 * self.plan.threads):
            zeros.store(i, [0] * 4)
        origin = self._origin(index, level)

        def write(chunk: Chunk) -> None:
            self._add_chunk(chunk, level, origin)

        each_chunk(self.unit, self.arrays, self.softmax, write, index)
        if of_all_channels:
            k.barrier()
            self._multiply(level, origin, 0)
            return
        with k.loop(0, self.config.channels, self.plan.slice, name="slice", unroll=False) as first:
            self._keep(self._gradient(first), self.finite)
            k.barrier()
            self._multiply(level, origin, first)
            k.barrier()

    def _origin(self, index: int, level: Level) -> list[Val]:
        """The first pixel of the window along each axis, s32; the factors are zeros then.

        The window is about the mean of a point of each thread, and in the image, if it fits.
        """
        k, points, warps = self.k, self.config.points, self.plan.threads // _WARP
        own = k.tid() % points[index] + sum(points[:index])
        span = Span(own, self.unit.exists, 1, 0, level)
        firsts = first_pixels(self.unit, self.arrays, span)
        sizes = [k.bitcast(size, s32) for size in level.size]
        for axis, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
            total = k.max(k.min(first, size), -1)
            for mask in (1, 2, 4, 8, 16):
                total = total + k.shuffle("bfly", total, mask)
            (self.sums + (self.warp * 2 + axis)).store(0, total, where=self.lane.eq(0))
        k.barrier()
        origin = []
        for axis, size in enumerate(sizes):
            total = functools.reduce(
                operator.add, [self.sums.load(2 * warp + axis) for warp in range(warps)]
            )
            mean = total >> self.plan.threads.bit_length() - 1
            origin.append(k.max(k.min(mean - (_WINDOW // 2 - 1), size - _WINDOW), 0))
        return origin

    def _add_chunk(self, chunk: Chunk, level: Level, origin: list[Val]) -> None:
        """Adds two points of each query, one of each lane, to the factors, or to the image."""
        k, point = self.k, chunk.point
        row, column = (
            k.bitcast(place - first, u32) for place, first in zip(point.places, origin, strict=True)
        )
        in_window = _bits(k, [row + i < _WINDOW for i in range(2)], (0b0011, 0b1100))
        in_window = in_window & _bits(k, [column + i < _WINDOW for i in range(2)], (0b0101, 0b1010))
        held, counts = self.finite, ~self.finite
        _, low, high = self._range()
        if point.weight is not None:
            size = abs(point.weight)
            held = held & (size >= low) & (size <= high)
            counts = counts | point.weight.ne(0.0)
        taken = k.select(held, point.inside & in_window, 0)

        # Each lane adds in its own columns, of its point and of the other one.
        second = (column ^ self.odd) & 1
        own: list[Val] = []
        for value, other in zip(
            self._in_column(chunk, row, column, taken, second),
            self._in_column(chunk, row, column, taken, 1 - second),
            strict=True,
        ):
            own.append(value)
            own.append(k.shuffle("bfly", other, 1))
        self._add_factors(*own[::2])
        self._add_factors(*own[1::2])

        rest = point.inside & ~taken
        if point.weight is not None:
            rest = k.select(counts, rest, 0)
        self._add_rest(chunk, level, rest)

    def _in_column(
        self, chunk: Chunk, row: Val, column: Val, taken: Val, second: Val
    ) -> tuple[Val, Val, Val]:
        """What `_add_factors` takes, of a point's first or second column."""
        k, is_second = self.k, second.ne(0)
        first = (row * _WINDOW + column + second) * _PIXEL_BYTES
        bits = (taken >> second) & 0b101
        top, bottom = (k.select(is_second, chunk.factors[i + 1], chunk.factors[i]) for i in (0, 2))
        return first | bits, top, bottom

    def _add_factors(self, code: Val, top: Val, bottom: Val) -> None:
        """Adds to the factors of a pixel and of the pixel below.

        The code is the bytes from the window's first pixel to it, with bit 0 set if there is
        something to add to the first one, and bit 2 if there is to the second.
        """
        k, scale = self.k, self._range()[0]
        first = code & (0x100000000 - _PIECE)
        for i, factor in enumerate((top, bottom)):
            ok = (code & (1 << 2 * i)).ne(0)
            # A row of -1 is no address, so that the next one is not counted from it.
            element = self.own_factors.add_bytes(first + i * _WINDOW * _PIXEL_BYTES if i else first)
            before = k.convert(element.load(where=ok), f32)
            total = before + factor if scale == 1.0 else k.fma(factor, scale, before)
            element.store(0, k.convert(total, self.config.float_type, "rn"), where=ok)

    def _range(self) -> tuple[float, float, float]:
        """What factors are multiplied by, and the smallest and largest weight that they hold.

        They have a sum of all points, and their rounding is that of normal numbers.
        """
        if self.config.float_type is f16:
            scale = 2.0**8
            return scale, 2.0**-20, 2.0**15 / scale / max(self.config.points)
        return 1.0, 2.0**-100, 2.0**100

    def _add_rest(self, chunk: Chunk, level: Level, rest: Val) -> None:
        """Adds to the pixels of some of the warp's points, bits of theirs, one after the other.

        Lanes have vectors of a point's pixels; if these are few, parts of the warp take the points
        of their own lanes.
        """
        k, config, width = self.k, self.config, self.plan.width
        vectors, lanes = config.channels // width, _WARP
        while lanes // 2 >= 4 * vectors:
            lanes //= 2
        ballot = k.bitcast(k.ballot(rest.ne(0)), u32)
        pending, count, first_lane = k.var(u32, ballot), k.op("popc.b32", u32, ballot), 0
        if lanes < _WARP:
            first_lane = self.lane // lanes * lanes
            mask = (1 << lanes) - 1
            pending.set((ballot >> first_lane) & mask)
            of_parts = [
                k.op("popc.b32", u32, ballot & (mask << at)) for at in range(0, _WARP, lanes)
            ]
            count = functools.reduce(k.max, of_parts)
        step = k.bitcast(level.size[-1], s32)
        with k.loop(count, name="rest", unroll=False):
            before, has_one = pending - 1, pending.ne(0)
            lane = k.op("popc.b32", u32, pending ^ before) + first_lane - 1
            pending.set(pending & before)
            told = functools.partial(k.shuffle, "idx", lane=lane)
            index, pixel, bits = told(self.unit.index), told(chunk.point.pixel), told(rest)
            if lanes < _WARP:
                bits = k.select(has_one, bits, 0)
            factors = [told(factor) for factor in chunk.factors]
            grads_of = self.p.grad_y + k.mul_wide(index, config.channels)

            def add(first: Val | int) -> None:
                item = self.lane % lanes + first
                corner, channel = item // vectors, item % vectors * width
                right, below = (corner & 1).ne(0), corner >= 2
                top, bottom = (k.select(right, factors[i + 1], factors[i]) for i in (0, 2))
                at = pixel + k.select(right, 1, 0, s32) + k.select(below, step, 0)
                where = ((bits >> corner) & 1).ne(0)  # of no corner beyond the last one
                grads = load_elements(grads_of + channel, width, where=where)
                add_weighted(
                    self.images + k.mul_wide(at, config.heads * config.channels) + channel,
                    k.select(below, bottom, top), grads, any_infinite(grads),
                    where=where, together=width,
                )  # fmt: skip

            if 4 * vectors == lanes:
                add(0)
            else:
                with k.loop(0, 4 * vectors, lanes, name="vector", unroll=False) as first:
                    add(first)

    # ---- the product

    def _multiply(self, level: Level, origin: list[Val], channel: Val | int) -> None:
        """Adds the product of the factors and a slice of the gradients to the image."""
        k, config, plan, lane = self.k, self.config, self.plan, self.lane
        packed = DTYPES[f"{config.float_type}x2"]
        steps = range(0, _QUERIES // 2, 8)
        # Matrices of B go along K first and then along N. Of A, member i of a group of lanes has
        # pieces i and i + 4 of two pixels, of which each step takes a word.
        down, along, group, member = lane % 8, lane // 8, lane // 4, lane % 4
        of_b = self.gradients + self.layout.lane_offset(along % 2 * 32 + down, along // 2 * 8)
        b = [
            [
                pair[i : i + 2]
                for j in range(0, plan.slice, 16)
                for pair in [k.ldmatrix(of_b + self.layout.offset(step, j), 4, transpose=True)]
                for i in (0, 2)
            ]
            for step in steps
        ]
        of_lane = self.factors + group * _QUERIES
        pieces = [(member ^ group % 2 * 4) * _PIECE]
        pieces.append(pieces[0] ^ 4 * _PIECE)
        rows = _WINDOW // (plan.threads // _WARP)
        # A lane adds to four channels at once, or to one of a pixel and of its neighbour's.
        odd = group & 1
        pixel, own = (group, member * 4) if plan.width == 4 else (group - odd, member * 2 + odd)
        column = origin[1] + k.bitcast(pixel, s32)
        first = self.images + (channel + own)
        with k.loop(rows, name="row", unroll=False) as of_warp:
            row = self.warp * rows + of_warp
            sums = [[k.var(f32, 0.0) for _ in range(4)] for _ in range(plan.slice // 8)]
            of_row = of_lane + row * _ROW
            # [piece][pixel][step]
            words = [
                [(of_row + piece).view(packed).load(i * 8 * _QUERIES // 2, 4) for i in range(2)]
                for piece in pieces
            ]
            for step, parts in enumerate(b):
                a = [words[piece][pixel][step] for piece in range(2) for pixel in range(2)]
                for total, part in zip(sums, parts, strict=True):
                    k.mma(self.atom, total, a, part)
            pixel = (origin[0] + k.bitcast(row, s32)) * k.bitcast(level.size[1], s32) + column
            if level.first_pixel is not None:
                pixel = pixel + k.bitcast(level.first_pixel, s32)
            address = first + k.mul_wide(pixel, config.heads * config.channels)
            self._add_row(address, sums, odd.ne(0))

    def _add_row(self, address: Pointer, sums: list[list[Var]], odd: Val) -> None:
        """Adds a lane's sums of two pixels, 8 apart in a row of the window, where they aren't 0.

        Lanes without vectors swap sums with another pixel's, so that 8 of them fill a sector.
        """
        k, scale = self.k, self._range()[0]
        pitch = self.config.heads * self.config.channels
        found = [[v.value() if scale == 1.0 else v * (1 / scale) for v in total] for total in sums]
        for i, half in itertools.product(range(len(sums)), range(2)):
            low, high = found[i][2 * half : 2 * half + 2]
            pixel = address + 8 * half * pitch
            if self.plan.width == 1:
                other = k.shuffle("bfly", k.select(odd, low, high), 4)
                for j, value in enumerate((k.select(odd, other, low), k.select(odd, high, other))):
                    pixel.red(j * pitch + 8 * i, value, where=value.ne(0.0))
            elif i % 2 == 0:
                added = [low, high, *found[i + 1][2 * half : 2 * half + 2]]
                changed = functools.reduce(operator.or_, [value.ne(0.0) for value in added])
                pixel.red(8 * i, added, where=changed)


def _place(k: Kernel, config: SamplingConfig, p: Any) -> Place:
    """The query of the thread in the block's tile, and its head.

    Queries are the outputs of a window, or the pixels of all levels.
    """
    if isinstance(config.geometry, Window):
        sizes = [((p.queries + p.out_width - 1) // p.out_width, p.out_width)]
    else:
        sizes = list(zip(p.level_heights, p.level_widths, strict=True))
    tiles = [_tiles(height) * _tiles(width) for height, width in sizes]
    index, head = k.ctaid() // config.heads, k.ctaid() % config.heads
    of_image = functools.reduce(operator.add, tiles)
    image, tile = index // of_image, index % of_image
    rows, columns = (k.var(u32, size) for size in sizes[0])
    first_tile, first_query = k.var(u32, 0), k.var(u32, 0)
    next_tile, next_query = tiles[0], sizes[0][0] * sizes[0][1]
    for of_level, (height, width) in zip(tiles[1:], sizes[1:], strict=True):
        with k.if_(tile >= next_tile):
            rows.set(height)
            columns.set(width)
            first_tile.set(next_tile)
            first_query.set(next_query)
        next_tile, next_query = next_tile + of_level, next_query + height * width
    tile, own, across = tile - first_tile, k.tid() // 2, _tiles(columns.value())
    row = tile // across * TILE + own // TILE
    column = tile % across * TILE + own % TILE
    exists = (row < rows) & (column < columns)
    # Where there is none, a neighbour.
    query = first_query + k.min(row, rows - 1) * columns + k.min(column, columns - 1)
    if isinstance(config.geometry, Window):  # the last row may have fewer
        exists, query = exists & (query < p.queries), k.min(query, p.queries - 1)
    return Place(image, query, head, exists)


def _tiles(size: Val) -> Val:
    """Tiles along an axis."""
    return (size + (TILE - 1)) // TILE


def _bits(k: Kernel, conditions: list[Val], bits: tuple[int, int]) -> Val:
    """Those bits together whose conditions hold."""
    first, second = (
        k.select(condition, mask, 0, u32) for condition, mask in zip(conditions, bits, strict=True)
    )
    return first | second
