"""Forked children of a process that has launched kernels, in which neither JAX nor CUDA works."""

import jax

__all__ = ["check_not_forked", "note_fork"]

_forked = jax.make_user_context(False)


def note_fork() -> None:
    """From now on, in this process, `check_not_forked` raises.

    What was compiled before is traced again, and raises then, before JAX waits for threads that the
    child does not have.
    """
    _forked.set_global(True)


def check_not_forked() -> None:
    """Raises RuntimeError in a child whose parent had launched kernels."""
    if _forked.value:
        raise RuntimeError(
            "this process was forked after its parent had launched kernels, and neither JAX nor "
            "CUDA works in such a child: start it with multiprocessing's 'spawn' or 'forkserver' "
            "method"
        )
