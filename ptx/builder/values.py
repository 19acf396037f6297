"""Registers as Python values: immutable `Val`, mutable `Var`."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ptx.builder.text import Register
from ptx.isa.dtypes import DType

if TYPE_CHECKING:
    from ptx.builder.kernel_builder import Kernel

__all__ = ["Block", "Number", "Scalar", "Val", "Var"]


class Block:
    """A `with` block of the kernel; a value lives in the block that defines it."""

    def __init__(self, name: str):
        self.name = name


class Val:
    """A typed register that is written once.

    Operators emit instructions: `+ - *` (also `/` on floats, `//` and `%` on unsigned integers),
    `& | ^ ~ << >>`, unary `-`, and the comparisons `< <= > >=`, which give predicates. Both sides
    have one type; a Python number takes the type of the other side. Floating-point `+ - *` round
    to nearest even and are never contracted: a fused product is `Kernel.fma`.

    What a register cannot do raises TypeError at once: `bool(val)` (so also `if val`, `and`,
    `or`, `a < b < c`), `val == other` (write `val.eq(other)`), `val += 1`, mixed types, and use
    outside the `with` block that defines the value.
    """

    __slots__ = ("block", "kernel", "register")

    def __init__(self, kernel: Kernel, register: Register, block: Block):
        self.kernel, self.register, self.block = kernel, register, block

    @property
    def dtype(self) -> DType:
        return self.register.dtype

    def __repr__(self) -> str:
        name = self.register.name or f"result of {self.register.origin}"
        return f"{type(self).__name__}({name}, {self.dtype})"

    # ---- arithmetic

    def __add__(self, other: Scalar) -> Val:
        return self.kernel.add(self, other)

    def __radd__(self, other: Number) -> Val:
        return self.kernel.add(other, self)

    def __sub__(self, other: Scalar) -> Val:
        return self.kernel.sub(self, other)

    def __rsub__(self, other: Number) -> Val:
        return self.kernel.sub(other, self)

    def __mul__(self, other: Scalar) -> Val:
        return self.kernel.mul(self, other)

    def __rmul__(self, other: Number) -> Val:
        return self.kernel.mul(other, self)

    def __truediv__(self, other: Scalar) -> Val:
        self._only_floats("/", "//")
        return self.kernel.div(self, other)

    def __rtruediv__(self, other: Number) -> Val:
        self._only_floats("/", "//")
        return self.kernel.div(other, self)

    def __floordiv__(self, other: Scalar) -> Val:
        self._only_unsigned("//", "div")
        return self.kernel.div(self, other)

    def __rfloordiv__(self, other: Number) -> Val:
        self._only_unsigned("//", "div")
        return self.kernel.div(other, self)

    def __mod__(self, other: Scalar) -> Val:
        self._only_unsigned("%", "rem")
        return self.kernel.rem(self, other)

    def __rmod__(self, other: Number) -> Val:
        self._only_unsigned("%", "rem")
        return self.kernel.rem(other, self)

    def __neg__(self) -> Val:
        return self.kernel.neg(self)

    def __abs__(self) -> Val:
        return self.kernel.abs(self)

    # ---- bits

    def __and__(self, other: Val | int) -> Val:
        return self.kernel.bitwise("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Val | int) -> Val:
        return self.kernel.bitwise("or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Val | int) -> Val:
        return self.kernel.bitwise("xor", self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Val:
        return self.kernel.invert(self)

    def __lshift__(self, other: Val | int) -> Val:
        return self.kernel.shift_left(self, other)

    def __rshift__(self, other: Val | int) -> Val:
        return self.kernel.shift_right(self, other)

    # ---- comparisons

    def __lt__(self, other: Scalar) -> Val:
        return self.kernel.compare("lt", self, other)

    def __le__(self, other: Scalar) -> Val:
        return self.kernel.compare("le", self, other)

    def __gt__(self, other: Scalar) -> Val:
        return self.kernel.compare("gt", self, other)

    def __ge__(self, other: Scalar) -> Val:
        return self.kernel.compare("ge", self, other)

    def eq(self, other: Scalar) -> Val:
        """The predicate `self == other`; false for NaN."""
        return self.kernel.compare("eq", self, other)

    def ne(self, other: Scalar) -> Val:
        """The predicate `self != other`; true for NaN."""
        return self.kernel.compare("neu" if self.dtype.is_float else "ne", self, other)

    # ---- what a register cannot do

    __array_ufunc__ = None  # numpy numbers leave `number + val` to Val
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(
            f"{self!r} == ... has no answer while the kernel is being written (`in` asks it too): "
            "for a predicate write a.eq(b)"
        )

    def __ne__(self, other: object) -> NoReturn:
        raise TypeError(
            f"{self!r} != ... has no answer while the kernel is being written: "
            "for a predicate write a.ne(b)"
        )

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no truth value while the kernel is being written: branch with "
            "k.if_(p), choose with k.select(p, a, b), and combine predicates with & | ~ "
            "(`and`, `or`, `not` and a < b < c ask for a truth value)"
        )

    def __index__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no number while the kernel is being written: loop with k.loop(...)"
        )

    def __float__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no number while the kernel is being written: convert with k.convert(...)"
        )

    def _immutable(self, other: object) -> Any:
        raise TypeError(
            f"{self!r} is immutable, so `+=` and the like cannot change its register: write "
            "b = a + 1 for a new value, or carry it in a = k.var(...)"
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _immutable
    __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _immutable

    # ---- checks

    def _only_floats(self, operator: str, instead: str) -> None:
        if not self.dtype.is_float:
            raise TypeError(
                f"{operator} divides floats, and {self!r} is {self.dtype}: use {instead}"
            )

    def _only_unsigned(self, operator: str, method: str) -> None:
        if self.dtype.kind != "unsigned":
            raise TypeError(
                f"{operator} is for unsigned integers, and {self!r} is {self.dtype}: PTX rounds "
                f"toward zero where Python rounds down; k.{method}(a, b) is PTX's"
            )


def _update(name: str) -> Callable[[Var, Scalar], Var]:
    """A method that changes a variable in place, by one instruction."""

    def update(variable: Var, other: Scalar) -> Var:
        variable.kernel.update(variable, name, other)
        return variable

    return update


class Var(Val):
    """A register that can be written again, made by `Kernel.var`: `total += x`, `total.set(x)`.

    Copies of the Python name are the same register: `value()` takes a snapshot.
    """

    __slots__ = ()

    def set(self, value: Scalar) -> None:
        """Writes `value`, of the same type or a Python number, to the register."""
        self.kernel.assign(self, value)

    def value(self) -> Val:
        """The present value, which later writes do not change."""
        return self.kernel.copy(self)

    __iadd__, __isub__, __imul__ = (_update(name) for name in ("add", "sub", "mul"))
    __iand__, __ior__, __ixor__ = (_update(name) for name in ("and", "or", "xor"))
    __ilshift__, __irshift__ = (_update(name) for name in ("shl", "shr"))

    def __itruediv__(self, other: Scalar) -> Var:
        self.set(self / other)
        return self

    def __ifloordiv__(self, other: Scalar) -> Var:
        self.set(self // other)
        return self

    def __imod__(self, other: Scalar) -> Var:
        self.set(self % other)
        return self


Number: TypeAlias = int | float
Scalar: TypeAlias = Val | int | float


def is_number(value: object) -> bool:
    """Whether `value` is a Python or numpy number; a bool is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
