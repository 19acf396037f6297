"""Sizes of dimensions, some of which `jax.export` leaves open: those are checked once known."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from oxijax._core import compat as _compat

__all__ = [
    "EXPORT_CHECKS",
    "batch_groups",
    "is_known",
    "likely",
    "require_at_least",
    "require_product",
]

#: What `jax.export.export` takes as `disabled_checks` for programs with kernels: it exports custom
#: calls of others only if it is told that they keep their meaning, as those of oxijax do.
EXPORT_CHECKS = (export.DisabledSafetyCheck.custom_call("oxijax_launch"),)


_MANY = 1 << 16  # pixels of a batch, or rows of a matrix


def is_known(*sizes: Any) -> bool:
    """Whether all of them are numbers, not symbolic dimensions."""
    return not any(export.is_symbolic_dim(size) for size in sizes)


def likely(size: Any) -> int:
    """The size, or a large one where it is not known: for choices that no result depends on."""
    return size if is_known(size) else _MANY


def require_at_least(size: Any, least: int, message: str) -> None:
    """Raises ValueError where a size is too small: now, or when the program knows it."""
    try:
        fits = size >= least
    except jax.errors.InconclusiveDimensionOperation:
        _compat.require_when_known(jnp.asarray(size) >= least, message)
        return
    if not fits:
        raise ValueError(message)


def require_product(factors: tuple[Any, ...], most: int, message: str) -> None:
    """Raises ValueError where a product of sizes is too large: now, or when it is known."""
    if is_known(*factors):
        if math.prod(factors) > most:
            raise ValueError(message)
        return
    # A program knows sizes in 32 bits, in which a product might not fit.
    quotient: Any = most
    *divisors, last = factors
    for divisor in divisors:
        quotient = quotient // divisor
    _compat.require_when_known(jnp.asarray(last) <= jnp.asarray(quotient), message)


def batch_groups(ctx: Any, batch: Any) -> int:
    """Groups of a batch that XLA may give to different devices, in a lowering.

    Args:
      ctx: the context of the lowering.
      batch: a size, which may be symbolic.
    """
    devices = _compat.partitioned_devices(ctx)
    if isinstance(batch, int):
        return math.gcd(batch, devices) if batch else 1
    return devices if batch % devices == 0 else 1
