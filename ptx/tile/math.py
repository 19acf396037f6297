"""What a block does with a tile of A and a tile of B: C += A @ B, on tensor cores or by FMA."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

from ptx.builder import Atom, Fragment, Kernel, Pointer, Val, Var
from ptx.isa.dtypes import DType, f32, f64, tf32
from ptx.tile.shared import SharedTile

__all__ = ["FusedMultiplyAdd", "Row", "TensorCores", "TileMath", "permuted_column"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What a thread holds of one row of C.

    Attributes:
      row: in the tile.
      parts: (column in the tile, values there and at the following columns).
    """

    row: Val
    parts: list[tuple[Val, list[Var]]]


class TileMath(Protocol):
    """One block's product: accumulators, and how to add to them.

    Attributes:
      accumulator: type of the elements of C.
      row_lanes: masks: the lanes `lane ^ mask`, for all of them one after the other, hold a row
        together with a lane, if one warp holds whole rows.
    """

    accumulator: DType

    @property
    def row_lanes(self) -> tuple[int, ...]: ...

    def clear(self) -> None:
        """C = 0."""

    def multiply(self, stage: Val, stage_b: Val | None = None) -> None:
        """C += A @ B, of the tiles in a stage; B's may be another one."""

    def rows(self) -> Iterator[Row]:
        """What this thread holds of C."""
        ...


