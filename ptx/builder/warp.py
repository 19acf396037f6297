"""Warps and blocks: indices of threads, shuffles, votes, barriers."""

from __future__ import annotations

from ptx.builder.emitter import Emitter
from ptx.builder.text import Constant, Register
from ptx.builder.values import Val
from ptx.isa.dtypes import DType, b32, pred, u32

__all__ = ["FULL_WARP", "Warp"]

FULL_WARP = 0xFFFFFFFF


class Warp(Emitter):
    """The methods of a kernel that ask for or talk to other threads.

    Source: PTX ISA, "Special Registers", "Parallel Synchronization and Communication".
    """

    _special: dict[tuple[str, DType], Val]

    # ---- who a thread is

    def tid(self, axis: str = "x", dtype: DType = u32) -> Val:
        """Index of the thread in its block along "x", "y" or "z", as u32 or s32."""
        return self._of_axis("tid", axis, dtype)

    def ntid(self, axis: str = "x", dtype: DType = u32) -> Val:
        """Threads of a block along an axis."""
        return self._of_axis("ntid", axis, dtype)

    def ctaid(self, axis: str = "x", dtype: DType = u32) -> Val:
        """Index of the block in the grid along an axis."""
        return self._of_axis("ctaid", axis, dtype)

    def nctaid(self, axis: str = "x", dtype: DType = u32) -> Val:
        """Blocks of the grid along an axis."""
        return self._of_axis("nctaid", axis, dtype)

    def laneid(self, dtype: DType = u32) -> Val:
        """Index of the thread in its warp."""
        return self.special("laneid", dtype)

    def special(self, name: str, dtype: DType = u32) -> Val:
        """A 32-bit special register, read once where the kernel begins."""
        if (name, dtype) not in self._special:
            with self._at_entry():
                given = "lane" if name == "laneid" else name.replace(".", "_")
                register = Register(dtype, self._unique(given), name)
                self.emit(f"mov.{dtype}", register, Constant(f"%{name}"))
                self._special[name, dtype] = Val(self._kernel, register, self._blocks[-1])
        return self._special[name, dtype]

    def _of_axis(self, register: str, axis: str, dtype: DType) -> Val:
        if axis not in ("x", "y", "z"):
            raise ValueError(f'the axis of {register} must be "x", "y" or "z", got {axis!r}')
        return self.special(f"{register}.{axis}", dtype)

    # ---- shuffles

    def shuffle(
        self,
        mode: str,
        value: Val,
        lane: Val | int,
        *,
        width: int = 32,
        mask: int = FULL_WARP,
    ) -> Val:
        """The value of another lane.

        Args:
          mode: "idx" (of lane `lane`), "up" (own minus `lane`), "down" (own plus `lane`) or
            "bfly" (own xor `lane`). A lane that would leave its segment gets its own value.
          value: 32 or 64 bits.
          lane: the number that `mode` is about.
          width: lanes of a segment, a power of two.
          mask: the lanes that take part; all of them come here together.
        """
        if mode not in ("idx", "up", "down", "bfly"):
            raise ValueError(f'shuffle mode {mode!r} is none of "idx", "up", "down", "bfly"')
        if width not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"a shuffle's {width=} is a power of two up to 32")
        if value.dtype.bits == 64:
            halves = self._kernel.unpack(value, b32)
            low, high = (self.shuffle(mode, v, lane, width=width, mask=mask) for v in halves)
            return self._kernel.bitcast(self._kernel.pack(low, high), value.dtype)
        clamp = 0 if mode == "up" else 31
        segment = (32 - width) << 8 | clamp
        return self.op(f"shfl.sync.{mode}.b32", value.dtype, value, lane, segment, mask)

    # ---- votes

    def ballot(self, where: Val, mask: int = FULL_WARP) -> Val:
        """One bit for each lane whose predicate holds, as b32."""
        return self.op("vote.sync.ballot.b32", b32, where, mask)

    def any(self, where: Val, mask: int = FULL_WARP) -> Val:
        """The predicate "some lane's predicate holds"."""
        return self.op("vote.sync.any.pred", pred, where, mask)

    def all(self, where: Val, mask: int = FULL_WARP) -> Val:
        """The predicate "every lane's predicate holds"."""
        return self.op("vote.sync.all.pred", pred, where, mask)

    # ---- barriers

    def barrier(self, number: int = 0) -> None:
        """Waits for all threads of the block, which then see each other's writes."""
        self.emit("bar.sync", number)

    def fence(self, scope: str = "gpu") -> None:
        """Orders this thread's memory accesses for all of "cta", "gpu" or "sys"."""
        self.emit(f"fence.acq_rel.{scope}")
