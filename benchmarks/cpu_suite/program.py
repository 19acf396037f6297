"""A program of a library."""

import dataclasses
from collections.abc import Callable
from typing import Any, overload

import numpy as np

__all__ = ["Array", "Program", "Run", "channels_first", "channels_last"]

Array = np.ndarray | None
Run = Callable[..., Any]  # of a program's own operands


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a library.

    Attributes:
      run: forward.
      operands: its operands, as the library has them.
      result: what makes of `run`'s result an array as oxijax has it.
      gradients: forward and backward, for the gradient of the result, which is before the operands;
        None where a library has no gradients.
      grad_y: the gradient of the result, as the library has it.
    """

    run: Run
    operands: tuple[Any, ...]
    result: Callable[[Any], np.ndarray]
    gradients: Run | None = None
    grad_y: Any = None


@overload
def channels_first(array: np.ndarray) -> np.ndarray: ...
@overload
def channels_first(array: Array) -> Array: ...
def channels_first(array: Array) -> Array:
    """The array in memory as [N, C, ...], of [N, ..., C]."""
    return None if array is None else np.ascontiguousarray(np.moveaxis(array, -1, 1))


def channels_last(array: np.ndarray) -> np.ndarray:
    """A view of an array [N, C, ...] as [N, ..., C]."""
    return np.moveaxis(array, 1, -1)
