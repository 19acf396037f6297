"""Floating-point arithmetic, rounded as IEEE 754 and PTX ask: exactly once, in each direction.

Arrays are float16, bfloat16, float32 or float64. A NaN result is the one that PTX names:
0x7fff for 16 bits, 0x7fffffff for float32; of float64, PTX names none.

Sums and products of the three narrower types are formed in float64 rounded to odd, from where
one more rounding gives what a single one would: S. Boldo, G. Melquiond: Emulation of FMA and
correctly rounded sums: proved algorithms using rounding to odd (IEEE Trans. Comp., 2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np

from ptx.emulator.lanes import UNSIGNED

__all__ = [
    "add",
    "canonical",
    "divide",
    "flush",
    "fma",
    "from_integer",
    "multiply",
    "narrow",
    "relu",
    "round_integral",
    "saturate",
    "square_root",
]

_BF16 = np.dtype(ml_dtypes.bfloat16)
_NAN = {np.dtype(np.float16): 0x7FFF, _BF16: 0x7FFF, np.dtype(np.float32): 0x7FFFFFFF}
_EXPONENT = {
    np.dtype(np.float16): 0x7C00,
    _BF16: 0x7F80,
    np.dtype(np.float32): 0x7F800000,
    np.dtype(np.float64): 0x7FF << 52,
}


def add(a: np.ndarray, b: np.ndarray, mode: str = "rn") -> np.ndarray:
    """The sum, rounded by `mode`: "rn", "rz", "rm" or "rp"."""
    if mode == "rn":
        return canonical(np.add(a, b))
    if a.dtype == np.float64:
        return _exactly(
            lambda x, y: x + y, mode, a, b, fallback=lambda x, y: _zero_sign(x + y, mode, x, y)
        )
    wide = _odd_sum(_wide(a), _wide(b))
    return canonical(narrow(_zero_sign(wide, mode, a, b), a.dtype, mode))


def multiply(a: np.ndarray, b: np.ndarray, mode: str = "rn") -> np.ndarray:
    """The product, rounded by `mode`."""
    if mode == "rn":
        return canonical(np.multiply(a, b))
    if a.dtype == np.float64:
        return _exactly(lambda x, y: x * y, mode, a, b, fallback=np.multiply)
    return canonical(narrow(_wide(a) * _wide(b), a.dtype, mode))


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str = "rn") -> np.ndarray:
    """The value of a * b + c, rounded once, by `mode`."""
    if a.dtype == np.float64:
        return _fma64(a, b, c, mode)
    product, wide_c = _wide(a) * _wide(b), _wide(c)
    if a.dtype == np.float32 and mode == "rn":
        total = product + wide_c
        # A second rounding differs only from a sum that lies, or seems to, halfway between two
        # float32; among denormals these places are others. A sum of 0 is exact.
        if not np.count_nonzero((total.view(np.int64) & 0x1FFFFFFF) == 0x10000000):
            size = np.abs(total)
            if np.minimum.reduce(size, axis=None) >= 2.0**-125:  # and no NaN
                return total.astype(np.float32)
            if not np.count_nonzero((size < 2.0**-125) & (size != 0)):
                return canonical(total.astype(np.float32))
    total = _zero_sign(_odd_sum(product, wide_c), mode, product, wide_c)
    return canonical(narrow(total, a.dtype, mode))


def divide(a: np.ndarray, b: np.ndarray, mode: str = "rn") -> np.ndarray:
    """The quotient, rounded by `mode`."""
    if mode == "rn":
        return canonical(np.divide(a, b))
    if a.dtype == np.float64:
        return _exactly(lambda x, y: x / y, mode, a, b, fallback=np.divide)
    # No quotient comes so near to a float32 that float64 takes it for the float32 itself.
    return canonical(narrow(_wide(a) / _wide(b), a.dtype, mode))


def square_root(a: np.ndarray, mode: str = "rn") -> np.ndarray:
    """The square root, rounded by `mode`."""
    if mode == "rn":
        return canonical(np.sqrt(a))
    if a.dtype == np.float64:
        return _root64(a, np.sqrt(a), mode)
    return canonical(narrow(np.sqrt(_wide(a)), a.dtype, mode))  # see `divide`


def narrow(wide: np.ndarray, dtype: np.dtype | type, mode: str = "rn") -> np.ndarray:
    """float64, exact or rounded to odd, rounded to `dtype` by `mode`."""
    dtype = np.dtype(dtype)
    result = _to_bf16(wide) if dtype == _BF16 else wide.astype(dtype)
    if mode == "rn" or dtype == np.float64:
        return result
    back = _wide(result)
    return _step(result, back < wide, back > wide, mode)


def from_integer(value: np.ndarray, dtype: np.dtype | type, mode: str = "rn") -> np.ndarray:
    """An integer rounded to `dtype` by `mode`."""
    dtype = np.dtype(dtype)
    if value.dtype.itemsize < 8 and dtype != np.float64:
        return narrow(value.astype(np.float64), dtype, mode)
    if mode == "rn" and dtype in (np.float32, np.float64):
        return value.astype(dtype)
    # The 53 highest bits to odd; far beyond what float32 and narrower types keep.
    flat = [int(v) for v in value.reshape(-1)]
    if dtype == np.float64:
        rounded = [_round_fraction(Fraction(v), mode) for v in flat]
        return np.array(rounded).reshape(value.shape)
    return narrow(np.array([_odd_integer(v) for v in flat]).reshape(value.shape), dtype, mode)


def round_integral(a: np.ndarray, mode: str) -> np.ndarray:
    """To an integral value: "rni" to the nearest even, "rzi" to zero, "rmi" down, "rpi" up."""
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    return function(a) if a.dtype != _BF16 else function(a.astype(np.float32)).astype(a.dtype)


def canonical(a: np.ndarray) -> np.ndarray:
    """The array with each NaN made the one that PTX names."""
    nan = a != a
    if not np.count_nonzero(nan) or a.dtype not in _NAN:
        return a
    bits = a.view(UNSIGNED[a.dtype.itemsize * 8])
    return np.where(nan, bits.dtype.type(_NAN[a.dtype]), bits).view(a.dtype)


def flush(a: np.ndarray) -> np.ndarray:
    """The array with denormals made zeros of the same sign (`.ftz`)."""
    bits = a.view(UNSIGNED[a.dtype.itemsize * 8])
    exponent = bits.dtype.type(_EXPONENT[a.dtype])
    small = (bits & exponent) == 0
    if not np.count_nonzero(small):
        return a
    sign = bits.dtype.type(1 << (a.dtype.itemsize * 8 - 1))
    return np.where(small, bits & sign, bits).view(a.dtype)


def relu(a: np.ndarray) -> np.ndarray:
    """Negative numbers become +0; NaN stays (`.relu`)."""
    return np.where(a <= 0, np.zeros(1, a.dtype), a)


def saturate(a: np.ndarray) -> np.ndarray:
    """Clamped to [0, 1]; NaN becomes 0 (`.sat`)."""
    zero, one = np.zeros(1, a.dtype), np.ones(1, a.dtype)
    return np.where(a > zero, np.where(a < one, a, one), zero)


# ---- the pieces


def _wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def _odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum in float64, rounded to odd: an inexact sum has 1 as its last bit."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    even = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    if not even.any():
        return total
    outwards = (error > 0) == (total > 0)
    return np.where(even, np.where(outwards, bits + 1, bits - 1), bits).view(np.float64)


def _zero_sign(total: np.ndarray, mode: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounding down, a sum that is exactly 0 is -0, unless both terms are +0."""
    if mode != "rm":
        return total
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)


