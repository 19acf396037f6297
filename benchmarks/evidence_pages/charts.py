"""A chart of a few points a row with the spread of each, as an SVG file."""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Chart", "Interval", "digest_of", "number"]

# Of Okabe and Ito's palette, which colour-blind readers can tell apart; markers differ as well.
_COLORS, _MARKERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), "osD^"
_DIGEST = "Digest of the figures: "


@dataclasses.dataclass(frozen=True)
class Interval:
    """A figure, and the bounds of its spread where they are known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The figure itself, twice, where its spread is not known."""
        return (
            self.value if self.low is None else self.low,
            self.value if self.high is None else self.high,
        )


@dataclasses.dataclass(frozen=True)
class Chart:
    """What is drawn.

    Attributes:
      title: above the chart.
      axis: what is measured, with its unit.
      rows: names of the rows, from the top.
      series: names of the points of a row, with one figure for each row, or None.
      log: whether the axis is logarithmic.
      reference: where a vertical line is drawn, and what stands beside it.
    """

    title: str
    axis: str
    rows: Sequence[str]
    series: Mapping[str, Sequence[Interval | None]]
    log: bool = False
    reference: tuple[float, str] | None = None

    @property
    def digest(self) -> str:
        """A hash of all that is drawn, which the file holds too."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()

    def draw(self, path: pathlib.Path) -> None:
        """Writes the file."""
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        settings: Any = {"svg.hashsalt": "oxijax", "font.family": "DejaVu Sans", "font.size": 10}
        with mpl.rc_context(settings):
            count = len(self.series)
            figure = Figure((8, 1.5 + len(self.rows) * (0.2 + 0.22 * count)), layout="constrained")
            FigureCanvasSVG(figure)
            axes = figure.subplots()
            for index, (name, intervals) in enumerate(self.series.items()):
                places = [row + 0.26 * (index - (count - 1) / 2) for row in range(len(self.rows))]
                points = [(p, i) for p, i in zip(places, intervals, strict=True) if i]
                spread = [
                    [i.value - i.bounds[0] for _, i in points],
                    [i.bounds[1] - i.value for _, i in points],
                ]
                axes.errorbar(
                    [i.value for _, i in points],
                    [place for place, _ in points],
                    xerr=spread if any(map(any, spread)) else None,
                    fmt=_MARKERS[index], color=_COLORS[index], label=name,
                    markersize=5.5, capsize=3, elinewidth=1.4,
                )  # fmt: skip
                for place, interval in points:
                    axes.annotate(
                        number(interval.value), (interval.bounds[1], place),
                        xytext=(7, 0), textcoords="offset points", va="center", fontsize=8.5,
                        color=_COLORS[index],
                    )  # fmt: skip
            if self.log:
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axes.xaxis.set_minor_formatter(NullFormatter())
                axes.margins(x=0.12)
            else:
                values = [i.bounds[1] for s in self.series.values() for i in s if i]
                axes.set_xlim(0, 1.15 * max(values))
            if self.reference:
                place, words = self.reference
                axes.axvline(place, color="#555555", linewidth=1, linestyle="--")
                axes.annotate(
                    words, (place, 1), xycoords=("data", "axes fraction"), xytext=(4, 3),
                    textcoords="offset points", fontsize=8.5, color="#555555",
                )  # fmt: skip
            axes.set_yticks(range(len(self.rows)), self.rows)
            axes.set_ylim(len(self.rows) - 0.5, -0.5)
            axes.set_xlabel(self.axis)
            axes.grid(axis="x", color="#dddddd", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(self.title, loc="left", fontsize=11, pad=16)
            if count > 1:
                figure.legend(loc="outside lower center", ncols=count, frameon=False)
            metadata = {"Date": None, "Creator": None, "Description": _DIGEST + self.digest}
            figure.savefig(path, metadata=metadata)


def number(value: float) -> str:
    """Three digits that count, and no power of ten."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def digest_of(path: pathlib.Path) -> str | None:
    """The hash of what a file shows, as `Chart.draw` has written it."""
    found = re.search(f"{_DIGEST}([0-9a-f]{{64}})", path.read_text())
    return found[1] if found else None
