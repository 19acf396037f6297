"""Deformable convolution on a CPU, beside XLA's plain convolution and torchvision's operator."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_suite.tables import table

from evidence_pages.charts import Chart
from evidence_pages.readings import Reading
from evidence_pages.wording import (
    RATIO,
    Page,
    cell,
    geometric_mean,
    head,
    interval,
    number,
    paragraph,
    picture,
)
from oxijax.testing import BENCHMARK_CASES, DeformConvCase

__all__ = ["cpu_page", "suite_command"]

# Some results have a layer that is no longer measured: of no network, and with a bias.
_CASES = {
    **BENCHMARK_CASES,
    "180x320x64-og16": DeformConvCase("180x320x64-og16", (1, 180, 320, 64), 64, offset_groups=16),
}
_PASSES = {"forward": "forward", "forward_backward": "forward + backward"}
_WITHOUT_SPREAD = """
This result has no spread: each time is the best of all rounds, a ratio is that of the two best
times, and the pictures have no error bars.
"""
_WITH_SPREAD = """
Each time is the median over rounds, with the quartiles in brackets. What is compared takes turns
in each round, and is timed in its turn's second run; a ratio is the median of the rounds' ratios.
Error bars are quartiles too. The command itself prints the best of all rounds, which is less than
the median.
"""


def suite_command(reading: Reading) -> str:
    """What measures the result again."""
    limits = f"--repeats {reading.content['repeats']} --seconds {reading.content['seconds']:g}"
    return f"python -m oxijax bench --suite cpu {limits} --json FILE"


def cpu_page(reading: Reading) -> Page:
    found = reading.content
    theirs = found["torchvision"]
    charts = {"cpu-xla.svg": _chart(found["layers"], "XLA's plain convolution")}
    if "layers" in theirs:
        charts["cpu-torchvision.svg"] = _chart(theirs["layers"], "torchvision.ops.deform_conv2d")
    lines = [
        "# Deformable convolution on a CPU",
        "",
        *paragraph("""
            `oxijax.deform_conv` in float32 with mask and bias, beside XLA's plain convolution of
            the same layer, and beside torchvision's CPU operator. The backward pass computes the
            gradients with respect to all operands.
        """),
        *head(reading, suite_command(reading), theirs.get("versions")),
        *paragraph(_WITH_SPREAD if _has_spread(found["layers"]) else _WITHOUT_SPREAD),
        "## In short",
        "",
        "oxijax's time over the other's, geometric means over the layers below, measured:",
        "",
        *table(["beside", *_PASSES.values()], list(_means(found))),
        "## Layers",
        "",
        *_layers(found["layers"]),
        "## Beside XLA's plain convolution",
        "",
        *paragraph("""
            The plain convolution has the same images, weights and bias, and reads each pixel where
            it is: the ratio is what deformation costs.
        """),
        *picture("cpu-xla.svg", _words(found["layers"], "XLA's plain convolution")),
        *_beside(found["layers"], "conv_", "convolution"),
        "## Beside torchvision",
        "",
        *_torchvision(theirs),
        "## Temporaries",
        "",
        *paragraph("""
            The memory that XLA needs beside operands and results, for forward and backward pass
            together. The samples of all nine taps at once, a column buffer as other libraries have
            it, would need what the last column says, which is calculated from the shapes.
        """),
        *table(
            ["layer", "temporaries, MiB", "column buffer, MiB"],
            [
                [name, number(layer["temporaries_mib"]), number(_column_buffer(name))]
                for name, layer in found["layers"].items()
            ],
        ),
        "## Larger images",
        "",
        *paragraph("""
            One image with 64 channels: what a pixel costs, and how many times as much as in the
            smallest image.
        """),
        *table(
            [
                "image",
                *(
                    f"{title}, {what}"
                    for title in _PASSES.values()
                    for what in ("µs a pixel", "of the smallest image's")
                ),
            ],
            [
                [
                    image,
                    *(
                        cell(interval(size, f"{key}_{what}"))
                        for key in _PASSES
                        for what in ("us_per_pixel", "growth")
                    ),
                ]
                for image, size in found["image_sizes"].items()
            ],
        ),
    ]
    return Page(lines, charts)


def _means(found: Mapping[str, Any]) -> Iterable[list[str]]:
    for other, layers in (
        ("XLA's plain convolution", found["layers"]),
        ("torchvision's CPU operator", found["torchvision"].get("layers")),
    ):
        if layers:
            yield [other, *(number(_mean(layers, key)) for key in _PASSES)]


def _chart(layers: Mapping[str, Any], other: str) -> Chart:
    return Chart(
        f"deform_conv beside {other}",
        RATIO,
        list(layers),
        {
            title: [interval(layer, f"{key}_ratio") for layer in layers.values()]
            for key, title in _PASSES.items()
        },
        log=True,
        reference=(1.0, "equal times"),
    )


def _words(layers: Mapping[str, Any], other: str) -> str:
    means = " and ".join(f"{number(_mean(layers, key))} {title}" for key, title in _PASSES.items())
    return f"Ratios of oxijax's time to that of {other}, layer by layer; geometric means {means}"


def _mean(layers: Mapping[str, Any], key: str) -> float:
    return geometric_mean(interval(layer, f"{key}_ratio").value for layer in layers.values())


def _layers(layers: Mapping[str, Any]) -> Iterable[str]:
    rows = []
    for name in layers:
        case = _CASES[name]
        images, height, width, channels = case.x
        rows.append(
            [
                *(name, f"{images} x {height} x {width}"),
                *(f"{channels} to {case.out_channels}", case.offset_groups),
            ]
        )
    yield from table(["layer", "images", "channels", "offset groups"], rows)
    yield from paragraph("""
        All are 3x3 with stride 1. R50-c3 to c5 are stages of a ResNet-50 detector for an image of
        800 x 1344 pixels.
    """)


def _beside(layers: Mapping[str, Any], prefix: str, other: str) -> Iterable[str]:
    """A table for each pass, and the means."""
    for key, title in _PASSES.items():
        figures = (f"{key}_ms", f"{prefix}{key}_ms", f"{key}_ratio")
        rows = [
            [name, *(cell(interval(layer, figure)) for figure in figures)]
            for name, layer in layers.items()
        ]
        yield f"{title[0].upper()}{title[1:]}, measured:"
        yield ""
        rows.append(["geometric mean", "", "", number(_mean(layers, key))])
        yield from table(["layer", "oxijax, ms", f"{other}, ms", "ratio"], rows)
    rounds = [layer["rounds"] for layer in layers.values() if "rounds" in layer]
    if rounds:
        best = (
            f"{number(geometric_mean(layer[f'{key}_ratio'] for layer in layers.values()))} {title}"
            for key, title in _PASSES.items()
        )
        yield from paragraph(f"""
            There were {min(rounds)} to {max(rounds)} rounds of a layer. The ratios of the best
            times have geometric means of {" and ".join(best)}.
        """)


def _torchvision(found: Mapping[str, Any]) -> Iterable[str]:
    if "layers" not in found:
        yield from paragraph(f"Not measured: {found['not_measured']}.")
        return
    means = [_mean(found["layers"], key) for key in _PASSES]
    yield from paragraph(f"""
        Both use {found["threads"]} threads and find the same output, which is checked before
        anything is timed. torchvision reads contiguous NCHW tensors. oxijax's times differ from
        those above, since other programs run between its own. In the geometric mean oxijax is
        {number(1 / means[0])} times as fast forward, and {number(1 / means[1])} times with the
        backward pass.
    """)
    yield from picture("cpu-torchvision.svg", _words(found["layers"], "torchvision's operator"))
    yield from _beside(found["layers"], "torchvision_", "torchvision")


def _has_spread(layers: Mapping[str, Any]) -> bool:
    return all("spread" in layer for layer in layers.values())


def _column_buffer(name: str) -> float:
    """MiB of the samples of all taps in float32."""
    case = _CASES[name]
    images, height, width, _ = case.y
    kernel_h, kernel_w = case.kernel_size
    return 4 * images * height * width * kernel_h * kernel_w * case.x[3] / 2**20
