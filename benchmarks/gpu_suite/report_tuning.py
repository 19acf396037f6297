"""The section on tuning as a table. Like all of the report it runs without JAX."""

import math
from collections.abc import Iterable
from typing import Any

from gpu_suite.tables import number, results, table

__all__ = ["tuning"]


def tuning(report: dict[str, Any]) -> Iterable[str]:
    """The section as a table, and the means."""
    found = results(report, "tuning").get("tuned", {})
    rows, gains, misses = [], [], []
    for layer, operations in found.items():
        if layer == "not_measured":
            continue
        for operation, one in operations.items():
            own, kept, first = one["own_us"], one["kept_us"], one["model_first_us"]
            gains.append(own / kept)
            if first is not None:
                misses.append(first / kept)
            rows.append(
                [
                    *(layer, operation, one["candidates"], number(own), number(kept)),
                    *(f"{own / kept:.2f}", number(first)),
                    *("" if first is None else f"{first / kept:.2f}", one["kept"]),
                ]
            )
    if not rows:
        return
    yield "`oxijax.tune`, microseconds: the kernel's own choice, the fastest candidate, and the"
    yield "one that the model takes for the fastest:"
    yield ""
    columns = ["candidates", "own", "fastest", "x", "model's first", "x", "fastest plan"]
    yield from table(["layer", "operation", *columns], rows)
    yield f"- the fastest against the kernels' own choice: {_mean(gains):.3f} times as fast"
    if misses:
        yield f"- the model's first takes {_mean(misses):.3f} times as long as the fastest"
    yield ""


def _mean(ratios: list[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))