def _step(result: np.ndarray, low: np.ndarray, high: np.ndarray, mode: str) -> np.ndarray:
    """The nearest value, moved to its neighbour where it lies on the wrong side.

    Args:
      result: rounded to nearest.
      low: a mask of results below the exact value.
      high: a mask of results above it.
      mode: "rz", "rm" or "rp".
    """
    negative = np.signbit(result)
    up = low & (negative if mode == "rz" else mode == "rp")
    down = high & (~negative if mode == "rz" else mode == "rm")
    kind = UNSIGNED[result.dtype.itemsize * 8]
    bits, one = result.view(kind), kind(1)
    lowest = kind(1 << (result.dtype.itemsize * 8 - 1)) | one  # the negative denormal next to 0
    zero = result == 0
    above = np.where(zero, one, np.where(negative, bits - one, bits + one))
    below = np.where(zero, lowest, np.where(negative, bits + one, bits - one))
    return np.where(up, above, np.where(down, below, bits)).view(result.dtype)


def _to_bf16(wide: np.ndarray) -> np.ndarray:
    single = wide.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    # To odd: towards zero, then the last bit set where anything was lost.
    inexact = (back != wide) & (back == back)
    bits = np.where(inexact & (np.abs(back) > np.abs(wide)), bits - np.uint32(1), bits)
    bits = np.where(inexact, bits | np.uint32(1), bits)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> 16
    rounded = np.where(wide != wide, np.uint32(0x7FFF), rounded)
    return rounded.astype(np.uint16).view(_BF16)


