"""Quotients by a product and a shift are exact."""

import numpy as np
import pytest

from ptx.tile.division import inverse

POWERS = [1 << i for i in range(32)]
DIVISORS = sorted({d for p in POWERS for d in (p - 1, p, p + 1) if 1 <= d <= 2**31} | {641, 10**9})


@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_are_exact(divisor):
    """Of numbers beside multiples of the divisor, the largest among them, and of others."""
    factor, shift = inverse(divisor)
    assert factor < 2**32
    assert shift < 64
    last = (2**31 - 1) // divisor
    drawn = np.random.default_rng(divisor).integers(0, last, 500, endpoint=True).tolist()
    multiples = [times * divisor for times in (0, 1, last, *drawn)]
    numbers = {n + step for n in multiples for step in (-1, 0, 1, divisor // 2)} | {2**31 - 1}
    for number in numbers:
        if 0 <= number < 2**31:
            assert number * factor >> shift == number // divisor


def test_nothing_to_do():
    assert inverse(0) == inverse(1)
