"""Buffers of which only the end is in memory."""

from __future__ import annotations

import numpy as np

from ptx.emulator import Buffer

__all__ = ["window"]


def window(array: np.ndarray, shape: tuple[int, ...], *, writable: bool) -> Buffer:
    """The end of an array of a shape that is too large to have."""
    before = int(np.prod(shape)) - array.size
    more = before % (256 // array.itemsize)  # a window starts where an allocation could
    array = np.concatenate([np.zeros(more, array.dtype), array.ravel()])
    return Buffer(array, writable, origin=before - more)
