"""Rows of a matrix, found and added to by number: what XLA's CPU compiler makes fast loops of."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oxijax._core.arguments.checks import is_known
from oxijax._core.arguments.precision import accumulator

__all__ = [
    "add_to_rows",
    "hidden_zero",
    "row_products",
    "row_products_or_zeros",
    "take_rows",
    "take_rows_or_zeros",
]

_SHORT = 8  # channels of rows of which LLVM makes vectors together
_LONG = 32  # of which it makes vectors one by one
_UNROLLED = 256  # instructions of a loop's iterations, which are too many to unroll it


def take_rows(
    rows: jax.Array, index: jax.Array, start: int = 0, stop: int | None = None
) -> jax.Array:
    """Rows [R, C] by their numbers, or channels of them, [..., C]; all of them exist.

    Those of bfloat16 come in float32.
    """
    if rows.dtype == jnp.bfloat16:
        return _take_bits(start, stop, rows, index)
    return _take(start, stop, rows, index)


def _take(start: int, stop: int | None, rows: jax.Array, index: jax.Array) -> jax.Array:
    rows = rows[:, start:stop]
    return rows.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _take_bits(start: int, stop: int | None, rows: jax.Array, index: jax.Array) -> jax.Array:
    """The same of bfloat16, which XLA's CPU compiler gathers from a copy of all rows in float32.

    What is gathered is widened by moving bits, of which that compiler makes vectors.
    """
    # Without the barrier a loop would have a copy of all rows as bits made before it.
    rows, index = lax.optimization_barrier((rows, index))
    found = _take(start, stop, lax.bitcast_convert_type(rows, jnp.uint16), index)
    return lax.bitcast_convert_type(found.astype(jnp.uint32) << 16, jnp.float32)


@_take_bits.defjvp
def _take_bits_jvp(
    start: int, stop: int | None, primals: Any, tangents: Any
) -> tuple[jax.Array, jax.Array]:
    (rows, index), (rows_dot, _) = primals, tangents
    # Not the value by bits: a loop that is differentiated has no rule for it any more, and a second
    # derivative would be that of bits.
    found, dot = (_take(start, stop, each, index) for each in (rows, rows_dot))
    return found.astype(jnp.float32), dot.astype(jnp.float32)


def take_rows_or_zeros(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Rows [R, C] by their numbers, uint32 [...]; zeros for those that don't exist."""
    exists, index = _existing(rows, index)
    values = take_rows(rows, index)
    if values.shape[-1] < _LONG:
        return _or_zeros(values, exists)
    return jnp.where(exists[..., None], values, 0)


@jax.custom_jvp
def _or_zeros(values: jax.Array, exists: jax.Array) -> jax.Array:
    """Values [..., C] where they exist, and zeros.

    Of a choice that is the same for all channels LLVM makes branches, in which it makes no vectors
    of rows that are short. The smaller of a value's bits and of ones or zeros has none.
    """
    unsigned = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    limit = jnp.where(exists, np.array(jnp.iinfo(unsigned).max, unsigned), np.array(0, unsigned))
    bits = lax.bitcast_convert_type(values, unsigned)
    return lax.bitcast_convert_type(jnp.minimum(bits, limit[..., None]), values.dtype)


@_or_zeros.defjvp
def _or_zeros_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (values, exists), (values_dot, _) = primals, tangents
    # Not the value by bits, as above.
    found, dot = (jnp.where(exists[..., None], each, 0) for each in (values, values_dot))
    return found, dot


def add_to_rows(
    rows: jax.Array,
    index: jax.Array,
    values: jax.Array,
    factors: jax.Array,
    zero: jax.Array,
    *,
    drop: bool = False,
) -> jax.Array:
    """Rows with values [..., C] times factors [...] added to those with these numbers.

    Args:
      rows: of C channels, one after the other in an array of any shape.
      index: the numbers of rows, integers [...].
      values: [..., C].
      factors: of the values.
      zero: see `hidden_zero`.
      drop: whether rows that don't exist are left out; without it all of them exist.
    """
    shape, channels = rows.shape, values.shape[-1]
    rows, factors = rows.reshape(-1, channels), factors.astype(rows.dtype)
    count, parts = rows.shape[0], channels // _SHORT
    if channels == 1:  # XLA's CPU compiler adds numbers faster than rows of one
        rows, updates = rows[:, 0], values[..., 0] * factors
    elif channels in (16, 24) and is_known(count) and count * parts < 2**31:
        # LLVM makes vectors of products of short rows together. To lengthen the loop costs more.
        rows = rows.reshape(-1, _SHORT)
        index = jnp.where(index < count, index, count)[..., None] * parts
        index = index + np.arange(parts, dtype=index.dtype)
        updates = values.reshape(*values.shape[:-1], parts, _SHORT) * factors[..., None, None]
    else:
        updates = values * factors[..., None]
        if channels >= _LONG:
            updates = _with_zeros(updates, zero, instructions=4)
    mode = "drop" if drop else "promise_in_bounds"
    rows = rows.at[index].add(updates, mode=mode, wrap_negative_indices=False)
    return rows.reshape(shape)


