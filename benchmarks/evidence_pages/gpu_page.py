"""Results of the GPU suite: deformable convolution beside torchvision, and kernels beside XLA."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_suite.report_against_xla import against_xla
from gpu_suite.tables import results, table

from evidence_pages.charts import Chart, Interval
from evidence_pages.readings import Reading
from evidence_pages.wording import (
    RATIO,
    Page,
    cell,
    geometric_mean,
    head,
    number,
    paragraph,
    picture,
)

__all__ = ["gpu_page"]

_COMMAND = "python benchmarks/gpu.py --out DIR"
_SHOWN = 20  # of what failed, or was left out
_DTYPES = ("float16", "bfloat16", "float32")
_PASSES = {"forward": "forward", "forward_backward": "forward + backward"}
_BOUNDS = {"memory": "memory-bound or small", "products": "large"}


def gpu_page(readings: Mapping[str, Reading]) -> Page:
    """The page, with a section for each GPU; that nothing is measured, if there are none."""
    lines = ["# On a GPU", ""]
    if not readings:
        lines += [
            *paragraph("""
                **Nothing is measured on a GPU yet**: `benchmarks/results` has no report of the GPU
                suite. The kernels are proven in an emulator, and their times are
                [modelled](../performance.md#modelled), not measured. This command checks and times
                everything on one GPU, in less than 8 minutes:
            """),
            "```sh",
            _COMMAND,
            "```",
            "",
            *paragraph("""
                Its JSON file belongs into `benchmarks/results`, and `python benchmarks/evidence.py`
                then makes this page of it.
            """),
        ]
        return Page(lines, {})
    lines += [
        *paragraph("""
            Each time is the median of nine samples, with the fastest and the slowest in brackets. A
            ratio is that of two medians; its bounds are the fastest time of one side over the
            slowest of the other, and error bars are these bounds.
        """),
    ]
    charts = {}
    for gpu, reading in readings.items():
        ratios = _torchvision_ratios(reading.content)
        name = f"gpu-{''.join(c if c.isalnum() else '-' for c in gpu.lower())}.svg"
        lines += [f"## {gpu}", "", *head(reading, _COMMAND), *_outcome(reading.content)]
        if ratios:
            charts[name] = _chart(gpu, ratios)
            lines += picture(name, f"Ratios of oxijax's time to that of torchvision on {gpu}")
            lines += _torchvision(reading.content, ratios)
        else:
            lines += paragraph("Not measured beside torchvision: the report has no times of it.")
        lines += [*_xla(reading.content), *_peers(reading.content)]
    return Page(lines, charts)


def _outcome(report: Mapping[str, Any]) -> Iterable[str]:
    """What failed and what was left out, and how many tests passed."""
    counts = results(dict(report), "tests").get("counts", {})
    if counts:
        yield "- Tests on this GPU: " + ", ".join(f"{n} {what}" for what, n in counts.items()) + "."
    for key, words in (("failures", "failed"), ("cut", "left out for lack of time")):
        names = [
            f"{section}: {one['what']}" + (f" ({one['why']})" if key == "failures" else "")
            for section, found in report["sections"].items()
            for one in found[key]
        ]
        shown = "; ".join(names[:_SHOWN]) or "nothing"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"- {words[0].upper()}{words[1:]}: {shown}{more}."
    earlier: dict[str, list[str]] = {}
    for section, found in report["sections"].items():
        if found.get("date", report["date"]) != report["date"]:
            earlier.setdefault(found["date"], []).append(section)
    for date, sections in earlier.items():
        yield f"- Of {date}, with oxijax as it was then: {', '.join(sections)}."
    yield ""


def _time(report: Mapping[str, Any], section: str, *keys: str) -> Interval | None:
    return _interval(results(dict(report), section).get("times", {}), *keys)


def _interval(place: Any, *keys: str) -> Interval | None:
    for key in keys:
        place = place.get(key, {})
    if "median_us" not in place:
        return None
    return Interval(place["median_us"], place["min_us"], place["max_us"])


def _over(ours: Interval, theirs: Interval) -> Interval:
    (low, high), (least, most) = ours.bounds, theirs.bounds
    return Interval(ours.value / theirs.value, low / most, high / least)


def _torchvision_ratios(report: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Interval]]:
    """By dtype and layer, the ratio of each pass that both sides have."""
    found: dict[tuple[str, str], dict[str, Interval]] = {}
    for dtype in _DTYPES:
        for layer in report["layers"]:
            for key in _PASSES:
                ours = _time(report, "times-oxijax", layer, dtype, key)
                theirs = _time(report, "times-torch", layer, dtype, key)
                if ours and theirs:
                    found.setdefault((dtype, layer), {})[key] = _over(ours, theirs)
    return found


def _chart(gpu: str, ratios: Mapping[tuple[str, str], Mapping[str, Interval]]) -> Chart:
    return Chart(
        f"deform_conv beside torchvision.ops.deform_conv2d on {gpu}",
        RATIO,
        [f"{layer}, {dtype}" for dtype, layer in ratios],
        {title: [one.get(key) for one in ratios.values()] for key, title in _PASSES.items()},
        log=True,
        reference=(1.0, "equal times"),
    )


def _torchvision(
    report: Mapping[str, Any], ratios: Mapping[tuple[str, str], Mapping[str, Interval]]
) -> Iterable[str]:
    for key, title in _PASSES.items():
        present = {at: one[key] for at, one in ratios.items() if key in one}
        if not present:
            continue
        rows = []
        for (dtype, layer), ratio in present.items():
            times = [
                cell(found)
                for section in ("times-oxijax", "times-torch")
                if (found := _time(report, section, layer, dtype, key))
            ]
            rows.append([layer, dtype, *times, cell(ratio)])
        for dtype in _DTYPES:
            values = [one.value for (of, _), one in present.items() if of == dtype]
            if values:
                rows.append(["geometric mean", dtype, "", "", number(geometric_mean(values))])
        yield f"Deformable convolution, {title}, measured:"
        yield ""
        yield from table(["layer", "dtype", "oxijax, µs", "torchvision, µs", "ratio"], rows)


def _xla(report: Mapping[str, Any]) -> Iterable[str]:
    """Geometric means of the families that have a counterpart of XLA's."""
    rows = []
    for section, dtypes in against_xla(dict(report)).items():
        for dtype, operations in dtypes.items():
            for operation, part in operations.items():
                for bound, title in _BOUNDS.items():
                    found = [
                        one for one in part.get("layers", {}).values() if one["bound"] == bound
                    ]
                    if found:
                        mean = geometric_mean(1 / one["ratio"] for one in found)
                        family = section.removeprefix("times-")
                        words = operation.replace("_", " ")
                        rows.append([family, dtype, words, title, len(found), number(mean)])
    if rows:
        yield "Kernels beside XLA's own program, geometric means over layers, measured:"
        yield ""
        headings = ["family", "dtype", "operation", "layers", "how many", "ratio"]
        yield from table(headings, rows)


def _peers(report: Mapping[str, Any]) -> Iterable[str]:
    """The sampling operators beside kernels of others."""
    found = results(dict(report), "times-peers")
    rows = []
    for layer, dtypes in found.get("times", {}).items():
        for dtype in dtypes:
            for peer, times in found["peers"].items():
                cells = [layer, dtype, peer]
                for of_ours, of_theirs in (("forward", "forward"), ("forward_backward", "both")):
                    ours = _interval(found["times"], layer, dtype, of_ours)
                    theirs = _interval(times, layer, dtype, of_theirs)
                    if ours and theirs:
                        values = (ours.value, theirs.value, ours.value / theirs.value)
                        cells += map(number, values)
                if len(cells) > 3:
                    rows.append(cells)
    if rows:
        yield from paragraph("""
            The sampling operators beside kernels of others on the same operands, without a softmax,
            measured: forward, then forward + backward. CUDA kernels are called with pointers, where
            oxijax's time has JAX's:
        """)
        parts = ["oxijax, µs", "theirs, µs", "ratio"]
        both = [f"both: {part}" for part in parts]
        yield from table(["layer", "dtype", "kernels of", *parts, *both], rows)
