"""The state of this process that launches depend on: an emulated GPU, a fork, the end."""

import dataclasses
import threading

import jax

__all__ = [
    "Emulation",
    "allow_dry_runs",
    "check_emulation",
    "emulation",
    "forked",
    "is_stopping",
    "stop",
]


@dataclasses.dataclass(frozen=True)
class Emulation:
    """An emulated GPU.

    Attributes:
      target: name of the `ptx.Target`.
      schedule: order of the warps: None is in step, an integer is the seed of a random order.
      dry_run: whether launches do nothing, in C, and results are left as they are: for benchmarks.
    """

    target: str
    schedule: int | None = None
    dry_run: bool = False


# Inside `with emulation(Emulation(...))` lowerings for the CPU are those for the GPU. JAX traces
# and compiles again whatever was compiled outside, and keeps both.
emulation = jax.make_user_context(None)

# True in a child whose parent had launched kernels: neither JAX nor CUDA works there. What was
# compiled before is traced again, and raises then (`checks.check_not_forked`), before JAX waits for
# threads that the child does not have.
forked = jax.make_user_context(False)


def check_emulation(gpu: Emulation) -> None:
    """Raises ValueError for a GPU that is not, or not here, emulated."""
    from ptx.isa.targets import TARGETS

    if gpu.target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {gpu.target!r}")
    if gpu.schedule is not None and gpu.schedule < 0:
        raise ValueError(f"schedule must be None or at least 0, got {gpu.schedule}")
    if gpu.dry_run and not _dry_runs.is_set():
        # Its results would be what lay in their memory before.
        raise ValueError("dry_run is for programs that this process has made")


def allow_dry_runs() -> None:
    """From now on this process runs programs whose launches do nothing."""
    _dry_runs.set()


def stop() -> None:
    """Ends all launches in the emulator, with a StoppedError, and any that are still to come."""
    _stopping.set()


def is_stopping() -> bool:
    """Whether launches in the emulator have to end."""
    return _stopping.is_set()


_dry_runs = threading.Event()
_stopping = threading.Event()
