"""A block's product on tensor cores: C += A @ B, of tiles in shared memory, by `mma.sync`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptx.builder import Atom, Fragment, Kernel, Pointer, Val
from ptx.isa.dtypes import tf32
from ptx.tile.layout import Layout
from ptx.tile.math import Row, TileMath
from ptx.tile.shared import SharedTile, Stage

__all__ = ["TensorCores"]


class TensorCores(TileMath):
    """`mma.sync`: each warp has a rectangle of C.

    Args:
      k: the kernel.
      atom: the instruction.
      a, b: the tiles. Those of f32 for tf32 atoms are rounded when they are read. Where B's layout
        is permuted a lane has 8 neighbouring columns of C.
      warps: warps along M and along N.
      split: groups of so many warps, of which each has its own part of K and its own sums.
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
    ):
        super().__init__(k, atom.accumulator)
        self.atom, self.a, self.b = atom, a, b
        self.depth = a.layout.depth // split
        m, n = a.layout.extent // warps[0], b.layout.extent // warps[1]
        assert m % atom.m == 0
        assert n % (2 * atom.n) == 0
        assert self.depth % atom.k == 0
        warp, self.lane = k.tid() >> 5, k.laneid()
        self.first_row = (warp % warps[0]) * m
        column = warp // warps[0]
        self.first_column = (column if split == 1 else column % warps[1]) * n
        self.halves = a.layout.dtype.bytes == 2
        assert not self.halves or (a.layout.conflict_free() and b.layout.conflict_free())
        self.sums = [
            [self.zeros(atom.c.registers) for _ in range(n // atom.n)] for _ in range(m // atom.m)
        ]
        self.lane_a = self._lane_offset(a.layout, atom.a, self.first_row)
        self.lane_b = self._lane_offset(b.layout, atom.b, self.first_column)
        if split > 1:
            first = warp // (warps[0] * warps[1]) * self.depth
            self.lane_a = self.lane_a + a.layout.lane_offset(first, first * 0)
            self.lane_b = self.lane_b + b.layout.lane_offset(first, first * 0)
        self.held: list[list[Sequence[Val]]] = []

    def hold(self) -> None:
        """Loads B's only stage into registers, which `multiply` then takes it from."""
        self.held = [
            self._load_all_b(self.b.first + self.lane_b, step)
            for step in range(0, self.depth, self.atom.k)
        ]

    def multiply(
        self, stage: Stage, stage_b: Stage | None = None, *, part: int = 0, parts: int = 1
    ) -> None:
        """Multiplies a chunk, or one of equal parts of it along K."""
        atom, extent = self.atom, self.depth // parts
        a, b = self.a.stage(stage) + self.lane_a, None
        if not self.held:
            b = self.b.stage(stage if stage_b is None else stage_b) + self.lane_b
        assert extent % atom.k == 0
        for step in range(part * extent, (part + 1) * extent, atom.k):
            parts_b = self.held[step // atom.k] if b is None else self._load_all_b(b, step)
            for i, row in enumerate(self.sums):
                part_a = self._load_a(a + self.a.layout.offset(step, i * atom.m))
                for sums, part_b in zip(row, parts_b, strict=True):
                    self.k.mma(atom, sums, part_a, part_b)

    def rows(self) -> Iterator[Row]:
        group, member = self.lane >> 2, (self.lane & 3) * self.atom.c.stride
        for i, row in enumerate(self.sums):
            for down in range(0, self.atom.m, 8):
                first = self.atom.c.offsets.index((down, 0))
                pairs = [sums[first : first + 2] for sums in row]
                if self.b.layout.permuted:
                    column = self.first_column + (self.lane & 3) * 8
                    parts = [
                        (column + 8 * j, [v for pair in pairs[j : j + 4] for v in pair])
                        for j in range(0, len(pairs), 4)
                    ]
                else:
                    column = self.first_column + member
                    parts = [(column + j * self.atom.n, pair) for j, pair in enumerate(pairs)]
                yield Row(self.first_row + group + (i * self.atom.m + down), parts)

    def _lane_offset(self, layout: Layout, fragment: Fragment, first: Val) -> Val:
        """The offset of this lane's fragments, or of its rows for ldmatrix."""
        lane = self.lane
        if not self.halves:
            group, member = lane >> 2, (lane & 3) * fragment.stride
            return layout.lane_offset(member, first + group)
        # Matrix i of ldmatrix is pointed to by lanes 8i to 8i+7. A fragment's registers go along
        # M first and then along K; of B two fragments are loaded, K first and then along N.
        matrix = (lane >> 3) & (3 if self.atom.k == 16 else 1)
        if fragment is self.atom.a:
            along_k, across = (matrix >> 1) * 8, (matrix & 1) * 8
        elif self.atom.k == 16:
            along_k, across = (matrix & 1) * 8, (matrix >> 1) * 8
        else:
            along_k, across = matrix * 0, matrix * 8
        if layout.k_axis == 0:
            return layout.lane_offset(along_k + (lane & 7), first + across)
        return layout.lane_offset(along_k, first + across + (lane & 7))

    def _load_a(self, first: Pointer) -> Sequence[Val]:
        layout = self.a.layout
        if self.halves:
            return self.k.ldmatrix(first, self.atom.a.registers, transpose=layout.k_axis == 0)
        return [
            self._loaded(first, layout.offset(column, row)) for row, column in self.atom.a.offsets
        ]

    def _load_all_b(self, first: Pointer, step: int) -> list[Sequence[Val]]:
        """The fragments of all columns, at `step` along K."""
        return [
            part
            for j in range(0, len(self.sums[0]), 2)
            for part in self._load_b(first + self.b.layout.offset(step, j * self.atom.n))
        ]

    def _load_b(self, first: Pointer) -> list[Sequence[Val]]:
        """The fragments of two neighbours along N."""
        layout, count = self.b.layout, self.atom.b.registers
        if self.halves:
            loaded = self.k.ldmatrix(first, 2 * count, transpose=layout.k_axis == 0)
            return [loaded[:count], loaded[count:]]
        return [
            [
                self._loaded(first, layout.offset(row, column + j * self.atom.n))
                for row, column in self.atom.b.offsets
            ]
            for j in range(2)
        ]

    def _loaded(self, first: Pointer, offset: int) -> Val:
        value = first.load(offset)
        return self.k.convert(value, tf32, "rna") if self.atom.dtype is tf32 else value
