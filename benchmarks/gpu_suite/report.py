"""The findings as a page of Markdown, and the figures that are compared."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_suite.report_against_xla import pages
from gpu_suite.report_peers import peers
from gpu_suite.report_tuning import tuning
from gpu_suite.tables import microseconds, number, results, table

__all__ = ["markdown", "ratios", "stem"]

_LOWEST = {"forward": 3.0, "forward_backward": 4.0}  # wanted, against torchvision in float16
_RESULTS = (
    *("y", "dx", "doffset", "dweight", "dmask", "dbias"),
    *("da", "db", "dc", "dalpha", "dbeta"),
)
_TITLES = {"forward": "forward", "forward_backward": "forward + backward"}

_WITHOUT_TIMES = {
    "dry-run": "A dry run in the emulator",
    "rehearse": "A rehearsal with tiny layers",
}


def stem(report: dict[str, Any]) -> str:
    """The name of the files: date, GPU and versions."""
    info = results(report, "info")
    versions = info.get("versions", {})
    smi = info.get("nvidia_smi", {}).get("idle", {})
    name = "gpu" if report["mode"] == "measure" else report["mode"]
    if isinstance(smi, dict) and smi.get("name"):
        name = smi["name"].lower().removeprefix("nvidia ")
    parts = [
        report["date"],
        name,
        *(f"{p}-{versions[p]}" for p in ("jax", "torch") if versions.get(p)),
    ]
    text = "-".join(parts)
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in text)


def ratios(report: dict[str, Any]) -> dict[str, Any]:
    """How many times as long torchvision takes: {dtype: {operation: {layer: ratio, ...}}}.

    Beside the layers there are "geometric_mean" and, with fewer layers than are timed, "lacks".
    """
    own, other = (results(report, f"times-{name}").get("times", {}) for name in ("oxijax", "torch"))
    found: dict[str, Any] = {}
    for dtype in ("float16", "float32"):
        for operation in _LOWEST:
            both: dict[str, Any] = {
                layer: theirs / ours
                for layer in other
                if (ours := microseconds(own, layer, dtype, operation))
                and (theirs := microseconds(other, layer, dtype, operation))
            }
            if not both:
                continue
            place = found.setdefault(dtype, {})[operation] = dict(both)
            place["geometric_mean"] = math.prod(both.values()) ** (1 / len(both))
            lacking = sorted(set(report["layers"]) - set(both))
            if lacking:
                place["lacks"] = lacking
    return found


def markdown(report: dict[str, Any]) -> str:
    """All of the report that a reader wants, as tables."""
    lines = ["# The GPU suite", ""]
    if words := _WITHOUT_TIMES.get(report["mode"]):
        lines += [f"**{words}: no time in it means anything.**", ""]
    for part in (_head, _status, _errors, _sanitizer, _comparison, _kernels, pages, peers, tuning):
        lines += part(report)
    return "\n".join(lines).rstrip() + "\n"


def _head(report: dict[str, Any]) -> Iterable[str]:
    info = results(report, "info")
    smi = info.get("nvidia_smi", {})
    yield f"- date: {report['date']}"
    versions = info.get("versions", {}).items()
    yield "- versions: " + ", ".join(f"{name} {version or 'missing'}" for name, version in versions)
    yield f"- launch handler built {results(report, 'build').get('built', '?')}"
    for when, found in smi.items():
        text = found if isinstance(found, str) else ", ".join(f"{k} {v}" for k, v in found.items())
        yield f"- nvidia-smi, {when.replace('_', ' ')}: {text}"
    rate = info.get("copy", {}).get("bytes_per_second")
    if rate:
        yield f"- copy within the GPU's memory: {rate / 1e12:.2f} TB/s, bytes read and written"
    for dtype, found in info.get("products", {}).items():
        if "flops_per_second" in found:
            yield f"- large matrix product, {dtype}: {found['flops_per_second'] / 1e12:.0f} TFLOP/s"
    yield ""


def _status(report: dict[str, Any]) -> Iterable[str]:
    yield from table(
        ["section", "outcome", "s", "limit s", "failures", "cut"],
        [
            [
                *(name, section["status"], f"{section['seconds']:.0f}"),
                *(f"{section['limit_s']:.0f}", len(section["failures"]), len(section["cut"])),
            ]
            for name, section in report["sections"].items()
        ],
    )
    for name, section in report["sections"].items():
        for failure in section["failures"]:
            why = failure["why"].strip().splitlines() or [""]
            yield f"- failed, {name}: {failure['what']}: {why[-1][:300]}"
        cut = [one["what"] for one in section["cut"]]
        if cut:
            shown = ", ".join(cut[:20]) + (f" and {len(cut) - 20} more" if len(cut) > 20 else "")
            yield f"- cut, {name}: {shown}"
        for what, why in _not_measured(section["results"]):
            yield f"- not measured, {name}{what}: {why}"
    yield ""


def _not_measured(place: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[str, str]]:
    if isinstance(place, dict):
        if "not_measured" in place:
            yield "".join(f", {key}" for key in path), place["not_measured"]
        for key, value in place.items():
            yield from _not_measured(value, (*path, key))


def _errors(report: dict[str, Any]) -> Iterable[str]:
    for name in ("smoke", "tests"):
        if counts := results(report, name).get("counts"):
            listed = ", ".join(f"{count} {what}" for what, count in counts.items())
            yield f"{name.capitalize()}: {listed}"
            yield ""
    found = results(report, "tests")
    for function, precisions in found.get("worst_errors", {}).items():
        names = [n for n in _RESULTS if any(n in errors for errors in precisions.values())]
        rows = [
            [precision, *(f"{errors[n]:.1e}" if n in errors else "" for n in names)]
            for precision, errors in precisions.items()
        ]
        yield f"{function}: largest relative error of any layer, against float64:"
        yield ""
        yield from table(["precision", *names], rows)


def _sanitizer(report: dict[str, Any]) -> Iterable[str]:
    checks = results(report, "sanitizer").get("checks", {})
    rows = [
        [name, found.get("errors", ""), found.get("kernels_ran", ""), found.get("exit_status", "")]
        for name, found in checks.items()
    ]
    if rows:
        yield "compute-sanitizer (out-of-bounds and race are wrong on purpose):"
        yield ""
        yield from table(["check", "errors", "kernels", "exit status"], rows)


def _comparison(report: dict[str, Any]) -> Iterable[str]:
    own, torch, xla = (
        results(report, f"times-{name}").get("times", {}) for name in ("oxijax", "torch", "xla")
    )
    compared = ratios(report)
    for operation, title in _TITLES.items():
        rows = []
        for dtype in ("float16", "bfloat16", "float32"):
            for layer in report["layers"]:
                ours = microseconds(own, layer, dtype, operation)
                theirs = [
                    microseconds(torch, layer, dtype, operation),
                    microseconds(xla, layer, dtype, f"xla_{operation}"),
                    microseconds(xla, layer, dtype, f"conv_{operation}"),
                ]
                if ours or any(theirs):
                    rows.append([dtype, layer, number(ours), *_with_ratios(theirs, ours)])
        if rows:
            yield f"Median microseconds, {title}, and how many times oxijax's that is:"
            yield ""
            columns = ["torchvision", "x", "XLA program", "x", "plain convolution", "x"]
            yield from table(["dtype", "layer", "oxijax", *columns], rows)
        for dtype, operations in compared.items():
            if operation in operations:
                yield f"- {_mean_text(dtype, operation, operations[operation])}"
        yield ""


def _mean_text(dtype: str, operation: str, found: dict[str, Any]) -> str:
    text = (
        f"{dtype}, {_TITLES[operation]}: {found['geometric_mean']:.2f} times as fast as torchvision"
    )
    text += " in the geometric mean"
    if dtype == "float16":
        text += f" (wanted: {_LOWEST[operation]:.0f})"
    if "lacks" in found:
        text += f", without {', '.join(found['lacks'])}"
    return text


def _kernels(report: dict[str, Any]) -> Iterable[str]:
    times = results(report, "times-oxijax").get("times", {})
    rate = results(report, "info").get("copy", {}).get("bytes_per_second")
    rows = []
    for layer, dtypes in times.items():
        for dtype, operations in dtypes.items():
            for operation, found in operations.items():
                if "flops" not in found:
                    continue
                seconds = found["median_us"] / 1e6
                bytes_ = found["bytes"] / seconds
                rows.append(
                    [
                        *(layer, dtype, operation, number(found["median_us"])),
                        *(number(found["min_us"]), f"{found['flops'] / seconds / 1e12:.1f}"),
                        f"{bytes_ / 1e12:.2f}",
                        f"{100 * bytes_ / rate:.0f}%" if rate else "",
                        number(found.get("compile_s"), ".2f"),
                        number(found.get("first_run_s"), ".2f"),
                    ]
                )
    if rows:
        yield "oxijax's operations; TB/s of the bytes that have to be moved at least; compile s is "
        yield "XLA's part, first run s has ptxas's:"
        yield ""
        columns = ["layer", "dtype", "operation", "median us", "min us", "TFLOP/s", "TB/s"]
        yield from table([*columns, "of copy", "compile s", "first run s"], rows)


def _with_ratios(values: Sequence[float | None], ours: float | None) -> Iterable[str]:
    for value in values:
        yield number(value)
        yield f"{value / ours:.2f}" if value and ours else ""
