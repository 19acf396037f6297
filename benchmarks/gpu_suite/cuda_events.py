"""Device time of PyTorch's calls, between two CUDA events around many."""

# pyright: reportMissingImports=false
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["time_calls"]

_SAMPLES = 9
_SAMPLE_SECONDS = 0.04


def time_calls(function: Callable, sets: Sequence[tuple]) -> dict[str, Any]:
    """Microseconds of one call.

    Args:
      function: the function to call.
      sets: its arguments, which calls take turns with.
    """
    import torch

    def series(rounds: int) -> tuple[float, float]:
        """Seconds on the device, and until all calls were handed over."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = time.perf_counter()
        start.record()
        for _ in range(rounds):
            for operands in sets:
                function(*operands)
        stop.record()
        handed_over = time.perf_counter() - began
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3, handed_over

    series(2)
    each = series(2)[0] / 2
    rounds = max(2, min(400, round(_SAMPLE_SECONDS / each)))
    measured = [series(rounds) for _ in range(_SAMPLES)]
    calls = rounds * len(sets)
    samples = [1e6 * seconds / calls for seconds, _ in measured]
    return {
        "median_us": statistics.median(samples),
        "min_us": min(samples),
        "max_us": max(samples),
        "samples": len(samples),
        "calls_in_a_sample": calls,
        # Near the median: the host, not the GPU, is what was timed.
        "handed_over_us": statistics.median(1e6 * host / calls for _, host in measured),
    }
