"""The picture of `python -m oxijax roofline`: a GPU's roofs, and a product under them."""

from pathlib import Path
from typing import IO, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from oxijax._cli.quantities import number, time
from oxijax._core.arguments.precision import PTX_DTYPES
from oxijax._gemm.roofline import DOT_GENERAL, Roofline
from ptx.devices import DATA_SHEETS, DataSheet, Peak

__all__ = ["draw"]

_TEXT, _PALE, _FAINT = "#222222", "#666666", "#BBBBBB"
_ROOF, _POINT = "#0072B2", "#D55E00"  # apart for colour-blind eyes too
_MEMORY, _COMPUTE = "#EAF3F9", "#FFFFFF"  # behind what each bounds
_FLAT_SHARE = 0.38
_HALO = {"boxstyle": "square,pad=0.15", "color": "white"}  # behind text that lines may cross


def draw(file: Path | IO[bytes], result: Roofline) -> None:
    """Writes the picture, a PNG file."""
    sheet = DATA_SHEETS[result.device]
    figure = Figure(figsize=(9.6, 6.4), dpi=150, facecolor="white")
    axes = figure.add_axes((0.1, 0.14, 0.87, 0.69))
    peaks = sheet.peaks(PTX_DTYPES[result.dtype])
    _set_limits(axes, result, peaks)
    _draw_axes(axes)
    for peak in peaks:
        _draw_peak(axes, sheet, peak, used=peak.unit == result.unit)
    _draw_memory(axes, result)
    _draw_balance(axes, result)
    _draw_point(axes, result)
    _draw_title(figure, result, sheet)
    figure.savefig(file, format="png")


def _set_limits(axes: Axes, result: Roofline, peaks: tuple[Peak, ...]) -> None:
    """Room for the point, for where all roofs begin, and for what is written on them."""
    balances = [peak.tflops / result.peak_bandwidth_tbps for peak in peaks]
    left = min(result.intensity / 10, min(balances) / 30)
    # A share of the width for the flat roofs, on which their names stand.
    right = left * (max(balances) / left) ** (1 / (1 - _FLAT_SHARE))
    axes.set(xscale="log", yscale="log", xlim=(left, max(right, 4 * result.intensity)))
    axes.set_ylim(left * result.peak_bandwidth_tbps, 3.5 * peaks[0].tflops)


def _draw_axes(axes: Axes) -> None:
    axes.set_xlabel("arithmetic intensity, FLOP / byte", size=13, color=_TEXT, labelpad=7)
    axes.set_ylabel("TFLOP/s", size=13, color=_TEXT, labelpad=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=12, labelcolor=_TEXT, color=_FAINT)
    axes.grid(color="#E4E4E4", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)