def _fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str) -> np.ndarray:
    if not a.shape == b.shape == c.shape:
        a, b, c = np.broadcast_arrays(a, b, c)
    plain = a * b + c
    if mode == "rn" and _all_moderate(a) and _all_moderate(b) and _all_moderate(c):
        exact = _fma_moderate(a, b, c)
        return np.where(exact != 0, exact, plain)
    near = _moderate(a) & _moderate(b) & _moderate(c) & (mode == "rn")
    exact = _fma_moderate(*(np.where(near, x, 0) for x in (a, b, c)))
    result = np.where(near & (exact != 0), exact, plain)
    far = np.flatnonzero(~near)

    def fallback(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        total = _zero_sign(x * y + z, mode, x * y, z)
        return np.where(np.isfinite(x) & np.isfinite(y) & ~np.isfinite(z), z, total)

    result.flat[far] = _exactly(
        lambda x, y, z: x * y + z, mode, *(x.flat[far] for x in (a, b, c)), fallback=fallback
    )
    return result


def _moderate(a: np.ndarray) -> np.ndarray:
    """Where no step of `_fma_moderate` overflows or loses bits to underflow."""
    size = np.abs(a)
    return (a == 0) | ((size > 2.0**-450) & (size < 2.0**450))


def _all_moderate(a: np.ndarray) -> bool:
    size = np.abs(a)
    if not np.maximum.reduce(size, axis=None) < 2.0**450:  # or there is a NaN
        return False
    return np.minimum.reduce(size, axis=None) > 2.0**-450 or bool(_moderate(a).all())


def _fma_moderate(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    high, low = _two_product(a, b)
    t_high, t_low = _two_sum(c, low)
    v_high, v_low = _two_sum(high, t_high)
    return v_high + _odd_sum(t_low, v_low)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product as high + low, exactly (T. Dekker, 1971)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _split(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = a * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _exactly(
    function: Callable[..., Fraction],
    mode: str,
    *arrays: np.ndarray,
    fallback: Callable[..., np.ndarray],
) -> np.ndarray:
    """float64 results from rational arithmetic.

    `fallback` gives what that cannot: infinities, NaN, and the sign of an exact zero.
    """
    arrays = np.broadcast_arrays(*arrays)
    plain = np.array(fallback(*arrays))
    finite = np.logical_and.reduce([np.isfinite(a) for a in arrays])
    for index in np.flatnonzero(finite):
        values = [float(a.flat[index]) for a in arrays]
        try:
            exact = function(*(Fraction(value) for value in values))
        except ZeroDivisionError:
            continue
        plain.flat[index] = _round_fraction(exact, mode, zero=plain.flat[index])
    return plain


def _root64(a: np.ndarray, root: np.ndarray, mode: str) -> np.ndarray:
    sign = np.zeros(a.shape, np.int64)
    for index in np.flatnonzero(np.isfinite(a) & (a > 0)):
        rest = Fraction(float(a.flat[index])) - Fraction(float(root.flat[index])) ** 2
        sign.flat[index] = (rest > 0) - (rest < 0)
    return _step(root, sign > 0, sign < 0, mode)


def _round_fraction(value: Fraction, mode: str, zero: float = 0.0) -> float:
    """A rational number as float64; `zero` gives the sign of an exact zero."""
    if value == 0:
        return math.copysign(0.0, zero)
    sign = -1.0 if value < 0 else 1.0
    try:
        nearest = math.copysign(float(value), sign)
        exact = Fraction(nearest)
    except OverflowError:
        nearest, exact = sign * math.inf, value + (1 if value > 0 else -1)
    if mode == "rn" or exact == value:
        return nearest
    down = value > 0 if mode == "rz" else mode == "rm"
    if exact > value if down else exact < value:
        return math.nextafter(nearest, -math.inf if down else math.inf)
    return nearest


def _odd_integer(value: int) -> float:
    """An integer as float64, rounded to odd."""
    size = abs(value)
    excess = max(0, size.bit_length() - 53)
    kept = size >> excess
    if kept << excess != size:
        kept |= 1
    return math.copysign(math.ldexp(kept, excess), value)
