"""Which program an operation runs: a PTX kernel, or what XLA makes of it in pure JAX."""

from collections.abc import Sequence
from typing import Any

from oxijax._core.arguments import checks

__all__ = [
    "PTX",
    "XLA",
    "Implementation",
    "ImplementationLike",
    "parse_implementation",
    "requires_ptx",
    "takes_ptx",
]

PTX, XLA = "ptx", "xla"

Implementation = tuple[str, ...] | None
"""The programs that an operation may run, the preferred first; None leaves it to the platform."""

ImplementationLike = str | Sequence[str] | None
"""The same as an argument of public functions."""


def parse_implementation(value: Any) -> Implementation:
    """Checks the argument `implementation`.

    Raises:
      ValueError: a name of no implementation, one that is given twice, or none at all.
      TypeError: neither None, nor a string, nor a sequence of strings.
    """
    if value is None:
        return None
    many = [value] if isinstance(value, str) else checks.parse_sequence("implementation", value)
    names = tuple(many)
    for name in names:
        checks.check_choice("implementation", name, (PTX, XLA))
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "implementation must be None, 'ptx', 'xla' or a sequence of these names, each once, "
            f"got {checks.shown(value)}"
        )
    return names


def requires_ptx(implementation: Implementation) -> bool:
    """Whether nothing but a kernel will do."""
    return implementation is not None and XLA not in implementation


def takes_ptx(implementation: Implementation, operation: str, obstacle: str | None) -> bool:
    """Whether an operation runs its kernel.

    Args:
      implementation: what was asked for.
      operation: its name, for the message.
      obstacle: why no kernel can run here, as the end of a sentence; None where one can.

    Raises:
      ValueError: only a kernel was asked for, and none can run.
    """
    for choice in implementation or (PTX, XLA):
        if choice == XLA:
            return False
        if obstacle is None:
            return True
    raise ValueError(
        f"implementation 'ptx' of {operation} cannot run here: {obstacle}. implementation=None "
        "takes XLA's program then, as ('ptx', 'xla') does"
    )
