"""Registers as Python values: immutable `Val`, mutable `Var`."""

from __future__ import annotations

import numbers
import operator
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


def _operator(method: str, *leading: str) -> Callable[[Val, Scalar], Val]:
    """`value <operator> other`, by a method of the kernel."""

    def operate(value: Val, other: Scalar) -> Val:
        return getattr(value.kernel, method)(*leading, value, other)

    return operate


def _operators(
    method: str, check: Callable[[Val, str], None] | None = None
) -> tuple[Callable[[Val, Scalar], Val], Callable[[Val, Number], Val]]:
    """`value <operator> other` and `number <operator> value`, by a method of the kernel."""

    def operate(value: Val, other: Scalar) -> Val:
        if check is not None:
            check(value, method)
        return getattr(value.kernel, method)(value, other)

    def reflected(value: Val, number: Number) -> Val:
        if check is not None:
            check(value, method)
        return getattr(value.kernel, method)(number, value)

    return operate, reflected


def _check_float(value: Val, method: str) -> None:
    if not value.dtype.is_float:
        raise TypeError(f"/ divides floats, and {value!r} is {value.dtype}: use //")


def _check_unsigned(value: Val, method: str) -> None:
    if value.dtype.kind != "unsigned":
        symbol = {"div": "//", "rem": "%"}[method]
        raise TypeError(
            f"{symbol} is for unsigned integers, and {value!r} is {value.dtype}: PTX rounds "
            f"toward zero where Python rounds down; k.{method}(a, b) is PTX's"
        )


def _refusal(message: str) -> Callable[..., Any]:
    """A method that raises TypeError: `message` follows the value."""

    def refuse(value: Val, *others: object) -> NoReturn:
        raise TypeError(f"{value!r} {message}")

    return refuse


_immutable = _refusal(
    "is immutable, so `+=` and the like cannot change its register: write b = a + 1 for a new "
    "value, or carry it in a = k.var(...)"
)


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

    # ---- operators

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div", _check_float)
    __floordiv__, __rfloordiv__ = _operators("div", _check_unsigned)
    __mod__, __rmod__ = _operators("rem", _check_unsigned)
    __and__ = __rand__ = _operator("bitwise", "and")
    __or__ = __ror__ = _operator("bitwise", "or")
    __xor__ = __rxor__ = _operator("bitwise", "xor")
    __lshift__, __rshift__ = _operator("shift_left"), _operator("shift_right")
    __lt__, __le__ = _operator("compare", "lt"), _operator("compare", "le")
    __gt__, __ge__ = _operator("compare", "gt"), _operator("compare", "ge")

    def __neg__(self) -> Val:
        return self.kernel.neg(self)

    def __abs__(self) -> Val:
        return self.kernel.abs(self)

    def __invert__(self) -> Val:
        return self.kernel.invert(self)

    def eq(self, other: Scalar) -> Val:
        """The predicate `self == other`; false for NaN."""
        return self.kernel.compare("eq", self, other)

    def ne(self, other: Scalar) -> Val:
        """The predicate `self != other`; true for NaN."""
        return self.kernel.compare("neu" if self.dtype.is_float else "ne", self, other)

    # ---- what a register cannot do

    __array_ufunc__ = None  # numpy numbers leave `number + val` to Val
    __hash__ = object.__hash__

    __eq__ = _refusal(
        "== ... has no answer while the kernel is being written (`in` asks it too): "
        "for a predicate write a.eq(b)"
    )
    __ne__ = _refusal(
        "!= ... has no answer while the kernel is being written: for a predicate write a.ne(b)"
    )
    __bool__ = _refusal(
        "has no truth value while the kernel is being written: branch with k.if_(p), choose with "
        "k.select(p, a, b), and combine predicates with & | ~ (`and`, `or`, `not` and a < b < c "
        "ask for a truth value)"
    )
    __index__ = _refusal("has no number while the kernel is being written: loop with k.loop(...)")
    __float__ = _refusal(
        "has no number while the kernel is being written: convert with k.convert(...)"
    )
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _immutable
    __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _immutable


def _update(name: str) -> Callable[[Var, Scalar], Var]:
    """A method that changes a variable in place, by one instruction."""

    def update(variable: Var, other: Scalar) -> Var:
        variable.kernel.update(variable, name, other)
        return variable

    return update


def _reassignment(operate: Callable[[Any, Any], Val]) -> Callable[[Var, Scalar], Var]:
    """A method that sets a variable to a result."""

    def reassign(variable: Var, other: Scalar) -> Var:
        variable.set(operate(variable, other))
        return variable

    return reassign


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
    __itruediv__ = _reassignment(operator.truediv)
    __ifloordiv__, __imod__ = _reassignment(operator.floordiv), _reassignment(operator.mod)


Number: TypeAlias = int | float
Scalar: TypeAlias = Val | int | float


def is_number(value: object) -> bool:
    """Whether `value` is a Python or numpy number; a bool is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
