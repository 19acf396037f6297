"""Asynchronous copies into shared memory, ldmatrix and mma.sync."""

from __future__ import annotations

from collections.abc import Sequence

from ptx.builder.atoms import Atom
from ptx.builder.emitter import Emitter
from ptx.builder.pointers import Pointer
from ptx.builder.values import Val, Var
from ptx.isa.dtypes import DType, b32, bf16, bf16x2, f16, f16x2, u32

__all__ = ["TensorCore"]


class TensorCore(Emitter):
    """The methods of a kernel that feed tensor cores.

    Source: PTX ISA, "cp.async", "ldmatrix", "mma".
    """

    # ---- global to shared memory

    def cp_async(
        self,
        destination: Pointer,
        source: Pointer,
        count: int,
        *,
        where: Val | None = None,
        hint: str | None = None,
    ) -> None:
        """Starts a copy from global to shared memory that does not pass through registers.

        It has arrived after `cp_async_wait` and, for other threads, a barrier.

        Args:
          destination: shared memory, at a multiple of `count`.
          source: global memory, at a multiple of `count`.
          count: bytes: 4, 8 or 16; copies of 16 bytes pass by the L1 cache.
          where: a predicate; where it is off, nothing is read and zeros are written.
          hint: "L2::64B", "L2::128B" or "L2::256B": bytes to prefetch.
        """
        if destination.space != "shared" or source.space != "global":
            raise TypeError(f"cp.async is global to shared, not {source.space} to "
                            f"{destination.space}")  # fmt: skip
        if count not in (4, 8, 16):
            raise ValueError(f"cp.async copies 4, 8 or 16 bytes, not {count}")
        name = f"cp.async.{'cg' if count == 16 else 'ca'}.shared.global"
        name += f".{hint}" if hint else ""
        # The last operand says how many bytes are read: zeros are written for the others.
        read = () if where is None else (self._kernel.select(where, count, 0, u32),)
        self.emit(name, destination.address(), source.address(), count, *read)

    def cp_async_commit(self) -> None:
        """Ends a group of copies."""
        self.emit("cp.async.commit_group")

    def cp_async_wait(self, pending: int = 0) -> None:
        """Waits until at most the `pending` newest groups of this thread are on their way."""
        self.emit("cp.async.wait_group", pending)

    # ---- shared memory to fragments

    def ldmatrix(
        self, row: Pointer, count: int, *, transpose: bool = False, dtype: DType | None = None
    ) -> tuple[Val, ...]:
        """Loads `count` 8x8 matrices of 16-bit elements from shared memory.

        Args:
          row: lanes 8i to 8i+7 point to the rows, 16 bytes each, of matrix i; other lanes' are
            not looked at, but have to be valid addresses.
          count: 1, 2 or 4.
          transpose: gives each lane elements of a column instead of a row.
          dtype: 32-bit type of the registers; by default packed halves for halves, else b32.

        Returns:
          `count` registers: lane l holds elements 2(l%4) and 2(l%4)+1 of row l//4.
        """
        if row.space != "shared":
            raise TypeError(f"ldmatrix reads shared memory, not {row.space}")
        if count not in (1, 2, 4):
            raise ValueError(f"ldmatrix loads 1, 2 or 4 matrices, not {count}")
        if dtype is None:
            packed = {f16: f16x2, bf16: bf16x2, f16x2: f16x2, bf16x2: bf16x2}
            dtype = packed.get(row.dtype, b32)
        trans = ".trans" if transpose else ""
        name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        values = tuple(self._kernel.fresh(dtype, name) for _ in range(count))
        self.emit(name, values, row.address())
        return values

    # ---- products

    def mma(self, atom: Atom, c: Sequence[Var], a: Sequence[Val], b: Sequence[Val]) -> None:
        """`c += a @ b` on a warp's tensor core, in place.

        Args:
          atom: the instruction; its fragments say what each lane's registers hold.
          c: variables of the accumulator's type.
          a: registers of A's fragment; all 32 lanes come here together.
          b: registers of B's fragment.
        """
        for name, values, fragment in (("a", a, atom.a), ("b", b, atom.b), ("c", c, atom.c)):
            types = [value.dtype for value in values]
            if types != [fragment.register] * fragment.registers:
                raise TypeError(
                    f"{atom.name} takes {fragment.registers} x {fragment.register} as {name}, "
                    f"not {types}"
                )
        if not all(isinstance(value, Var) for value in c):
            raise TypeError(f"{atom.name} adds in place: c is made of k.var(...)")
        self.emit(atom.instruction, c, a, b, c)
