"""Kernels and XLA's own on the same layers: what bounds each of them, and which is faster.

This is of all sections whose results name "compared_layers": times of an operation, and of
"xla_" with its name.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_suite.layers import LAUNCH_FLOOR
from gpu_suite.tables import microseconds, number, results, table

__all__ = ["against_xla", "pages"]

# What bounds a layer, and the speed that is wanted, as a share of XLA's. A section whose results
# name "wanted" has figures of its own for each layer.
_WANTED = {"memory": 0.9, "products": 0.5}
_TITLES = {"memory": "memory-bound or small", "products": "large"}
_FIGURES = {"ratio": ("x", ".2f"), "of_floor": ("of memory floor", ".0%")}
_LAUNCHES = 1.5  # within this times the launch floor, the host may be what was timed


def against_xla(report: dict[str, Any]) -> dict[str, Any]:
    """How many times as long XLA takes: {section: {dtype: {operation: ...}}}.

    For each operation, and for "all" of them:

    - "layers": {layer: {"ratio", "bound", "of_floor", "near_launch_floor", "wanted"}}; not for
      "all";
    - "geometric_means" and "lowest" of the ratios: {bound: ratio};
    - "lacks": layers without both times, if there are any;
    - "missed": layers with a figure that is less than the section wants, and these figures.

    "of_floor" is the share of oxijax's time that moving the bytes takes at the rate of a copy;
    "near_launch_floor" is whether one of the times is no more than 1.5 of the launch floor's.
    The bound is "memory" where there are fewer operations to a byte than the device can do while
    it moves one, and for layers that the section calls small; else it is "products". It is None
    where nobody has measured what the device can do.
    """
    found: dict[str, Any] = {}
    for section in report["sections"]:
        part = results(report, section)
        times, names = part.get("times", {}), part.get("compared_layers", [])
        for dtype, operations in _compared(times).items():
            of_dtype = found.setdefault(section, {}).setdefault(dtype, {})
            everything: list[dict[str, Any]] = []
            for operation in operations:
                layers = {
                    name: one
                    for name in names
                    if (one := _layer(report, part, name, dtype, operation)) is not None
                }
                everything += layers.values()
                lacks = [name for name in names if name not in layers]
                of_dtype[operation] = {"layers": layers, **_summary(list(layers.values()))}
                if lacks:
                    of_dtype[operation]["lacks"] = lacks
                missed = {name: low for name, one in layers.items() if (low := _missed(one))}
                if missed:
                    of_dtype[operation]["missed"] = missed
            of_dtype["all"] = _summary(everything)
    return found


def _compared(times: dict[str, Any]) -> dict[str, list[str]]:
    """The operations that have been timed with XLA too, by dtype."""
    found: dict[str, list[str]] = {}
    for dtypes in times.values():
        for dtype, operations in dtypes.items():
            both = [name for name in operations if f"xla_{name}" in operations]
            place = found.setdefault(dtype, [])
            place += [name for name in both if name not in place]
    return {dtype: operations for dtype, operations in found.items() if operations}


def _layer(
    report: dict[str, Any], part: dict[str, Any], layer: str, dtype: str, operation: str
) -> dict[str, Any] | None:
    """The comparison on a layer; None if a time is missing."""
    times = part["times"]
    ours = microseconds(times, layer, dtype, operation)
    theirs = microseconds(times, layer, dtype, f"xla_{operation}")
    if not ours or not theirs:
        return None
    device = results(report, "info")
    copy = device.get("copy", {}).get("bytes_per_second")
    product = device.get("products", {}).get(dtype, {}).get("flops_per_second")
    work = times[layer][dtype][operation]
    bound = None
    if layer in part["small_layers"]:
        bound = "memory"
    elif copy and product:
        bound = "memory" if work["flops"] / work["bytes"] < product / copy else "products"
    of_floor = 1e6 * work["bytes"] / copy / ours if copy else None
    near = False
    for us, name in ((ours, operation), (theirs, f"xla_{operation}")):
        floor = microseconds(times, LAUNCH_FLOOR, dtype, name)
        near |= floor is not None and us <= _LAUNCHES * floor
    return {
        "ratio": theirs / ours,
        "bound": bound,
        "of_floor": of_floor,
        "near_launch_floor": near,
        "wanted": _wanted(part, layer, dtype),
    }


def _wanted(part: dict[str, Any], layer: str, dtype: str) -> dict[str, float]:
    """The least values of figures that a section wants."""
    return part.get("wanted", {}).get(layer, {}).get(dtype, {})


def _missed(compared: dict[str, Any]) -> list[str]:
    """Figures that are known, and less than is wanted."""
    return [
        name
        for name, least in compared["wanted"].items()
        if compared[name] is not None and compared[name] < least
    ]


def _figures(values: dict[str, float]) -> str:
    """As in the table's headings, for example: x 1.00, of memory floor 80%."""
    return ", ".join(
        f"{title} {values[name]:{form}}"
        for name, (title, form) in _FIGURES.items()
        if name in values
    )


