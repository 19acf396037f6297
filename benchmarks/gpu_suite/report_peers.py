"""The sampling operators beside kernels of others, as tables."""

from collections.abc import Iterable
from typing import Any

from gpu_suite.tables import microseconds, number, results, table

__all__ = ["peers"]

# Of oxijax and of others.
_OPERATIONS = (
    ("forward", "forward", "forward"),
    ("forward_backward", "both", "forward and backward"),
)


def peers(report: dict[str, Any]) -> Iterable[str]:
    """Microseconds, and how many times oxijax's they are."""
    found = results(report, "times-peers")
    others = {
        name: times for name, times in found.get("peers", {}).items() if "not_measured" not in times
    }
    if not others:
        return
    yield from ("## times-peers", "")
    for operation, of_others, title in _OPERATIONS:
        rows = []
        for layer, dtypes in found.get("times", {}).items():
            for dtype in dtypes:
                ours = microseconds(found["times"], layer, dtype, operation)
                for name, times in others.items():
                    theirs = microseconds(times, layer, dtype, of_others)
                    if ours and theirs:
                        cells = (number(ours), number(theirs), f"{theirs / ours:.2f}")
                        rows.append([layer, dtype, name, *cells])
        yield from (
            f"Median microseconds, {title}; weights are given, and no softmax is taken:",
            "",
        )
        yield from table(["layer", "dtype", "peer", "oxijax", "peer's", "x"], rows)
