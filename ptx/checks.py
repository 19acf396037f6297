"""Checks of the arguments and results of the functions of a kernel's definition."""

from __future__ import annotations

import numbers
import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ptx.isa.targets import Target

__all__ = [
    "GRID",
    "Named",
    "Parameters",
    "check_at_least",
    "check_grid",
    "check_plan",
    "check_text",
    "parse_u32",
]

Value = TypeVar("Value")

GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)  # blocks that a launch can have in x, y and z


class Named(dict[str, Value]):
    """Values by name, for example sizes of dimensions; a KeyError lists the names that there are.

    Attributes:
      kernel: the name of their kernel.
      what: the values' kind, for example "dimension".
    """

    def __init__(self, kernel: str, what: str, values: Mapping[str, Value]):
        super().__init__(values)
        self.kernel, self.what = kernel, what

    def __missing__(self, name: object) -> Value:
        raise KeyError(f"kernel {self.kernel} has no {self.what} {name!r}: {_listed(self)}")


class Parameters(types.SimpleNamespace):
    """A pointer or value for each parameter; an AttributeError lists the names that there are."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the kernel has no parameter {name!r}: {_listed(vars(self))}")


def check_plan(kernel: str, plan: Any, target: Target) -> None:
    """Raises TypeError unless it is a plan, ValueError for blocks that the target cannot have."""
    threads: Any = getattr(plan, "threads", None)
    if not _is_int(threads) or not hasattr(plan, "min_blocks"):
        raise TypeError(
            f"kernel {kernel}: a plan must have threads, an int, and min_blocks, an int or None, "
            f"for example ptx.definition.Plan(threads=128), got {plan!r}"
        )
    if not 1 <= threads <= target.threads_per_block:
        raise ValueError(
            f"kernel {kernel}: threads must be 1 to {target.threads_per_block}, got {plan!r}"
        )
    if plan.min_blocks is not None and not (_is_int(plan.min_blocks) and plan.min_blocks > 0):
        raise TypeError(f"kernel {kernel}: min_blocks must be a positive int or None, got {plan!r}")


def check_grid(kernel: str, grid: Any) -> None:
    """Raises TypeError unless it is a grid, ValueError for more blocks than a launch can have."""
    if not isinstance(grid, tuple) or len(grid) != 3 or not all(map(_is_int, grid)):
        raise TypeError(
            f"kernel {kernel}: a grid must be the ints (x, y, z), for example (blocks, 1, 1), got "
            f"{grid!r}"
        )
    for axis, blocks, limit in zip("xyz", grid, GRID, strict=True):
        if blocks < 0:
            raise ValueError(f"kernel {kernel}: the grid would have {blocks} blocks in {axis}")
        if blocks > limit:
            raise ValueError(
                f"kernel {kernel}: the grid would have {blocks} blocks in {axis}, and a launch "
                f"takes {limit}: use fewer groups or channels, or split the batch"
            )


def check_text(kernel: str, text: Any) -> None:
    """Raises TypeError unless a kernel's `body` has returned a text, or None."""
    if text is not None and not isinstance(text, str):
        raise TypeError(
            f"kernel {kernel}: body must return None, or a text in place of the builder's, got "
            f"{type(text).__name__}"
        )


def check_at_least(lowest: int, **values: int) -> None:
    """Raises ValueError, which names the value, if one is lower."""
    for name, value in values.items():
        if value < lowest:
            raise ValueError(f"{name} must be at least {lowest}, got {value}")


def parse_u32(kernel: str, name: str, value: Any) -> int:
    """The value of a `Size`, as a launch passes it; TypeError or ValueError unless it is a u32."""
    if not _is_int(value):
        raise TypeError(f"kernel {kernel}: {name} must be an int, got {value!r}")
    if not 0 <= value < 2**32:
        raise ValueError(f"kernel {kernel}: {name} is {value}, no u32")
    return int(value)


def _is_int(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _listed(names: Iterable[str]) -> str:
    return f"it has {', '.join(names) or 'none'}"