def _with_zeros(values: jax.Array, zero: jax.Array, instructions: int) -> jax.Array:
    """Values [..., C], with so many zeros added that a loop over channels is not unrolled.

    Args:
      values: of such a loop.
      zero: see `hidden_zero`.
      instructions: that find and store a value.
    """
    for _ in range(-(-_UNROLLED // values.shape[-1]) - instructions):
        values = values + zero.astype(values.dtype)
    return values


def hidden_zero(number: jax.Array) -> jax.Array:
    """A zero that no compiler knows, if it is made before the loop that uses it.

    LLVM unrolls a loop over channels whose iterations are few instructions, and then makes no
    vectors of it. With zeros to add there are more.

    Args:
      number: floats that depend on arguments of the program.
    """
    return jnp.any(number.reshape(-1)[:1] > np.inf).astype(np.float32)


def row_products(
    rows: jax.Array, index: jax.Array, values: jax.Array, zero: jax.Array
) -> jax.Array:
    """The dot product of each of these rows with its values, [..., C] -> [...].

    Args:
      rows: [R, C].
      index: their numbers, integers [...]; all of them exist.
      values: [..., C].
      zero: see `hidden_zero`.
    """
    return _dot(functools.partial(take_rows, rows, index), values, zero)


def row_products_or_zeros(
    rows: jax.Array, index: jax.Array, values: jax.Array, zero: jax.Array | None
) -> jax.Array:
    """`row_products` with numbers in uint32; 0 where there is no such row.

    Without a zero less is held, of what may be more than a block's products.
    """
    exists, index = _existing(rows, index)

    def take(start: int, stop: int) -> jax.Array:
        found = take_rows(rows, index, start, stop)
        return found if values.shape[-1] <= _SHORT else _or_zeros(found, exists)

    return jnp.where(exists, _dot(take, values, zero), 0)


def _dot(
    take: Callable[[int, int], jax.Array], values: jax.Array, zero: jax.Array | None
) -> jax.Array:
    """The dot products of values [..., C] with what `take` finds of a range of channels."""
    channels = values.shape[-1]
    if zero is not None and channels in range(2 * _SHORT, 2 * _LONG, _SHORT):
        width = channels
    else:
        # Parts of the rows are added first, channel by channel: XLA's CPU compiler makes that up to
        # three times as fast as a product with ones, and that faster than a sum over rows. Of 32
        # LLVM would make two iterations of 16 into a sequence of numbers; of more than 8 parts it
        # is slow to make anything.
        even = 8 if channels == _LONG else max(16, channels // 8)
        width = next((n for n in (even, 8) if channels % n == 0 and channels > n), channels)
    products = functools.reduce(
        operator.add,
        (
            take(first, first + width).astype(accumulator(values))
            * values[..., first : first + width]
            for first in range(0, channels, width)
        ),
    )
    if channels <= _SHORT:
        return functools.reduce(operator.add, (products[..., i] for i in range(width)))
    if zero is not None and width == channels:
        products = _with_zeros(products, zero, instructions=7)
    # Their sums, whatever precision products have by JAX's configuration.
    ones = jnp.ones(width, values.dtype)
    sums = jnp.dot(products.reshape(-1, width), ones, precision=lax.Precision.HIGHEST)
    return sums.reshape(values.shape[:-1])


def _existing(rows: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which rows exist, and numbers of rows that do: of others the first one's."""
    exists = index < rows.shape[0]
    return exists, jnp.where(exists, index, 0).astype(jnp.int32)
