"""Division by numbers that are known when a kernel is launched: a product and a shift.

Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptx.builder import Val
from ptx.isa.dtypes import u32

__all__ = ["divided", "inverse"]


def inverse(divisor: int) -> tuple[int, int]:
    """The factor and the shift by which numbers below 2**31 are divided.

    Args:
      divisor: from 1 to 2**31; 0, where a launch has nothing to do, counts as 1.
    """
    divisor = max(divisor, 1)
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


def divided(number: Val, divisor: Val, inverse: Sequence[Val]) -> tuple[Val, Val]:
    """The quotient and the remainder of a u32 below 2**31, by the divisor's `inverse`."""
    k, (factor, shift) = number.kernel, inverse
    quotient = k.convert(k.shift_right(k.mul_wide(number, factor), shift), u32)
    return quotient, number - quotient * divisor
