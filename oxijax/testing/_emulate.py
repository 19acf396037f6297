"""`emulate_gpu`: the GPU's code path on machines without a GPU."""

import contextlib
from collections.abc import Iterator

import jax

from oxijax._core import launch as _launch
from oxijax._core.arguments.checks import shown
from ptx.isa.targets import as_target

__all__ = ["emulate_gpu"]


@contextlib.contextmanager
def emulate_gpu(target: str = "sm_90", *, schedule: int | None = None) -> Iterator[None]:
    """Runs oxijax's GPU code on the CPU: within the context, in this thread.

    Programs are lowered as for a GPU, to the same custom calls; the same handler looks up the same
    kernels, generates their PTX for `target`, packs their parameters and launches them. Only the
    driver is another one: `ptx.emulator`, which is slow, and raises where a kernel races, leaves
    its buffers, or leaves a result unwritten. What was compiled inside the context runs in the
    emulator outside of it too, in any thread.

    Args:
      target: name of the GPU architecture, one of `ptx.TARGETS`.
      schedule: order in which warps run: None runs all in step, an integer is the seed of a random
        order.

    Raises:
      TypeError: target is no str, or schedule no int.
      ValueError: there is no such target, or schedule is below 0.
      HandlerMissingError: oxijax has no handler that works; the message says what to do.

    Example:
      >>> with oxijax.testing.emulate_gpu("sm_80"):
      ...     y = jax.jit(f)(x)
    """
    if not isinstance(target, str):
        raise TypeError(f"target must be a str, got {shown(target)}")
    as_target(target)
    if schedule is not None and type(schedule) is not int:
        raise TypeError(f"schedule must be an int or None, got {shown(schedule)}")
    if schedule is not None and schedule < 0:
        raise ValueError(f"schedule must be at least 0, got {schedule}")
    _launch.find_handler()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_launch.emulation(_launch.Emulation(target, schedule)))
        if jax.default_backend() != "cpu":
            stack.enter_context(jax.default_device(jax.devices("cpu")[0]))
        yield
