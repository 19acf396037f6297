"""`oxijax.config`: global options, which hold for every operation."""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from oxijax._core.calls.tuned_plans import TunedPlans

__all__ = ["Config", "config", "is_deterministic", "stand_ins", "xla_is_deterministic"]

# JAX traces and compiles again where this changes, and keeps what it has for each value.
_deterministic = jax.make_user_context(None)
stand_ins = jax.make_user_context(None)  # what of other libraries is replaced


class Config:
    """The options of oxijax that no function has as an argument, as `oxijax.config`.

    | switch                                  | what it does                                      |
    |-----------------------------------------|---------------------------------------------------|
    | `oxijax.config.deterministic`           | whether gradients have the same bits in every run |
    | `oxijax.config.deterministic_mode(...)` | the same, within a block of code                  |
    | `oxijax.config.tuning`                  | the plans of kernels that `oxijax.tune` has found |
    | `OXIJAX_TUNING_DIR`                     | an environment variable: their folder             |
    | `XLA_FLAGS`                             | one too: two of XLA's flags ask for determinism   |

    What a single call does is in its arguments, above all `implementation` and `precision`. Of
    JAX's own options, `jax_default_matmul_precision` is the precision where none is given, and
    without `jax_enable_x64` there is no float64. `oxijax.testing.emulate_gpu` emulates a GPU on the
    CPU.
    """

    __slots__ = ()

    @property
    def deterministic(self) -> bool | None:
        """Whether gradients are bitwise reproducible, also where that is slower.

        True, False for atomic additions wherever a kernel has them, or None, the default: as XLA's
        own operations, that is if `XLA_FLAGS` has `--xla_gpu_deterministic_ops=true` or
        `--xla_gpu_exclude_nondeterministic_ops=true`, and else whichever should be faster.

        Assigning to it sets it for all threads; `deterministic_mode` for a block of code. A
        function that was compiled under another value is compiled again.

        Raises:
          TypeError: on assignment of anything else.
        """
        return _deterministic.value

    @deterministic.setter
    def deterministic(self, value: bool | None) -> None:
        _deterministic.set_global(_checked("deterministic", value))

    @contextlib.contextmanager
    def deterministic_mode(self, value: bool | None = True) -> Iterator[None]:
        """Sets `deterministic` within a block, in this thread.

        Args:
          value: as `deterministic`.

        Raises:
          TypeError: value is neither a bool nor None.

        Example:
          >>> with oxijax.config.deterministic_mode():
          ...     gradients = jax.jit(jax.grad(loss))(params)
        """
        with _deterministic(_checked("value", value)):
            yield

    @property
    def tuning(self) -> "TunedPlans":
        """The plans of kernels that `oxijax.tune` has found to be the fastest, and keeps.

        Kernels that are launched from now on have them. Programs need not be compiled again, and
        exported ones hold none of them: they get those of the process that they run in.
        """
        from oxijax._core.calls.tuned_plans import tuned_plans

        return tuned_plans

    def __repr__(self) -> str:
        return f"oxijax.config(deterministic={self.deterministic})"


config: Config = Config()


def is_deterministic() -> bool | None:
    """What `config.deterministic` amounts to here, for lowerings to ask: None if speed decides."""
    value = config.deterministic
    return True if value is None and xla_is_deterministic() else value


@functools.cache  # XLA reads the variable once too
def xla_is_deterministic() -> bool:
    """Whether `XLA_FLAGS` asks XLA for deterministic operations."""
    flags = os.environ.get("XLA_FLAGS", "")
    if flags.strip() and not flags.lstrip().startswith("-"):  # the name of a file that has them
        with open(flags) as file:
            flags = file.read()
    return _asks_for_determinism(flags)


_FLAGS = ("--xla_gpu_deterministic_ops", "--xla_gpu_exclude_nondeterministic_ops")


def _asks_for_determinism(flags: str) -> bool:
    """The same, of XLA's flags as text; of a flag that is given twice the last one counts."""
    values = dict.fromkeys(_FLAGS, False)
    # A value may be quoted, and then have spaces in it.
    for name, value in re.findall(r"""(--[\w-]*)(?:=("[^"]*"|'[^']*'|\S*))?""", flags):
        if name in values:
            # A flag alone is true; XLA refuses whatever is not true, 1, false or 0.
            values[name] = value.strip("\"'").lower() in ("", "true", "1")
    return any(values.values())


def _checked(name: str, value: bool | None) -> bool | None:
    if value is not None and not isinstance(value, bool):
        from oxijax._core.arguments.checks import shown

        raise TypeError(
            f"{name} must be True, False, or None for what XLA_FLAGS says; got {shown(value)}"
        )
    return value
