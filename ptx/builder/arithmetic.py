"""Arithmetic, bits, comparisons and choices."""

from __future__ import annotations

import numbers

from ptx.builder.emitter import Emitter
from ptx.builder.text import Constant, Register, register_type
from ptx.builder.values import Scalar, Val, Var, is_number
from ptx.isa.dtypes import DTYPES, DType, pred, u32

__all__ = ["Arithmetic"]

_TERNARY_NAMES = {"fma": "fma.rn", "mad": "mad.lo"}


class Arithmetic(Emitter):
    """The methods of a kernel that calculate.

    Every argument is a register or, where the type follows from another argument, a Python
    number. Source: PTX ISA, "Integer Arithmetic", "Floating Point", "Comparison and Selection",
    "Logic and Shift" instructions.
    """

    # ---- what the operators of Val call

    def add(self, a: Scalar, b: Scalar) -> Val:
        """`a + b`; integers wrap, floats round to nearest even."""
        if (same := _unchanged(a, b, 0)) is not None:
            return same
        return self._operate("add", a, b)

    def sub(self, a: Scalar, b: Scalar) -> Val:
        """`a - b`; integers wrap, floats round to nearest even."""
        return self._operate("sub", a, b)

    def mul(self, a: Scalar, b: Scalar) -> Val:
        """`a * b`; of integers the low half, of floats rounded to nearest even."""
        if (same := _unchanged(a, b, 1)) is not None:
            return same
        return self._operate("mul", a, b)

    def div(self, a: Scalar, b: Scalar) -> Val:
        """`a / b` of integers, f32 or f64; integers round toward zero, floats to nearest even."""
        if isinstance(a, Val) and (power := _power_of_two(a, b)) is not None:
            return self.shift_right(a, power)
        return self._operate("div", a, b)

    def rem(self, a: Scalar, b: Scalar) -> Val:
        """Remainder of integers, with the sign of a."""
        if isinstance(a, Val) and (power := _power_of_two(a, b)) is not None:
            return self.bitwise("and", a, (1 << power) - 1)
        return self._operate("rem", a, b)

    def neg(self, a: Val) -> Val:
        return self._operate("neg", a)

    def abs(self, a: Val) -> Val:
        return self._operate("abs", a)

    def compare(self, order: str, a: Scalar, b: Scalar) -> Val:
        """The predicate a `order` b: "eq", "ne", "lt", "le", "gt", "ge", for floats "neu"."""
        dtype = self.common_type(a, b)
        if dtype is pred:
            raise TypeError("predicates are not compared: a ^ b says whether they differ")
        return self.op(f"setp.{order}.{dtype}", pred, *self._literals(a, b))

    def bitwise(self, name: str, a: Val | int, b: Val | int) -> Val:
        """The "and", "or" or "xor" of integers, bits or predicates."""
        return self._operate(name, a, b)

    def invert(self, a: Val) -> Val:
        """All bits, or the predicate, reversed."""
        return self._operate("not", a)

    def shift_left(self, a: Val, amount: Val | int) -> Val:
        return self._shift("shl", a, amount)

    def shift_right(self, a: Val, amount: Val | int) -> Val:
        """Signed integers keep their sign, so that it rounds down; others take zeros in."""
        return self._shift("shr", a, amount)

    def update(self, variable: Var, name: str, other: Scalar) -> None:
        """`variable = variable <name> other`, in place."""
        dtype = variable.dtype
        shift = name in ("shl", "shr")
        source = self._shift_amount(other) if shift else self.literal(other, dtype)
        register = self.use(variable)
        self.emit(self._mnemonic(name, dtype), register, register, source)

    # ---- more arithmetic

    def fma(self, a: Scalar, b: Scalar, c: Scalar) -> Val:
        """`a * b + c` of floats, rounded once, to nearest even."""
        return self._operate("fma", a, b, c)

    def mad(self, a: Scalar, b: Scalar, c: Scalar) -> Val:
        """`a * b + c` of integers, low half."""
        return self._operate("mad", a, b, c)

    def mul_wide(self, a: Scalar, b: Scalar) -> Val:
        """The whole product of integers, in a type twice as wide."""
        dtype = self.common_type(a, b)
        return self.op(f"mul.wide.{dtype}", _twice(dtype), *self._literals(a, b))

    def mad_wide(self, a: Scalar, b: Scalar, c: Scalar) -> Val:
        """`a * b + c`, the product whole, c and the result twice as wide as a and b."""
        dtype = self.common_type(a, b)
        wide = _twice(dtype)
        return self.op(f"mad.wide.{dtype}", wide, *self._literals(a, b), self.literal(c, wide))

    def min(self, a: Scalar, b: Scalar) -> Val:
        """The smaller; of a float and NaN, the float."""
        return self._operate("min", a, b)

    def max(self, a: Scalar, b: Scalar) -> Val:
        """The larger; of a float and NaN, the float."""
        return self._operate("max", a, b)

    def sqrt(self, a: Val) -> Val:
        """Square root of f32 or f64, rounded to nearest even."""
        return self.op(f"sqrt.rn.{a.dtype}", a.dtype, a)

    # ---- choices

    def select(self, where: Val, a: Scalar, b: Scalar, dtype: DType | None = None) -> Val:
        """`a` where the predicate holds, else b.

        Args:
          where: the predicate.
          a: a register or number.
          b: another.
          dtype: needed where both are numbers.
        """
        dtype = self.common_type(a, b) if dtype is None else dtype
        name = f"selp.{register_type(dtype)}"
        pair = self.literal(a, dtype), self.literal(b, dtype)
        return self.op(name, dtype, *pair, self.predicate(where))

    def isnan(self, a: Val) -> Val:
        """The predicate "a is NaN"."""
        return self.op(f"setp.nan.{a.dtype}", pred, a, a)

    # ---- the machinery

    def _operate(self, name: str, *values: Scalar) -> Val:
        """An operation on values of one type, which is the result's too."""
        dtype = self.common_type(*values)
        return self.op(self._mnemonic(name, dtype), dtype, *self._literals(*values))

    def _literals(self, *values: Scalar) -> list[Register | Constant]:
        dtype = self.common_type(*values)
        return [self.literal(value, dtype) for value in values]

    def _shift(self, name: str, a: Val, amount: Val | int) -> Val:
        return self.op(self._mnemonic(name, a.dtype), a.dtype, a, self._shift_amount(amount))

    def _shift_amount(self, amount: Scalar) -> Register | Constant:
        dtype = amount.dtype if isinstance(amount, Val) and amount.dtype.is_integer else u32
        return self.literal(amount, dtype)

    def _mnemonic(self, name: str, dtype: DType) -> str:
        """The instruction for an operation on a type; TypeError where PTX has no such thing."""
        if name in ("and", "or", "xor", "not", "shl"):
            if dtype.is_float or (name == "shl" and dtype is pred):
                raise TypeError(f"{dtype} has no {name}: use integers, or k.bitcast(value, b32)")
            return f"{name}.{dtype if dtype is pred else f'b{dtype.bits}'}"
        if dtype.kind in ("bits", "predicate") or dtype.name == "tf32":
            raise TypeError(f"{dtype} has no {name}: use k.bitcast(value, dtype) for a number type")
        if name == "shr" and dtype.is_float:
            raise TypeError(f"{dtype} has no shr: use integers, or k.bitcast(value, u32)")
        if name in ("fma", "mad", "rem") and dtype.is_float != (name == "fma"):
            raise TypeError(f"{dtype} has no {name}: fma is for floats, mad and rem for integers")
        if name in _TERNARY_NAMES:
            return f"{_TERNARY_NAMES[name]}.{dtype}"
        if dtype.is_float and name in ("add", "sub", "mul", "div"):
            return f"{name}.rn.{dtype}"
        return f"{name}{'.lo' if name == 'mul' else ''}.{dtype}"


def _power_of_two(a: Val, b: Scalar) -> int | None:
    """The n of an unsigned division by 2^n, which ptxas does not always make a shift."""
    if a.dtype.kind != "unsigned" or not isinstance(b, numbers.Integral):
        return None
    number = int(b)
    return number.bit_length() - 1 if number > 0 and number.bit_count() == 1 else None


def _twice(dtype: DType) -> DType:
    if not dtype.is_integer or dtype.bits not in (16, 32):
        raise TypeError(f"wide products are of 16- and 32-bit integers, not {dtype}")
    return DTYPES[f"{dtype.name[0]}{dtype.bits * 2}"]


def _unchanged(a: Scalar, b: Scalar, neutral: int) -> Val | None:
    """The integer Val that `neutral` leaves as it is; None where there is none."""
    for value, other in ((a, b), (b, a)):
        if not isinstance(value, Val) or isinstance(value, Var) or not is_number(other):
            continue
        if value.dtype.is_integer and other == neutral:
            value.kernel.use(value)
            return value
    return None
