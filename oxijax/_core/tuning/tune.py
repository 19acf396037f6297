"""`oxijax.tune`: times plans of the kernels that a function launches, and keeps the fastest."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._core.arguments.checks import check_arguments, check_callable
from oxijax._core.calls.kernel_call import KernelCall, noted_calls
from oxijax._core.calls.tuned_plans import tuned_plans
from oxijax._core.launch import clear_caches, emulation
from oxijax._core.tuning.candidates import candidates
from oxijax._core.tuning.report import TimedPlan, Tuned, TunedCall
from oxijax._core.tuning.timing import time_launches

__all__ = ["tune"]


def tune(function: Callable[..., Any], *args: Any) -> Tuned:
    """Times plans of the kernels that a function launches, and keeps the fastest of each.

    A plan is how a kernel's blocks share the work: sizes of tiles, warps, stages. The one that a
    kernel chooses by itself is timed beside seven others at most, on this GPU, for the shapes that
    the function has. From then on each call of that kernel in the same configuration, for the same
    shapes and on a GPU of the same name has the fastest: in this process, in programs that are
    compiled already too, and in later ones, by a file (`oxijax.config.tuning`).

    The function runs once, and what it donates is gone. What it launches within `jit`, loops or
    `shard_map` is found, with the shapes that one device has; what another thread launches
    meanwhile is found too. Kernels are timed on random operands, in memory beside that of JAX,
    which takes three quarters of a GPU unless `XLA_PYTHON_CLIENT_MEM_FRACTION` says less. Tuning
    takes some seconds for each kernel; where the model of kernels can run (docs/tuning.md), up to a
    minute.

    Results may differ from those before by rounding: another plan may add in another order.

    Args:
      function: a function of arrays, jitted or not, such as a training step.
      *args: what it is called with: arrays, numbers and pytrees of them. In place of an array a
        `jax.ShapeDtypeStruct` stands for one of zeros.

    Returns:
      What was timed and kept for each call of a kernel; printed, it is a table.

    Raises:
      TypeError: function is not callable, or a leaf of args is not an array; the message says
        which.
      RuntimeError: JAX has no GPU to time kernels on; or this is inside `emulate_gpu`, which has
        no time.
      ValueError: the function launches none of oxijax's kernels.

    Example:
      >>> print(oxijax.tune(jax.jit(jax.grad(loss)), params, images))
    """
    check_callable("function", function)
    check_arguments("tune", args)
    _check_gpu()
    calls = _calls_of(function, args)
    if not calls:
        raise ValueError(
            "function must launch kernels of oxijax, and launches none for these args: what is "
            "empty needs none, and gemm leaves products that arithmetic bounds to XLA"
        )
    tuned = {call: _timed(call) for call in calls}
    tuned_plans.keep({call: found.kept.plan for call, found in tuned.items()})
    return Tuned(tuple(tuned.values()))


def _check_gpu() -> None:
    if emulation.value is not None:
        raise RuntimeError(
            "oxijax.tune times kernels on a GPU, and the emulated one of emulate_gpu has no time: "
            "call it outside, on the machine whose kernels it is for"
        )
    if jax.default_backend() != "gpu":
        raise RuntimeError(
            "oxijax.tune times kernels on a GPU, and JAX has none here, but "
            f"{', '.join(map(str, jax.devices()))}. Call it on a machine with the GPU that kernels "
            "are for: oxijax.config.tuning.dumps() there, and loads() elsewhere, bring what it "
            "finds to others; python -m oxijax info says what a GPU needs"
        )


def _calls_of(function: Callable[..., Any], args: tuple[Any, ...]) -> list[KernelCall]:
    """The kernel calls that the function makes, each once, without those that launch nothing."""
    arrays = jax.tree.map(_filled, args)
    with noted_calls() as calls:
        clear_caches()  # what has been resolved is resolved again, and noted
        jax.block_until_ready(function(*arrays))
    return [call for call in calls if 0 not in call.kernel.grid(call.instance)]


def _filled(leaf: Any) -> Any:
    """The array that a leaf of the arguments stands for."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    zeros = jnp.zeros(leaf.shape, leaf.dtype)
    return zeros if leaf.sharding is None else jax.device_put(zeros, leaf.sharding)


def _timed(call: KernelCall) -> TunedCall:
    chosen = candidates(call)
    times = time_launches(call, [candidate.launch for candidate in chosen])
    return TunedCall(
        gpu=call.gpu,
        kernel=call.kernel.name,
        config=call.config,
        shapes=dict(call.instance.shapes),
        candidates=tuple(
            TimedPlan(candidate.plan, us, candidate.modelled_us)
            for candidate, us in zip(chosen, times, strict=True)
        ),
    )