def _write(
    axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Writes a text at an offset, in points of type, from a point; sizes and alignment by name."""
    style = {"size": 12, "color": _PALE, **style}
    axes.annotate(text, point, xytext=offset, textcoords="offset points", **style)


def _draw_peak(axes: Axes, sheet: DataSheet, peak: Peak, *, used: bool) -> None:
    """The flat roof of a unit: bold if it is the one that multiplies."""
    right = axes.get_xlim()[1]
    start = peak.tflops / sheet.bandwidth
    color, width, style = (_ROOF, 2.6, "-") if used else (_PALE, 1.4, (0, (4, 3)))
    axes.plot(
        [start, right],
        [peak.tflops] * 2,
        color=color,
        lw=width,
        ls=style,
        solid_capstyle="round",
        zorder=3,
    )
    _write(
        axes,
        f"{number(peak.tflops)} TFLOP/s, {peak.unit}",
        (right, peak.tflops),
        (-4, 7 if used else -7),
        ha="right",
        va="bottom" if used else "top",
        color=color,
        bbox=_HALO,
        zorder=2.5,
    )


def _draw_memory(axes: Axes, result: Roofline) -> None:
    """The slope of the memory, with its name along it."""
    bandwidth, (left, _) = result.peak_bandwidth_tbps, axes.get_xlim()
    ends = np.array([left, result.balance_point])
    axes.plot(ends, bandwidth * ends, color=_ROOF, lw=2.6, solid_capstyle="round", zorder=3)
    # Below the point or above it, where there is more room, and above the point's own words.
    bottom, top = axes.get_ylim()
    lowest = left * (top / bottom) ** 0.33
    low, mid, high = np.log([lowest, min(result.intensity, ends[1]), ends[1]])
    intensity = np.exp((low + mid) / 2 if mid - low > high - mid else (mid + high) / 2)
    pixels = axes.transData.transform(np.stack([ends, bandwidth * ends], axis=1))
    (dx, dy) = pixels[1] - pixels[0]
    angle = np.arctan2(dy, dx)
    _write(
        axes,
        f"{bandwidth:g} TB/s",
        (float(intensity), float(bandwidth * intensity)),
        (-9 * np.sin(angle), 9 * np.cos(angle)),
        rotation=float(np.degrees(angle)),
        rotation_mode="anchor",
        ha="center",
        va="center",
        color=_ROOF,
    )


def _draw_balance(axes: Axes, result: Roofline) -> None:
    balance, (left, right) = result.balance_point, axes.get_xlim()
    axes.axvspan(left, balance, color=_MEMORY, lw=0, zorder=0)
    axes.axvspan(balance, right, color=_COMPUTE, lw=0, zorder=0)
    axes.axvline(balance, color=_FAINT, lw=1.2, zorder=1)
    xycoords = ("data", "axes fraction")
    top = {"xycoords": xycoords, "va": "top"}
    _write(axes, "bound by memory", (balance, 1), (-8, -6), ha="right", **top)
    _write(axes, "bound by arithmetic", (balance, 1), (8, -6), ha="left", **top)
    x, side = (7, "left") if result.bound == "memory" else (-7, "right")  # away from the product
    text = f"balance point {number(balance)}"
    _write(axes, text, (balance, 0), (x, 7), xycoords=xycoords, ha=side, va="bottom")


def _draw_point(axes: Axes, result: Roofline) -> None:
    x, y = result.intensity, result.attainable_tflops
    axes.plot([x, x], [axes.get_ylim()[0], y], color=_POINT, lw=1.2, ls=(0, (1, 2)), zorder=2)
    axes.plot([x], [y], "o", ms=11, color=_POINT, mec="white", mew=1.6, zorder=5)
    # Low, where no roof is, and on the side where it has room.
    to_axes = axes.transData + axes.transAxes.inverted()
    across, up = to_axes.transform((x, y))
    balance, _ = to_axes.transform((result.balance_point, y))
    on_right = (balance if across < balance else 1) - across > 0.23
    _write(
        axes,
        f"{number(x)} FLOP/byte\n{number(y)} TFLOP/s\nat least {time(result.attainable_us)}",
        (x, min(up - 0.03, 0.3)),
        (12 if on_right else -12, 0),
        xycoords=("data", "axes fraction"),
        ha="left" if on_right else "right",
        va="top",
        size=13,
        linespacing=1.35,
        color=_POINT,
        zorder=6,
    )


def _draw_title(figure: Figure, result: Roofline, sheet: DataSheet) -> None:
    bound = "memory" if result.bound == "memory" else "arithmetic"
    title = f"{result.device}, {result.dtype}: {bound} bounds this product"
    sizes = [f"m = {result.m:,}, n = {result.n:,}, k = {result.k:,}"]
    if result.batch > 1:
        sizes.append(f"batch = {result.batch:,}")
    takes = f"takes its kernel {result.strategy}"
    if result.strategy == DOT_GENERAL:
        takes = "hands it to jax.lax.dot_general"
    caption = f"{', '.join(sizes)}. oxijax.gemm {takes}."
    figure.text(0.015, 0.945, title, size=18, weight="bold", color=_TEXT)
    figure.text(0.015, 0.888, caption, size=13, color=_PALE)
    figure.text(0.985, 0.018, f"Rates: {sheet.source}", size=9.5, color=_PALE, ha="right")
