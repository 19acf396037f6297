"""The sampling operators on a CPU, beside the same in plain JAX."""

from typing import Any

from gpu_suite.tables import table

from evidence_pages.charts import Chart, Interval
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

__all__ = ["sampling_page"]

_WITHOUT_SPREAD = """
This result has no spread: each time is the best of all runs, a ratio is that of the two best times,
and the picture has no error bars.
"""
_WITH_SPREAD = """
Each time is their median, with the quartiles in brackets; a ratio is the median of the ratios of
two runs in turn. Error bars are quartiles.
"""
_PASSES = {"forward": "forward", "forward and backward": "forward + backward"}


def sampling_page(reading: Reading) -> Page:
    layers = reading.content["layers"]
    ratios = {key: [_ratio(layer[key]) for layer in layers.values()] for key in _PASSES}
    chart = Chart(
        "Sampling operators beside plain JAX",
        RATIO,
        list(layers),
        {title: ratios[key] for key, title in _PASSES.items()},
        log=True,
        reference=(1.0, "equal times"),
    )
    means = {key: geometric_mean(each.value for each in ratios[key]) for key in _PASSES}
    runs = reading.content["runs"]
    has_spread = all("time_ratio" in layer[key] for layer in layers.values() for key in _PASSES)
    spread = _WITH_SPREAD if has_spread else _WITHOUT_SPREAD
    lines = [
        "# Sampling operators on a CPU",
        "",
        *paragraph("""
            The sampling operators in float32, beside the same in plain JAX, which gathers the four
            pixels of every sample, and leaves gradients to `jax.vjp`. Grids and lookups are beside
            the fastest of gathers of pixels, gathers of rows of channels, and
            `jax.scipy.ndimage.map_coordinates`. Programs are compiled, find the same results, and
            take turns in one process. The gradient of the result is an array of its own.
        """),
        *head(reading, f"python benchmarks/sampling.py --runs {runs} --json FILE"),
        *paragraph(f"""
            There are {runs} timed runs of each program, each after one that is not timed. {spread}
        """),
        *picture("sampling.svg", "Ratios of oxijax's time to that of plain JAX, layer by layer"),
        *table(
            ["layer", "pass", "oxijax, ms", "plain JAX, ms", "ratio"],
            [
                [
                    *(name, title),
                    *(cell(_time(layer[key][of])) for of in ("oxijax", "plain")),
                    cell(_ratio(layer[key])),
                ]
                for name, layer in layers.items()
                for key, title in _PASSES.items()
            ],
        ),
        *paragraph(f"""
            In the geometric mean oxijax is {number(1 / means["forward"])} times as fast forward,
            and {number(1 / means["forward and backward"])} times with the backward pass.
        """),
        "## Temporaries",
        "",
        *paragraph("The memory that XLA needs beside operands and results, by its own account."),
        *table(
            ["layer", "pass", "oxijax, MiB", "plain JAX, MiB"],
            [
                [
                    *(name, title),
                    *(number(layer[key][of]["temporaries_mib"]) for of in ("oxijax", "plain")),
                ]
                for name, layer in layers.items()
                for key, title in _PASSES.items()
            ],
        ),
        *_dtypes(layers),
        "## Layers",
        "",
        *paragraph("""
            The encoder of Deformable DETR has the 22,223 pixels and queries of an image of 800 x
            1333 in four levels, 8 heads with 32 channels and 4 points a level; the decoder has 300
            queries. InternImage's stages are `oxijax.dcnv3` on 8 images of 56 x 56 with 64
            channels, and of 14 x 14 with 256, in groups of 16. RAFT's lookup is
            `oxijax.sample_windows` with radius 4 in 2,852 volumes of 46 x 62, one for each pixel
            of an eighth of 368 x 496. A warp is `oxijax.grid_sample` about two pixels from each
            pixel, of images and volumes by their sizes and channels. The last layer is
            `oxijax.deform_conv` of 8 x 32 x 32 voxels with 32 channels to as many.
        """),
    ]
    return Page(lines, {"sampling.svg": chart})


def _dtypes(layers: dict[str, Any]) -> list[str]:
    """Images in half precision beside those in float32, where they were measured."""
    layers = {name: layer for name, layer in layers.items() if "dtypes" in layer["forward"]}
    if not layers:
        return []
    names = ("float32", "float16", "bfloat16")
    return [
        "## Half precision",
        "",
        *paragraph("""
            oxijax alone, with images in each dtype and positions and weights in float32: the three
            programs take turns. Sums are in float32 for all.
        """),
        *table(
            ["layer", "pass", *(f"{n}, ms" for n in names), *(f"{n}, MiB" for n in names)],
            [
                [
                    *(name, title),
                    *(cell(_time(layer[key]["dtypes"][n])) for n in names),
                    *(number(layer[key]["dtypes"][n]["temporaries_mib"]) for n in names),
                ]
                for name, layer in layers.items()
                for key, title in _PASSES.items()
            ],
        ),
    ]


def _time(program: dict[str, Any]) -> Interval:
    if "spread" not in program:
        return Interval(program["ms"])
    return interval({"spread": {"ms": program["spread"]}}, "ms")


def _ratio(programs: dict[str, Any]) -> Interval:
    if "time_ratio" not in programs:
        return Interval(programs["oxijax"]["ms"] / programs["plain"]["ms"])
    return interval({"spread": programs}, "time_ratio")
