"""Tensor-core instructions as data: shapes, types, and which lane holds which element."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptx.isa.dtypes import DType, bf16, bf16x2, f16, f16x2, f32, f64, tf32

__all__ = ["ATOMS", "Atom", "Fragment"]

WARP = 32


@dataclasses.dataclass(frozen=True)
class Fragment:
    """How the lanes of a warp hold one matrix of an `mma.sync`.

    A lane belongs to group `lane // 4` and is member `lane % 4` of it. Its element i is at
    `origin(lane) + offsets[i]`; register r holds elements `r * packed` and up, the first in the
    lower half.

    Attributes:
      rows, columns: shape of the matrix: A is [M, K], B is [K, N], C and D are [M, N].
      register: type of one register.
      group_axis: the axis that the group counts along: 0 in A and C, 1 in B.
      stride: distance between the members of a group, along the other axis.
      offsets: (row, column) of each element of a lane, from its origin.
    """

    rows: int
    columns: int
    register: DType
    group_axis: int
    stride: int
    offsets: tuple[tuple[int, int], ...]

    @property
    def packed(self) -> int:
        """Elements in one register."""
        return self.register.lanes

    @property
    def registers(self) -> int:
        """Registers that a lane holds."""
        return len(self.offsets) // self.packed

    def origin(self, lane: int) -> tuple[int, int]:
        """(row, column) that a lane's offsets count from."""
        group, member = lane // 4, lane % 4 * self.stride
        return (group, member) if self.group_axis == 0 else (member, group)

    def position(self, lane: int, element: int) -> tuple[int, int]:
        """(row, column) of an element of a lane."""
        row, column = self.origin(lane)
        return row + self.offsets[element][0], column + self.offsets[element][1]

    def positions(self) -> np.ndarray:
        """(row, column) of every element: int array [32 lanes, elements, 2]."""
        lanes = range(WARP), range(len(self.offsets))
        return np.array([[self.position(lane, i) for i in lanes[1]] for lane in lanes[0]])


@dataclasses.dataclass(frozen=True)
class Atom:
    """One `mma.sync`: D[M, N] = A[M, K] @ B[K, N] + C[M, N] for a warp.

    Attributes:
      name: shape and type, for example "m16n8k16.bf16".
      instruction: its name in the opcode table.
      m, n, k: shape.
      dtype: type of the elements of A and B.
      a, b, c: the fragments; D is held as C.

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 ..." and the other shapes.
    """

    name: str
    instruction: str
    m: int
    n: int
    k: int
    dtype: DType
    a: Fragment
    b: Fragment
    c: Fragment

    @property
    def accumulator(self) -> DType:
        """Type of the elements of C."""
        return self.c.register


def _atom(m: int, n: int, k: int, dtype: DType) -> Atom:
    """The atom of a shape, from what the shapes have in common.

    The members of a group are `pair` columns apart, so that packed halves share a register, and
    together cover a chunk of 4 * pair along K. A lane's registers go through the rows 0 and 8
    first, then through the chunks.
    """
    packed = {f16: f16x2, bf16: bf16x2}.get(dtype, dtype)
    accumulator = f64 if dtype is f64 else f32
    pair = packed.lanes
    rows, chunks = range(0, m, 8), range(0, k, 4 * pair)
    a = tuple((row, chunk + i) for chunk in chunks for row in rows for i in range(pair))
    b = tuple((chunk + i, 0) for chunk in chunks for i in range(pair))
    c = tuple((row, i) for row in rows for i in range(2))
    types = f"{accumulator}.{dtype}.{dtype}.{accumulator}"
    return Atom(
        name=f"m{m}n{n}k{k}.{dtype}",
        instruction=f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{types}",
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        a=Fragment(m, k, packed, 0, pair, a),
        b=Fragment(k, n, packed, 1, pair, b),
        c=Fragment(m, n, accumulator, 0, 2, c),
    )


ATOMS: dict[str, Atom] = {
    atom.name: atom
    for atom in (
        _atom(16, 8, 16, f16),
        _atom(16, 8, 16, bf16),
        _atom(16, 8, 8, f16),
        _atom(16, 8, 8, bf16),
        _atom(16, 8, 8, tf32),
        _atom(8, 8, 4, f64),
        _atom(16, 8, 4, f64),
        _atom(16, 8, 8, f64),
        _atom(16, 8, 16, f64),
    )
}
