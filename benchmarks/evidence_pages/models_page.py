"""Whole networks: BasicVSR++ beside PyTorch, and the examples that train for a given time."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_suite.tables import table

from evidence_pages.charts import Chart, Interval
from evidence_pages.readings import Reading
from evidence_pages.wording import Page, cell, head, interval, paragraph, picture

__all__ = ["models_page"]

_PASSES = ("forward", "forward and backward")


def models_page(readings: Mapping[str, Reading]) -> Page:
    """The page, of the result kinds that it has a section for."""
    beside = readings["basicvsr-pp-beside-pytorch"]
    lines = [
        "# Whole networks",
        "",
        *paragraph("""
            BasicVSR++ with the same weights in Flax and in PyTorch, timed on a CPU; and how well
            two examples do that train for a given time on a CPU.
        """),
        *_beside_pytorch(beside),
        *_alignment(readings["basicvsr-alignment"]),
        *_digits(readings["detect-digits"]),
    ]
    return Page(lines, {"models-basicvsr.svg": _chart(beside)})


def _seconds(reading: Reading, what: str, key: str) -> Interval:
    if "spread" in reading.content:
        return interval({"spread": reading.content["spread"][what]}, key)
    times = reading.content["median_seconds"][what]
    return Interval(times["oxijax_s"] / times["torch_s"] if key == "time_ratio" else times[key])


def _chart(reading: Reading) -> Chart:
    series = {"oxijax": "oxijax_s", "PyTorch": "torch_s"}
    return Chart(
        "BasicVSR++ beside PyTorch",
        "seconds (less is better)",
        [what.replace("and", "+") for what in _PASSES],
        {name: [_seconds(reading, what, key) for what in _PASSES] for name, key in series.items()},
    )


def _beside_pytorch(reading: Reading) -> Iterable[str]:
    found = reading.content
    images, frames, height, width, _ = found["video"]
    yield "## BasicVSR++ beside PyTorch"
    yield ""
    yield from paragraph(f"""
        The network with 64 channels and {found["blocks"]} residual blocks a branch, for {images}
        video of {frames} frames with {height} x {width} pixels, in float32. Both have the same
        weights and find the same video and the same gradient with respect to it. The backward pass
        computes the gradients with respect to frames and weights. Compilation is not in the times.
    """)
    sizes = f"--frames {frames} --size {height} {width} --blocks {found['blocks']}"
    command = f"python benchmarks/basicvsr_times.py --runs {found['runs']} {sizes} --json FILE"
    yield from head(reading, command)
    spread = (
        "The quartiles are in brackets; error bars are quartiles."
        if "spread" in found
        else "This result has no spread, and the picture has no error bars."
    )
    yield from paragraph(f"Each time is the median of {found['runs']} runs in turn. {spread}")
    yield from picture("models-basicvsr.svg", "Seconds that BasicVSR++ takes in oxijax and PyTorch")
    yield from table(
        ["pass", "oxijax, s", "PyTorch, s", "ratio"],
        [
            [
                what.replace("and", "+"),
                *(
                    cell(_seconds(reading, what, key))
                    for key in ("oxijax_s", "torch_s", "time_ratio")
                ),
            ]
            for what in _PASSES
        ],
    )


def _alignment(reading: Reading) -> Iterable[str]:
    found = reading.content
    yield "## The alignment of BasicVSR++"
    yield ""
    yield from paragraph(f"""
        `examples/basicvsr_pp.py` trains the alignment for {found["seconds"]} seconds to make a
        frame of the two before it, and tests it on {found["frames"]} frames of places that it has
        not seen. This is one seed, which made {found["steps"]} steps; there is no spread.
    """)
    yield from head(reading, _example("basicvsr_pp", found, ("seconds", "batch", "frames", "seed")))
    yield from table(
        ["the current frame is compared with", "PSNR, dB (more is better)"],
        [[what, f"{value:.1f}"] for what, value in found["psnr_db"].items()],
    )


def _digits(reading: Reading) -> Iterable[str]:
    found = reading.content
    yield "## Deformable DETR on digits"
    yield ""
    yield from paragraph(f"""
        `examples/detect_digits.py` trains a small Deformable DETR, and the same detector with plain
        attention, for {found["seconds"]} seconds each, and tests them on {found["scenes"]} scenes
        of digits that neither has seen. AP is COCO's average precision, the mean over IoUs from 0.5
        to 0.95. This is one seed, and time decides how many steps there are; there is no spread.
    """)
    options = ("seconds", "batch", "decoders", "seed", "scenes")
    yield from head(reading, _example("detect_digits", found, options))
    yield from table(
        ["attention", "parameters", "steps", "AP", "AP at an IoU of 0.5", "AP at 0.75"],
        [
            [
                *(one["attention"], f"{one['parameters']:,}", f"{one['steps']:,}"),
                *(f"{one[key]:.3f}" for key in ("AP", "AP50", "AP75")),
            ]
            for one in found["detectors"]
        ],
    )


def _example(name: str, found: Mapping[str, Any], options: Iterable[str]) -> str:
    given = " ".join(f"--{option} {found[option]}" for option in options)
    return f"python examples/{name}.py {given} --json FILE"
