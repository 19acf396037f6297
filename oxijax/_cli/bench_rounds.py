"""Rounds of programs that take turns: their times, and the machine that they ran on."""

import importlib.metadata
import math
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import oxijax

__all__ = ["core_count", "machine", "paired_ratios", "spread", "time_rounds", "versions"]


def time_rounds(
    programs: Mapping[str, tuple[Callable, Sequence]],
    repeats: int,
    seconds: float = math.inf,
    settle: float = 0,
) -> dict[str, list[float]]:
    """Milliseconds of each program in each round, in which all programs take turns.

    In its turn a program runs before it is timed: the first runs have the caches, and the cores of
    their threads, as the program before left them.

    Args:
      programs: the programs, each with its operands.
      repeats: the number of rounds, after one that is not returned.
      seconds: the time after which no further round starts, but for three or `repeats`.
      settle: the seconds for which a program runs before it is timed; it runs once at least.
    """
    times: dict[str, list[float]] = {key: [] for key in programs}
    end = time.perf_counter() + seconds
    for repeat in range(repeats + 1):
        if repeat > 3 and time.perf_counter() > end:
            break
        for key, (program, inputs) in programs.items():
            settled = time.perf_counter() + settle
            jax.block_until_ready(program(*inputs))
            while time.perf_counter() < settled:
                jax.block_until_ready(program(*inputs))
            start = time.perf_counter()
            jax.block_until_ready(program(*inputs))
            times[key].append(1e3 * (time.perf_counter() - start))
    return {key: rounds[1:] for key, rounds in times.items()}


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Our time over theirs in each round, so that what disturbs a whole round drops out."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, quartiles and largest of some values; a single one is all five."""
    if len(values) == 1:
        lower = median = upper = values[0]
    else:
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "min": min(values),
        "lower_quartile": lower,
        "median": median,
        "upper_quartile": upper,
        "max": max(values),
    }


def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, and how busy they are now.

    The load is the number of processes that wanted to run in the last minute, in the mean; it is
    None on systems that do not say.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"processor": _processor(), "cores": core_count(), "load_before": load}


def core_count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """The versions of oxijax, of JAX with its compiler, and of Python."""
    return {
        "oxijax": oxijax.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((s.partition(":")[2].strip() for s in lines if s.startswith("model name")), "")
