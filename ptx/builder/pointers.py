"""Typed pointers into global and shared memory: addresses, loads, stores."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from ptx.builder.text import Address, Constant, Register, Symbol, Vector, check_dtype, register_type
from ptx.builder.values import Scalar, Val, Var
from ptx.isa.dtypes import DType, bf16, f16, s32, s64, u32, u64

if TYPE_CHECKING:
    from ptx.builder.kernel_builder import Kernel

__all__ = ["Pointer"]


@dataclasses.dataclass(frozen=True, eq=False)
class Pointer:
    """An address, in elements of one type; made by `Kernel.pointer` and `.shared`.

    An index is a number of elements: a Python integer becomes part of the instruction, a register
    costs one multiply-add. Global addresses are 64-bit: a 32-bit index is widened before it is
    multiplied, and a tensor of more than 2^31 elements takes a 64-bit index. Shared addresses are
    32-bit. `p + index` is the pointer `index` elements on; use it to hoist an address.

    Attributes:
      kernel: the kernel it belongs to.
      dtype: type of one element.
      space: "global" or "shared".
      base: the register, or the array's name, that addresses start from.
      offset: bytes from there.
      readonly: memory that nothing writes while the kernel runs; loads take the `.nc` path.
    """

    kernel: Kernel
    dtype: DType
    space: str
    base: Val | Symbol
    offset: int = 0
    readonly: bool = False

    # ---- addresses

    def __add__(self, index: Val | int) -> Pointer:
        """The pointer `index` elements on."""
        return self._moved(index, self.dtype.bytes)

    def add_bytes(self, count: Val | int) -> Pointer:
        """The pointer `count` bytes on."""
        return self._moved(count, 1)

    def __sub__(self, index: int) -> Pointer:
        return self + -index

    def __iadd__(self, index: object) -> Pointer:
        raise TypeError(
            "a pointer is immutable: write q = p + index, or advance p.variable() in a loop"
        )

    def view(self, dtype: DType) -> Pointer:
        """The same place as elements of another type, for example f16 as f16x2."""
        check_dtype(dtype)
        return dataclasses.replace(self, dtype=dtype)

    def variable(self, name: str | None = None) -> Pointer:
        """A pointer in a register of its own, which `advance` can move, for example in a loop."""
        base = self._register()
        moving = self.kernel.var(base.dtype, base + self.offset, name)
        return dataclasses.replace(self, base=moving, offset=0)

    def advance(self, index: Val | int) -> None:
        """Moves a `variable()` pointer by `index` elements."""
        if not isinstance(self.base, Var):
            raise TypeError("only a pointer made by p.variable() advances: write q = p + index")
        moved = self._moved(index, self.dtype.bytes)
        assert isinstance(moved.base, Val)
        if moved.base is self.base:
            step = moved.offset - self.offset
            variable = self.base
            if step >= 0:
                variable += step
            else:
                variable -= -step
        else:
            self.base.set(moved.base)

    def address(self) -> Address:
        """The operand of a load or store at this place."""
        base = self.base
        if isinstance(base, Val) and not -(1 << 31) <= self.offset < 1 << 31:
            # The constant part of an address has 32 bits.
            return Address(self.kernel.add(base, self.offset % (1 << base.dtype.bits)).register)
        return Address(self.kernel.use(base) if isinstance(base, Val) else base, self.offset)

    # ---- loads and stores

    @overload
    def load(
        self, index: Val | int = 0, count: None = None, *, where: Val | None = None,
        otherwise: Scalar = 0, hint: str | None = None,
    ) -> Val: ...  # fmt: skip
    @overload
    def load(
        self, index: Val | int, count: int, *, where: Val | None = None,
        otherwise: Scalar = 0, hint: str | None = None,
    ) -> tuple[Val, ...]: ...  # fmt: skip
    def load(
        self,
        index: Val | int = 0,
        count: int | None = None,
        *,
        where: Val | None = None,
        otherwise: Scalar = 0,
        hint: str | None = None,
    ) -> Val | tuple[Val, ...]:
        """Reads one element, or `count` in a row with one instruction.

        Args:
          index: in elements.
          count: 1, 2 or 4; None for a single value instead of a tuple. The vector has 16 bytes at
            most and lies at a multiple of its size.
          where: a predicate; lanes where it is off do not read.
          otherwise: the value of those lanes.
          hint: cache modifiers of global loads, as in PTX: "cg", "L1::no_allocate", "L2::128B".

        Returns:
          Registers of the pointer's type; 8-bit integers arrive as 32-bit ones.
        """
        self._check_count(count)
        moved = self._moved(index, self.dtype.bytes)
        parts = ["ld", self.space, *self._load_modifiers(hint), *_vector(count), self._memory_type]
        values = [self._fresh(".".join(parts[:2])) for _ in range(count or 1)]
        if where is not None:
            for value in values:
                fill = self.kernel.literal(otherwise, value.dtype)
                self.kernel.emit(f"mov.{register_type(value.dtype)}", value, fill)
        destination = values[0] if count in (None, 1) else values
        self.kernel.emit(".".join(parts), destination, moved.address(), where=where)
        return values[0] if count is None else tuple(values)

    def store(
        self,
        index: Val | int,
        value: Scalar | Sequence[Scalar],
        *,
        where: Val | None = None,
        hint: str | None = None,
    ) -> None:
        """Writes one value, or 2 or 4 in a row with one instruction; arguments as for `load`."""
        self._check_writable("store")
        count = len(value) if isinstance(value, Sequence) else None
        self._check_count(count)
        moved = self._moved(index, self.dtype.bytes)
        modifiers = hint.split(".") if hint else []
        name = ".".join(["st", self.space, *modifiers, *_vector(count), self._memory_type])
        source = self.stored(value)
        self.kernel.emit(name, moved.address(), source, where=where)

    def red(
        self, index: Val | int, value: Scalar | Sequence[Scalar], *, where: Val | None = None
    ) -> None:
        """Adds to memory atomically, without an answer.

        Args:
          index: in elements.
          value: one value, or 2 or 4 f32 that are added with one instruction (sm_90; not one
            transaction: each element is atomic by itself. Denormals are flushed). On shared
            memory f32 adds are compare-and-swap loops.
          where: a predicate that guards it.

        Raises:
          UnsupportedError: the target lacks it, for example bf16 below sm_90.
        """
        self._check_writable("red")
        moved = self._moved(index, self.dtype.bytes)
        source = self.stored(value)
        halves = self.dtype.lanes == 2 or self.dtype in (f16, bf16)
        count = len(value) if isinstance(value, Sequence) else None
        dtype = u64 if self.dtype is s64 else self.dtype  # which PTX adds 64-bit integers as
        parts = ["red", self.space, "add", *["noftz"] * halves, *_vector(count), dtype.name]
        self.kernel.emit(".".join(parts), moved.address(), source, where=where)

    # ---- the machinery

    def _moved(self, index: Val | int, scale: int) -> Pointer:
        if not isinstance(index, Val):
            if isinstance(index, bool) or not isinstance(index, numbers.Integral):
                raise TypeError(
                    f"an index is an integer register or a Python integer, not {index!r}"
                )
            return dataclasses.replace(self, offset=self.offset + int(index) * scale)
        if not index.dtype.is_integer or index.dtype.bits < 32:
            raise TypeError(f"an index is a 32- or 64-bit integer, not {index!r}")
        base = self._register()
        if self.space == "shared" and index.dtype.bits != 32:
            raise TypeError(f"shared memory takes a 32-bit index, not {index!r}")
        if self.space == "global" and index.dtype.bits == 32:
            name = f"mad.wide.{index.dtype}"
        else:  # the low half of a product is the same for signed and unsigned
            name = f"mad.lo.{base.dtype}"
        if scale == 1 and name.startswith("mad.lo"):
            moved = self.kernel.op(f"add.{base.dtype}", base.dtype, base, index)
        else:
            moved = self.kernel.op(name, base.dtype, index, scale, base)
        return dataclasses.replace(self, base=moved)

    def _register(self) -> Val:
        if isinstance(self.base, Symbol):
            return self.kernel.address_register(self.base)
        return self.base

    def _load_modifiers(self, hint: str | None) -> list[str]:
        if self.space != "global":
            if hint:
                raise TypeError(f"cache hint {hint!r} is for global memory, not shared")
            return []
        readonly = ["nc"] if self.readonly else []
        if hint and "::" not in hint:
            return [hint, *readonly]
        return [*readonly, *(hint.split(".") if hint else [])]

    @property
    def _memory_type(self) -> str:
        return register_type(self.dtype).name

    def _fresh(self, origin: str) -> Val:
        return self.kernel.fresh(self.register_dtype, origin)

    @property
    def register_dtype(self) -> DType:
        """Type of a loaded element: the pointer's own, but 32-bit for 8-bit integers."""
        if self.dtype.bits == 8:
            return s32 if self.dtype.kind == "signed" else u32
        return self.dtype

    def stored(self, value: Scalar | Sequence[Scalar]) -> Register | Constant | Vector:
        """The operand of what is stored: a register or constant, or a vector of registers."""
        if not isinstance(value, Sequence):
            return self.kernel.literal(value, self.register_dtype)
        registers = [self._in_register(element) for element in value]
        return registers[0] if len(registers) == 1 else Vector(tuple(registers))

    def _in_register(self, value: Scalar) -> Register:
        operand = self.kernel.literal(value, self.register_dtype)
        if isinstance(operand, Register):
            return operand
        name = f"mov.{register_type(self.register_dtype)}"
        return self.kernel.op(name, self.register_dtype, operand).register

    def _check_count(self, count: int | None) -> None:
        if count in (None, 1):
            return
        if count not in (2, 4) or count * self.dtype.bytes > 16:
            raise ValueError(
                f"{count} x {self.dtype} is not a vector: 2 or 4 elements of 16 bytes together at "
                "most; p.view(f16x2) and p.view(b32) load more halves at once"
            )

    def _check_writable(self, what: str) -> None:
        if self.readonly:
            raise TypeError(f"{what} through a pointer that was declared readonly")


def _vector(count: int | None) -> list[str]:
    return [] if count in (None, 1) else [f"v{count}"]