class TensorCores:
    """`mma.sync`: each warp has a rectangle of C.

    Args:
      k: the kernel.
      atom: the instruction.
      a, b: the tiles. Of f32 for tf32 atoms, which are rounded when they are read.
      warps: warps along M and along N.
      split: groups of so many warps, of which each has its own part of K and its own sums.
      permuted: column p of B's tile is column `permuted_column(p)` of C, so that a lane has 8
        neighbouring columns.
    """

    row_lanes = (1, 2)

    def __init__(
        self,
        k: Kernel,
        atom: Atom,
        a: SharedTile,
        b: SharedTile,
        warps: tuple[int, int],
        *,
        split: int = 1,
        permuted: bool = False,
    ):
        self.k, self.atom, self.a, self.b = k, atom, a, b
        self.accumulator, self.permuted = atom.accumulator, permuted
        self.depth = (a.rows if a.k_axis == 0 else a.columns) // split
        m = (a.columns if a.k_axis == 0 else a.rows) // warps[0]
        n = (b.columns if b.k_axis == 0 else b.rows) // warps[1]
        assert m % atom.m == 0
        assert n % (2 * atom.n) == 0
        assert self.depth % atom.k == 0
        warp, self.lane = k.tid() >> 5, k.laneid()
        self.first_row = (warp % warps[0]) * m
        column = warp // warps[0]
        self.first_column = (column if split == 1 else column % warps[1]) * n
        self.halves = a.dtype.bytes == 2
        self.sums = [
            [
                [k.var(self.accumulator, 0.0) for _ in range(atom.c.registers)]
                for _ in range(n // atom.n)
            ]
            for _ in range(m // atom.m)
        ]
        self.lane_a = self._lane_offset(a, atom.a, self.first_row)
        self.lane_b = self._lane_offset(b, atom.b, self.first_column)
        if split > 1:
            first = warp // (warps[0] * warps[1]) * self.depth
            self.lane_a = self.lane_a + a.lane_offset(first, first * 0)
            self.lane_b = self.lane_b + b.lane_offset(first, first * 0)
        self.held: list[list[Sequence[Val]]] = []

    def clear(self) -> None:
        for register in (r for row in self.sums for part in row for r in part):
            register.set(0.0)

    def hold(self) -> None:
        """Loads B's only stage into registers, which `multiply` then takes it from."""
        self.held = [
            self._load_all_b(self.b.place + self.lane_b, step)
            for step in range(0, self.depth, self.atom.k)
        ]

    def multiply(self, stage: Val, stage_b: Val | None = None) -> None:
        atom = self.atom
        place_a = self.a.place.add_bytes(stage * self.a.stage_bytes) + self.lane_a
        place_b = None
        if not self.held:
            stage_b = stage if stage_b is None else stage_b
            place_b = self.b.place.add_bytes(stage_b * self.b.stage_bytes) + self.lane_b
        for step in range(0, self.depth, atom.k):
            parts_b = (
                self.held[step // atom.k] if place_b is None else self._load_all_b(place_b, step)
            )
            for i, row in enumerate(self.sums):
                part_a = self._load_a(place_a + self.a.offset(step, i * atom.m))
                for sums, part_b in zip(row, parts_b, strict=True):
                    self.k.mma(atom, sums, part_a, part_b)

    def rows(self) -> Iterator[Row]:
        group, member = self.lane >> 2, (self.lane & 3) * self.atom.c.stride
        for i, row in enumerate(self.sums):
            for down in range(0, self.atom.m, 8):
                first = self.atom.c.offsets.index((down, 0))
                pairs = [sums[first : first + 2] for sums in row]
                if self.permuted:
                    column = self.first_column + (self.lane & 3) * 8
                    parts = [
                        (column + 8 * j, [v for pair in pairs[j : j + 4] for v in pair])
                        for j in range(0, len(pairs), 4)
                    ]
                else:
                    column = self.first_column + member
                    parts = [(column + j * self.atom.n, pair) for j, pair in enumerate(pairs)]
                yield Row(self.first_row + group + (i * self.atom.m + down), parts)

    def _lane_offset(self, tile: SharedTile, fragment: Fragment, first: Val) -> Val:
        """Where this lane reads its fragments, or its rows for ldmatrix."""
        lane = self.lane
        if not self.halves:
            group, member = lane >> 2, (lane & 3) * fragment.stride
            return tile.lane_offset(member, first + group)
        # Matrix i of ldmatrix is pointed to by lanes 8i to 8i+7. A fragment's registers go along
        # M first and then along K; of B two fragments are loaded, K first and then along N.
        number = (lane >> 3) & (3 if self.atom.k == 16 else 1)
        if fragment is self.atom.a:
            along_k, across = (number >> 1) * 8, (number & 1) * 8
        elif self.atom.k == 16:
            along_k, across = (number & 1) * 8, (number >> 1) * 8
        else:
            along_k, across = number * 0, number * 8
        if tile.k_axis == 0:
            return tile.lane_offset(along_k + (lane & 7), first + across)
        return tile.lane_offset(along_k, first + across + (lane & 7))

    def _load_a(self, place: Pointer) -> Sequence[Val]:
        if self.halves:
            return self.k.ldmatrix(place, self.atom.a.registers, transpose=self.a.k_axis == 0)
        return [
            self._loaded(place, self.a.offset(column, row)) for row, column in self.atom.a.offsets
        ]

    def _load_all_b(self, place: Pointer, step: int) -> list[Sequence[Val]]:
        """The fragments of all columns, at `step` along K."""
        return [
            part
            for j in range(0, len(self.sums[0]), 2)
            for part in self._load_b(place + self.b.offset(step, j * self.atom.n))
        ]

    def _load_b(self, place: Pointer) -> list[Sequence[Val]]:
        """The fragments of two neighbours along N."""
        count = self.atom.b.registers
        if self.halves:
            loaded = self.k.ldmatrix(place, 2 * count, transpose=self.b.k_axis == 0)
            return [loaded[:count], loaded[count:]]
        return [
            [
                self._loaded(place, self.b.offset(row, column + j * self.atom.n))
                for row, column in self.atom.b.offsets
            ]
            for j in range(2)
        ]

    def _loaded(self, place: Pointer, offset: int) -> Val:
        value = place.load(offset)
        return self.k.convert(value, tf32, "rna") if self.atom.dtype is tf32 else value


class FusedMultiplyAdd:
    """Ordinary arithmetic: each thread has elements of C, spread evenly over it.

    Half a warp holds whole rows.

    Args:
      k: the kernel.
      a, b: the tiles.
      threads: of the block, or of a part of it that has its own part of K.
      split: how many such parts there are.
    """

    across = 16  # threads along N
    row_lanes = (1, 2, 4, 8)

    def __init__(self, k: Kernel, a: SharedTile, b: SharedTile, threads: int, split: int = 1):
        self.k, self.a, self.b = k, a, b
        self.accumulator = f64 if a.dtype is f64 else f32
        self.depth = (a.rows if a.k_axis == 0 else a.columns) // split
        m = a.columns if a.k_axis == 0 else a.rows
        n = b.columns if b.k_axis == 0 else b.rows
        self.down = threads // self.across
        assert m % self.down == 0
        assert n % self.across == 0
        thread = k.tid() if split == 1 else k.tid() % threads
        self.column, self.row = thread % self.across, thread // self.across
        self.first = k.tid() * 0 if split == 1 else k.tid() // threads * self.depth
        self.sums = [
            [k.var(self.accumulator, 0.0) for _ in range(n // self.across)]
            for _ in range(m // self.down)
        ]

    def clear(self) -> None:
        for register in (r for row in self.sums for r in row):
            register.set(0.0)

    def multiply(self, stage: Val, stage_b: Val | None = None) -> None:
        k, stage_b = self.k, stage if stage_b is None else stage_b
        lane_a = self.a.lane_offset(self.first, self.row)
        lane_b = self.b.lane_offset(self.first, self.column)
        place_a = self.a.place.add_bytes(stage * self.a.stage_bytes) + lane_a
        place_b = self.b.place.add_bytes(stage_b * self.b.stage_bytes) + lane_b
        for step in range(self.depth):
            row_b = [
                self._loaded(place_b, self.b.offset(step, j * self.across))
                for j in range(len(self.sums[0]))
            ]
            for i, sums in enumerate(self.sums):
                value = self._loaded(place_a, self.a.offset(step, i * self.down))
                for total, other in zip(sums, row_b, strict=True):
                    total.set(k.fma(value, other, total))

    def rows(self) -> Iterator[Row]:
        for i, sums in enumerate(self.sums):
            parts = [(self.column + j * self.across, [value]) for j, value in enumerate(sums)]
            yield Row(self.row + i * self.down, parts)

    def _loaded(self, place: Pointer, offset: int) -> Val:
        value = place.load(offset)
        return value if value.dtype is self.accumulator else self.k.convert(value, f32)


def permuted_column(position: Val) -> Val:
    """The column of C that the column at `position` of a permuted B is.

    Within 32 columns, column 2q + e of fragment j becomes 8q + 2j + e, for member q of a group of
    lanes: what a lane has of four fragments are neighbours.
    """
    fragment, member = (position >> 3) & 3, (position >> 1) & 3
    return (position & 0xFFFFFFE0) + member * 8 + fragment * 2 + (position & 1)
