"""Tables of samples whose loads have predicates: of fractions, or of pixels alone."""

from __future__ import annotations

import dataclasses

from ptx.builder import Pointer, Val
from ptx.isa.dtypes import s32, u32
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.samples.corners import Loaded, PixelTable, Table
from ptx.kernels.deform_conv.samples.positions import Offsets, corner_weights, interpolate
from ptx.kernels.deform_conv.samples.rows import load_corners
from ptx.kernels.limits import PIXELS
from ptx.tile.pixels import OutputPixel
from ptx.tile.vectors import accumulator_of, both, load_words, widen

__all__ = ["PositionTable", "Sample", "SampleTable"]

_TABLE_BYTES = 12 * 1024  # of shared memory for what a block keeps of samples


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One tap of one output pixel.

    Attributes:
      ly, lx: fractions of the position, of the coordinate type.
      mask: the mask's value, of the coordinate type; None without modulation.
      corner: the index of the upper left corner among the pixels of all images; where corners are
        outside of the image it may be of no pixel.
      inside: predicates: whether the corners (y, x), (y, x+1), (y+1, x), (y+1, x+1) are inside.
    """

    ly: Val
    lx: Val
    mask: Val | None
    corner: Val
    inside: list[Val]


class SampleTable(Table):
    """For rows and taps the fractions of the position, the mask, and which corners are inside.

    See `Table` for the arguments.
    """

    most_pixels = PIXELS

    def __init__(self, offsets: Offsets, *, rows: int, taps: int = 1):
        super().__init__(offsets, rows=rows, taps=taps)
        k, dtype, count = self.k, offsets.config.coordinate_type, rows * taps
        self.fractions = [k.shared(f"sample_{name}", dtype, count) for name in ("ly", "lx")]
        self.masks = None if offsets.mask is None else k.shared("sample_mask", dtype, count)
        self.corners = k.shared("sample_corner", s32, count)
        self.insides = k.shared("sample_inside", u32, count)

    @staticmethod
    def taps_that_fit(config: DeformConvConfig, rows: int, room: int) -> int:
        entry = 3 * config.coordinate_type.bytes + 8
        return max(1, min(config.taps, min(room, _TABLE_BYTES) // (rows * entry)))

    def store(
        self, at: Val, pixel: OutputPixel, group: Val | int, tap: Val, sample_ok: Val
    ) -> None:
        k = self.k
        position = self.offsets.position(pixel, group, tap, sample_ok)
        bits = k.var(u32, 0)
        for i, inside in enumerate(position.inside()):
            bits.set(bits | k.select(inside & sample_ok, 1 << i, 0, u32))
        corner = self.offsets.corner(pixel, position)
        self.fractions[0].store(at, position.ly)
        self.fractions[1].store(at, position.lx)
        self.corners.store(at, k.select(bits.eq(0), 0, corner))
        self.insides.store(at, bits)
        if self.masks is not None and position.mask is not None:
            self.masks.store(at, position.mask)

    def load(self, at: Val) -> Sample:
        """Loads an entry."""
        bits = self.insides.load(at)
        inside = [(bits & (1 << i)).ne(0) for i in range(4)]
        ly, lx = (fraction.load(at) for fraction in self.fractions)
        mask = None if self.masks is None else self.masks.load(at)
        return Sample(ly, lx, mask, self.corners.load(at), inside)

    def weights(self, sample: Sample) -> list[Val]:
        """The weights of a sample's corners, with the mask, in the type of the sums."""
        k, dtype = self.k, accumulator_of(self.offsets.config.float_type)
        weights = corner_weights(sample.ly, sample.lx, None)
        if sample.mask is not None:
            weights = [weight * sample.mask for weight in weights]
        return [k.convert(weight, dtype, "rn") for weight in weights]

    def entries(self, first: Val) -> _SampleEntries:
        return _SampleEntries(self, first)


class PositionTable(Table):
    """Pixels alone: each thread calculates the positions of its own channels.

    That saves room where offset groups are many. See `Table` for the arguments; all entries are of
    one tap.
    """

    most_pixels = PIXELS

    def __init__(self, offsets: Offsets, *, rows: int, taps: int = 1):
        super().__init__(offsets, rows=rows, taps=taps)
        self.pixels = PixelTable(self.k, offsets.config, rows)

    def store(
        self, at: Val, pixel: OutputPixel, group: Val | int, tap: Val, sample_ok: Val
    ) -> None:
        self.tap = tap
        self.pixels.store(at, dataclasses.replace(pixel, exists=sample_ok))

    def entries(self, first: Val) -> _PositionEntries:
        return _PositionEntries(self, first)


@dataclasses.dataclass(frozen=True, eq=False)
class _PositionEntries:
    """Entries of a table, from the first one on."""

    table: PositionTable
    first: Val

    def begin(self, row: int, x: Pointer, channel: Val, width: int, where: Val | None) -> Loaded:
        table, pixel = self.table, self.table.pixels.load(self.first + row)
        return load_corners(table.offsets, x, pixel, channel, table.tap, width, where)

    def finish(self, loaded: Loaded) -> list[Val]:
        weights, words = loaded
        return interpolate(weights, [widen(self.table.k, corner) for corner in words])


@dataclasses.dataclass(frozen=True, eq=False)
class _SampleEntries:
    """Entries of a table, from the first one on."""

    table: SampleTable
    first: Val

    def begin(self, row: int, x: Pointer, channel: Val, width: int, where: Val | None) -> Loaded:
        sample = self.table.load(self.first + row)
        addresses = self.table.offsets.corner_addresses(x, sample.corner, channel)
        return sample, [
            load_words(address, width, where=both(inside, where))
            for address, inside in zip(addresses, sample.inside, strict=True)
        ]

    def finish(self, loaded: Loaded) -> list[Val]:
        sample, words = loaded
        corners = [widen(self.table.k, word) for word in words]
        return interpolate(self.table.weights(sample), corners)
