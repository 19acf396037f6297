"""The sampling of detectors in Keras, before and after `oxijax.keras.accelerate`."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_suite.tables import table

from evidence_pages.charts import Chart, Interval
from evidence_pages.readings import Reading
from evidence_pages.wording import RATIO, Page, cell, head, number, paragraph, picture

__all__ = ["keras_page"]

_PASSES = {"forward": "forward", "forward and backward": "forward + backward"}


def keras_page(sampling: Reading, training: Reading) -> Page:
    rows = {
        f"{name}, {variant}" if variant else name: passes
        for name, core in sampling.content["cores"].items()
        for variant, passes in core["variants"].items()
    }
    ratios = {key: [_ratio(passes[key]) for passes in rows.values()] for key in _PASSES}
    series = {title: ratios[key] for key, title in _PASSES.items()}
    lines = [
        "# Detectors in Keras",
        "",
        *paragraph("""
            The functions that `oxijax.keras.accelerate` replaces, beside what it puts in their
            place, in float32 on a CPU; small models before, within and after; and a detector that
            trains both ways.
        """),
        *head(sampling, "KERAS_BACKEND=jax python benchmarks/keras_detectors.py --json FILE"),
        *paragraph(f"""
            There are {sampling.content["runs"]} runs of each program, in turn. Sizes are those of
            published models: three levels of images of 640 x 640 and 300 queries, of segmentation's
            pixel decoders three levels of 384 x 384 with a query for each pixel. Times are medians
            with quartiles in brackets; a ratio is the median of those of two runs in turn.
        """),
        *picture("keras.svg", "Ratios of oxijax's time to that of what it replaces"),
        *table(
            ["function", "pass", "oxijax, ms", "its own, ms", "ratio"],
            [
                [
                    *(name, title),
                    *(cell(_interval(passes[key][of]["spread"])) for of in ("oxijax", "plain")),
                    cell(_ratio(passes[key])),
                ]
                for name, passes in rows.items()
                for key, title in _PASSES.items()
            ],
        ),
        *paragraph("""
            "Discrete" reads one pixel for a sample on both sides, so that there is less to save.
            The programs of Mask2Former, OneFormer and the attention's call have linear layers too.
        """),
        "## Agreement",
        "",
        *paragraph("""
            The largest differences for ten drawn inputs of each function; those of gradients are
            shares of the largest one.
        """),
        *table(
            ["function", "values", "gradients"],
            [
                [name, f"{core['values_differ_by']:.1e}", f"{core['gradients_differ_by']:.1e}"]
                for name, core in sampling.content["cores"].items()
            ],
        ),
        *paragraph("Small models of each family with random weights:"),
        *table(
            ["model", "results differ by", "of at most", "after undoing"],
            [
                [
                    *(name, f"{model['difference']:.1e}", number(model["largest"])),
                    "bit for bit the same" if model["equal_after"] else "other results",
                ]
                for name, model in sampling.content["models"].items()
            ],
        ),
        *_training(training),
    ]
    chart = Chart(
        "Sampling of detectors in Keras",
        RATIO,
        [_label(name) for name in rows],
        series,
        log=True,
        reference=(1.0, "equal times"),
    )
    return Page(lines, {"keras.svg": chart})


def _label(name: str) -> str:
    """The family of zeromodels, or keras-hub's function or method, with the variant."""
    place, _, function = name.partition(": ")
    library, _, family = place.partition(", ")
    return family if library == "zeromodels" else function.rpartition(".")[2]


def _interval(spread: Mapping[str, float]) -> Interval:
    return Interval(spread["median"], spread["lower_quartile"], spread["upper_quartile"])


def _ratio(found: Mapping[str, Any]) -> Interval:
    return _interval(found["time_ratio"])


def _training(reading: Reading) -> Iterable[str]:
    found = reading.content
    options = " ".join(f"--{name} {found[name]}" for name in ("steps", "batch", "scenes", "seed"))
    yield "## A detector that trains"
    yield ""
    yield from paragraph(f"""
        `examples/keras_detector.py` trains a small D-FINE on scenes of digits for {found["steps"]}
        steps, each of which is made with the sampling of zeromodels and with oxijax's, from the
        same weights. Times are medians; temporaries are XLA's own count for a step.
    """)
    command = f"KERAS_BACKEND=jax python examples/keras_detector.py {options} --json FILE"
    yield from head(reading, command, found["libraries"])
    steps = [step for step in (1, 10, 100, found["steps"]) if step <= found["steps"]]
    yield from table(
        ["sampling", "a step, ms", "temporaries, MiB", *(f"loss {step}" for step in steps)],
        [
            [
                *(name, number(1e3 * statistics.median(each["seconds"]))),
                number(each["temporaries_mib"]),
                *(f"{each['losses'][step - 1]:.5f}" for step in steps),
            ]
            for name, each in found["samplings"].items()
        ],
    )
    yield from paragraph(f"""
        Losses differ by {found["losses_differ_by"]:.1e} of themselves at most. On
        {found["scenes"]} scenes of digits that it has not seen the detector has a COCO average
        precision of {found["AP"]:.3f}, and of {found["AP50"]:.3f} at an IoU of 0.5: one seed.
    """)