def _summary(layers: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    ratios = {bound: [one["ratio"] for one in layers if one["bound"] == bound] for bound in _WANTED}
    present = {bound: values for bound, values in ratios.items() if values}
    return {
        "geometric_means": {b: math.prod(v) ** (1 / len(v)) for b, v in present.items()},
        "lowest": {bound: min(values) for bound, values in present.items()},
    }


def pages(report: dict[str, Any]) -> Iterable[str]:
    """The comparisons as tables."""
    for section, dtypes in against_xla(report).items():
        yield f"## {section}"
        yield ""
        yield "How many times as fast as XLA, in the geometric mean (the lowest):"
        yield ""
        operations = list(dict.fromkeys(name for part in dtypes.values() for name in part))
        titles = [name.replace("_", " ") for name in operations]
        of_means = "wanted" not in results(report, section)
        headings = ["dtype", "layers", *titles, *(["wanted"] if of_means else [])]
        yield from table(headings, [row[: len(headings)] for row in _means(dtypes, operations)])
        for dtype, parts in dtypes.items():
            for operation, part in parts.items():
                if "lacks" in part:
                    yield f"- {dtype}, {operation}: without {', '.join(part['lacks'])}"
                layers = part.get("layers", {}).items()
                near = [name for name, one in layers if one["near_launch_floor"]]
                if near:
                    yield f"- {dtype}, {operation}: near the launch floor: {', '.join(near)}"
                for name, missed in part.get("missed", {}).items():
                    one = part["layers"][name]
                    found, least = (
                        _figures({figure: values[figure] for figure in missed})
                        for values in (one, one["wanted"])
                    )
                    yield f"- {dtype}, {operation}: {name} has {found}; wanted: {least}"
        yield ""
        for dtype, parts in dtypes.items():
            for operation in parts:
                if operation != "all":
                    yield from _layers(report, section, dtype, operation, parts[operation])


def _means(dtypes: dict[str, Any], operations: Sequence[str]) -> list[list[str]]:
    rows = []
    for dtype, parts in dtypes.items():
        for bound, wanted in _WANTED.items():
            row = [dtype, _TITLES[bound]]
            for operation in operations:
                part = parts.get(operation, {})
                mean = part.get("geometric_means", {}).get(bound)
                lowest = part.get("lowest", {}).get(bound)
                row.append("" if mean is None else f"{mean:.2f} ({lowest:.2f})")
            rows.append([*row, f"{wanted}"])
    return rows


def _layers(
    report: dict[str, Any], section: str, dtype: str, operation: str, part: dict[str, Any]
) -> Iterable[str]:
    """All that was timed, also what there is no comparison of."""
    times = results(report, section)["times"]
    rows = []
    for layer in times:
        work, xla = (
            times[layer].get(dtype, {}).get(name, {}) for name in (operation, f"xla_{operation}")
        )
        if not work and not xla:
            continue
        compared = part["layers"].get(layer, {})
        intensity = work["flops"] / work["bytes"] if "flops" in work else None
        of_floor = compared.get("of_floor")
        rows.append(
            [
                layer,
                number(microseconds(times, layer, dtype, operation)),
                number(microseconds(times, layer, dtype, f"xla_{operation}")),
                number(compared.get("ratio"), ".2f"),
                number(intensity, ".0f"),
                number(of_floor, ".0%"),
                compared.get("bound") or "",
                ", ".join(f"`{target}`" for target in xla.get("calls", {})),
                _figures(_wanted(results(report, section), layer, dtype)),
            ]
        )
    yield f"{dtype}, {operation.replace('_', ' ')}; median microseconds:"
    yield ""
    columns = ["layer", "oxijax", "XLA", "x", "FLOP/byte", "of memory floor", "bound", "XLA calls"]
    if "wanted" in results(report, section):
        columns.append("wanted")
    yield from table(columns, [row[: len(columns)] for row in rows])
