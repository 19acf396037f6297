"""The operators on a CPU beside those of OpenVINO, ONNX Runtime and PyTorch."""

from collections.abc import Iterable, Mapping
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
    number,
    paragraph,
    picture,
)

__all__ = ["fastest", "mean_ratio", "peers_page"]

_PASSES = {"forward": "forward", "forward and backward": "forward + backward"}
Layer = Mapping[str, Any]  # a program's name -> its figures


def peers_page(reading: Reading) -> Page:
    layers = reading.content["layers"]
    runs = reading.content["runs"]
    chart = Chart(
        "Operators beside the fastest of other libraries",
        RATIO,
        [name.partition(", ")[2].replace("Deformable ", "") for name in layers],
        {
            title: [_of_fastest(each, key) for each in layers.values()]
            for key, title in _PASSES.items()
        },
        log=True,
        reference=(1.0, "equal times"),
    )
    lines = [
        "# Operators on a CPU, beside other libraries",
        "",
        *paragraph("""
            oxijax's operators in float32 beside OpenVINO's and ONNX Runtime's, which have no
            gradients, and PyTorch's: torchvision's `deform_conv2d`, `grid_sample` of images whose
            channels are first in memory or last, and an attention made of `grid_sample`, as models
            without a kernel of their own have it. All have as many threads as there are cores, and
            images lie in memory as each library has them. Programs take turns in one process.
        """),
        *head(reading, f"python benchmarks/cpu_peers.py --runs {runs} --json FILE"),
        *paragraph(f"""
            There are {runs} rounds, in which programs take turns. In its turn a program is timed
            once, after it has run for 30 ms: until then two threads may share a core, as those of
            the library before left it. Each time is the median, with the quartiles in brackets; a
            ratio is the median of the ratios of oxijax's time to a peer's of the same round. Errors
            are relative to results in float64, as Frobenius norms: those of `grid_sample` are of
            coordinates that are rounded to float32, which all have.
        """),
        *picture("peers.svg", "Ratios of oxijax's time to that of the fastest peer"),
        "## Means",
        "",
        *paragraph("Geometric means over an operator's layers, of oxijax's time over a peer's."),
        *table(["operator", "peer", "layers", *_PASSES.values()], list(_means(layers))),
    ]
    for key, title in _PASSES.items():
        lines += [
            f"## {title[0].upper()}{title[1:]}",
            "",
            *table(["layer", "library", "ms", "ratio"], list(_rows(layers, key))),
        ]
    lines += [
        "## Errors",
        "",
        *table(
            ["layer", "oxijax", "other libraries"],
            [
                [name, f"{layer['oxijax']['error']:.1e}", ", ".join(_errors(layer))]
                for name, layer in layers.items()
            ],
        ),
    ]
    lines += [
        "",
        "## From one core to two",
        "",
        *paragraph("""
            Geometric means over an operator's layers, of a library's time on one core over its time
            on two: 2 would be all that a second core can give. The run on one core came after the
            other and has 3 rounds at most, so that what the machine did meanwhile is in the
            quotients. Adding to an image, in gradients, is one loop in XLA's CPU compiler, and is
            not divided.
        """),
        *table(["operator", "library", *_PASSES.values()], list(_of_cores(layers))),
        "",
        "## Compiling",
        "",
        *paragraph("""
            Milliseconds from a function to a program that can be called, beside `jax.lax.conv` with
            the sizes of the same layer. A later process reads it from JAX's compilation cache.
        """),
        *table(
            ["layer", *(f"{of}, {p}" for of in ("oxijax", "lax.conv") for p in _PASSES.values())],
            list(_compiled(layers, reading.content["lax.conv"])),
        ),
    ]
    return Page(lines, {"peers.svg": chart})


def fastest(layer: Layer, key: str) -> str:
    """The peer that takes the least time, by medians."""
    peers = [name for name, of in layer.items() if name != "oxijax" and key in of]
    return min(peers, key=lambda name: _time(layer[name][key]).value)


def mean_ratio(layers: Mapping[str, Layer], operator: str, key: str) -> float:
    """The geometric mean of oxijax's time over the fastest peer's, of an operator's layers."""
    return geometric_mean(
        _of_fastest(layer, key).value
        for name, layer in layers.items()
        if name.startswith(f"{operator},")
    )


def _of_fastest(layer: Layer, key: str) -> Interval:
    return _ratio(layer, fastest(layer, key), key)


def _time(of: Mapping[str, Any]) -> Interval:
    return _spread(of["spread"]) if "spread" in of else Interval(of["ms"])


def _ratio(layer: Layer, peer: str, key: str) -> Interval:
    """Oxijax's time over a peer's."""
    of = layer[peer][key]
    if "time_ratio" in of:
        return _spread(of["time_ratio"])
    return Interval(layer["oxijax"][key]["ms"] / of["ms"])


def _spread(of: Mapping[str, float]) -> Interval:
    return Interval(of["median"], of["lower_quartile"], of["upper_quartile"])


def _means(layers: Mapping[str, Layer]) -> Iterable[list[str]]:
    operators = dict.fromkeys(name.partition(",")[0] for name in layers)
    for operator in operators:
        own = {name: layer for name, layer in layers.items() if name.startswith(f"{operator},")}
        peers = dict.fromkeys(p for layer in own.values() for p in layer if p != "oxijax")
        for peer in peers:
            means = [
                [_ratio(layer, peer, key).value for layer in own.values() if key in layer[peer]]
                for key in _PASSES
            ]
            cells = [number(geometric_mean(each)) if each else "-" for each in means]
            yield [f"`{operator}`", peer, str(len(own)), *cells]
        cells = [number(mean_ratio(own, operator, key)) for key in _PASSES]
        yield [f"`{operator}`", "the fastest of a layer", str(len(own)), *cells]


def _rows(layers: Mapping[str, Layer], key: str) -> Iterable[list[str]]:
    for name, layer in layers.items():
        best = fastest(layer, key)
        for library, of in layer.items():
            if key in of:
                words = f"{library}, the fastest peer" if library == best else library
                ratio = "" if library == "oxijax" else cell(_ratio(layer, library, key))
                first = name if library == "oxijax" else ""
                yield [first, words, cell(_time(of[key])), ratio]


def _errors(layer: Layer) -> Iterable[str]:
    return (f"{name} {of['error']:.1e}" for name, of in layer.items() if name != "oxijax")


def _of_cores(layers: Mapping[str, Layer]) -> Iterable[list[str]]:
    for operator in dict.fromkeys(name.partition(",")[0] for name in layers):
        own = [layer for name, layer in layers.items() if name.startswith(f"{operator},")]
        for library in own[0]:
            gains = [
                [
                    of[key]["one_core_ms"] / _time(of[key]).value
                    for of in (layer[library] for layer in own)
                    if key in of
                ]
                for key in _PASSES
            ]
            cells = [number(geometric_mean(each)) if each else "-" for each in gains]
            yield [f"`{operator}`", library, *cells]


def _compiled(
    layers: Mapping[str, Layer], convolutions: Mapping[str, Mapping[str, float]]
) -> Iterable[list[str]]:
    for name, layer in layers.items():
        beside = convolutions.get(name, {})
        found = [layer["oxijax"]["compile_ms"][key] for key in _PASSES]
        cells = [number(beside[key]) if key in beside else "-" for key in _PASSES]
        yield [name, *map(number, found), *cells]
