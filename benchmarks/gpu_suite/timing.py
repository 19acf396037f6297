"""Device time of JAX programs, as the difference between a long and a short series of runs.

A program makes the same call once for each of several sets of operands. Runs of it are handed to
the GPU without waiting for one before the next; only the last is waited for. A series has a price
that does not depend on its length: Python's start and the wait at the end. It is gone from the
difference of two series. What is left is the GPU's time, if that is more than the host needs to
hand a call over; the latter is measured with layers of a few pixels (`launch_floor`).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["chain", "time_chain"]

_SHORT = 2  # runs of the short series
_LONG_SECONDS = 0.015  # that the long series takes beyond the short one
_SAMPLES = 9


def chain(function: Callable) -> Callable:
    """The program (sets of operands) -> the function's results for each of them."""

    def run(*sets):
        return [function(*operands) for operands in sets]

    return run


def time_chain(compiled: Callable, sets: Sequence, tiny: bool) -> dict[str, Any]:
    """Microseconds of one call, and seconds of the first run, which loads the kernels.

    Args:
      compiled: the compiled `chain`.
      sets: the sets of operands.
      tiny: measures one run and no more.
    """

    def series(runs: int) -> float:
        start = time.perf_counter()
        out = None
        for _ in range(runs):
            out = compiled(*sets)
        jax.block_until_ready(out)
        return time.perf_counter() - start

    calls = len(sets)
    first = series(1)
    if tiny:
        return {**_summary([1e6 * first / calls], calls, 0), "first_run_s": first}
    series(3)
    each = series(4) / 4
    more = max(4, min(400, round(_LONG_SECONDS / each)))
    samples = []
    for _ in range(_SAMPLES):
        short = series(_SHORT)
        samples.append(1e6 * (series(_SHORT + more) - short) / (more * calls))
    return {**_summary(samples, calls, more), "first_run_s": first}


def _summary(samples: list[float], calls: int, runs: int) -> dict[str, Any]:
    return {
        "median_us": statistics.median(samples),
        "min_us": min(samples),
        "max_us": max(samples),
        "samples": len(samples),
        "calls_in_a_run": calls,
        "runs_in_a_sample": runs,
    }
