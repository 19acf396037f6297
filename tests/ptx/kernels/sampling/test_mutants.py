"""Mutants of the kernels of weighted sums of samples: how many are noticed, and why not all."""

import dataclasses

import pytest
from support.mutant_study import MutantStudy, by_kernel
from support.mutants import Probe, Reason, Result
from support.sampling_kernels import KERNELS, SamplingCall, small, wide
from support.windows_kernels import WINDOWS_KERNELS, WindowsCall

from ptx.isa.dtypes import f16, f32
from ptx.kernels.sampling import CONFIGS, SamplingConfig
from ptx.kernels.sampling.geometry import Window
from ptx.kernels.sampling.windows import CONFIGS as WINDOWS

pytestmark = pytest.mark.proof

LAYERS = {
    "forward": ("levels", "no-center/f32", "v4/f32", "packed/f32", "volumes/f32"),
    "backward_value": (
        *("levels", "v4/f32", "grid-reflection/f32", "packed-pairs/f32", "volume/f32"),
        *("tiles-of-a-window", "tiles-of-pixels"),
    ),
    "backward_value_gather": ("levels", "no-center/f32", "nearest/f32"),
    "backward_points": (
        *("lanes-of-a-chunk", "no-center/f32", "v4/f32", "packed/f32", "packed-pairs/f32"),
        "volumes/f32",
    ),
}
# Pixels and queries, whose heads do not fill the last block.
LEVELS = dataclasses.replace(
    small(CONFIGS["30-channels/bf16"]), levels=((4, 8), (1, 2)), points=(3, 2)
)


def config_of(name: str) -> SamplingConfig:
    if name == "lanes-of-a-chunk":  # each of which writes
        return dataclasses.replace(LEVELS, channels=32)
    if name == "tiles-of-a-window":
        config = wide(small(CONFIGS["window/f16"]))
        levels = ((40, 44),)  # in which windows lie anywhere
        window = Window((7, 11), (2, 3), (2, 2), padding=(0, 1))
        return dataclasses.replace(
            config, channels=32, heads=2, levels=levels, points=(6,), geometry=window
        )
    if name == "tiles-of-pixels":
        return SamplingConfig(1, 16, ((4, 32), (32, 16)), (2, 2), float_type=f16, location_type=f32)
    return LEVELS if name == "levels" else small(CONFIGS[name])


def call_of(kernel: str, name: str, images: int, queries: int, seed: int = 0) -> SamplingCall:
    config = config_of(name)
    if name == "tiles-of-pixels":
        images, queries = images // 2, config.pixels
    elif name == "tiles-of-a-window":
        images, queries = 2, 4 * queries
    return SamplingCall(kernel, config, images, queries, seed=seed, far=name.startswith("tiles"))


SAMPLES: dict[str, tuple[Probe, ...]] = {
    f"{kernel}-{name}": (
        call_of(kernel, name, 2, 35),
        call_of(kernel, name, 3, 11, seed=1),
        call_of(kernel, name, 4, 13, seed=2),
    )
    for kernel, names in LAYERS.items()
    for name in names
}
SMALL_WINDOWS = {
    "windows": dataclasses.replace(WINDOWS["RAFT/f32"], size=(7, 5), radius=(2, 1)),
    "mixed-types": WINDOWS["windows-mixed/f32"],
    "volume": WINDOWS["windows-volume/f32"],
}
OF_WINDOWS: dict[str, tuple[Probe, ...]] = {
    f"{kernel}-{name}": tuple(
        WindowsCall(kernel, config, 2 + seed, 37 + seed, seed=seed) for seed in range(3)
    )
    for kernel in WINDOWS_KERNELS
    for name, config in SMALL_WINDOWS.items()
}

POINTS, UNITS = "ptx.kernels.sampling.points", "ptx.kernels.sampling.units"
FORWARD = "ptx.kernels.sampling.forward._body"
SOFTMAX = "ptx.kernels.sampling.softmax.Softmax.__init__"
ALONG = f"{POINTS}._along"
POINT = f"{POINTS}.point_of"
WINDOW = "ptx.kernels.sampling.geometry.Window.along"
REFLECTED = "ptx.kernels.sampling.geometry.Grid._reflected"
COLUMN = "ptx.kernels.sampling.windows.columns.Column.__init__"
PIXEL = "ptx.kernels.sampling.windows.columns.Column.pixel"
GATHER = "ptx.kernels.sampling.backward_value_gather"
ADD = "ptx.tile.vectors.add_weighted"
TILES = "ptx.kernels.sampling.backward_value_tiles"

EQUIVALENT = [
    Reason(
        "the pixel beyond an edge has no weight in a mirror, so that nothing is added to it",
        ALONG,
        "add",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "what is far reads nothing, whatever finite number its fraction is",
        ALONG,
        "sub",
        "source",
        Result.OTHER,
    ),
    Reason(
        "at an edge both choices are the edge",
        "ptx.kernels.sampling.geometry._clipped",
        "setp",
        "operator",
        Result.OTHER,
    ),
    Reason("floors are whole", ALONG, "cvt", "rounding"),
    Reason(
        "what is far is outside, also where its number wraps",
        ALONG,
        "cvt min",
        "source constant",
        Result.OTHER,
    ),
    Reason("small integers are exact", WINDOW, "cvt", "rounding"),
    Reason(
        "lanes of a unit that have the same place in their chunk have the same point",
        f"{POINTS}.Chunk.sample.<locals>.told",
        "shfl",
        "constant",
    ),
    Reason(
        "a point that does not exist has pixels outside, and is not written",
        f"{POINTS}.weight_of",
        "mov",
        "constant source",
        Result.OTHER,
    ),
    Reason(
        "a point that does not exist has pixels outside, and is not written",
        f"{POINT} > ptx.tile.vectors.load_words",
        "mov",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "a point that does not exist has pixels outside, and is not written",
        f"{UNITS}.each_turn > {POINT} > ptx.tile.vectors.load_words",
        "mov ld",
        "source guard",
        Result.OTHER,
    ),
    Reason(
        "points that a span lacks are calculated, and no sample is one of them",
        f"{FORWARD} > {UNITS}._span",
        "setp",
        "source",
        Result.OTHER,
    ),
    Reason(
        "the few taps of a span are in the same row or column of the window",
        WINDOW,
        "rem",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "the few taps of a span are in the same row or column of the window",
        WINDOW,
        "div setp",
        "source",
        Result.OTHER,
    ),
    Reason(
        "sums of the probes are exact, and factors",
        (
            f"{POINTS}.Chunk._factors",
            f"{FORWARD}.<locals>.turn.<locals>.add",
        ),
        "fma mul",
        "rounding",
    ),
    Reason(
        "a query that does not exist adds nothing",
        f"{TILES}._Tile.add_level > {POINT}",
        "and",
        "source",
        Result.OTHER,
    ),
    Reason(
        "weights of a softmax are neither 1 nor -1",
        f"{UNITS}.each_turn > {ADD}",
        "setp",
        "constant",
        Result.OTHER,
    ),
    Reason("operands of the probes have few bits", "ptx.tile.vectors.widen", "and", "constant"),
    Reason(
        "padding is zero, whichever head's lanes write it",
        "ptx.kernels.sampling.point_arrays.PointArrays.store_padding",
        "setp",
        "constant operator",
        Result.OTHER,
    ),
    Reason(
        "a softmax is the same, whatever is subtracted from all weights",
        (f"{SOFTMAX} > {UNITS}.across_chunk", f"{SOFTMAX} > ptx.builder.control.Control.loop"),
        "max add",
        "operator constant",
        Result.OTHER,
    ),
    Reason(
        "one NaN among the coordinates is enough, and its pixels are outside",
        f"{POINTS}._poison",
        "setp or selp",
        "source operator",
        Result.OTHER,
    ),
    Reason(
        "zeros that are added change nothing, and no gradient is infinite",
        ADD,
        "or",
        "source",
        Result.OTHER,
    ),
    Reason(
        "where a first tap's pixel is inside, so is the one below and to the right, in all probes",
        f"{POINTS}.Chunk.sample",
        "setp",
        "source",
    ),
    Reason(
        "the lanes of a chunk are summed in another order, those that write each of them once",
        "ptx.kernels.sampling.backward_points._halved",
        "shfl",
        "constant operator",
        Result.OTHER,
    ),
    Reason(
        "lists have no points but those that there are",
        f"{GATHER}._body.<locals>.turn",
        "sub min",
        "source constant operator",
        Result.OTHER,
    ),
    Reason(
        "before the first row and after the last are neither samples nor a pixel",
        "ptx.kernels.sampling.windows.backward_value._body > ptx.builder.control.Control.loop",
        "mov setp",
        "constant operator",
        Result.OTHER,
    ),
    Reason(
        "no pixel is as far as that, but for those at infinity",
        PIXEL,
        "min",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "the window is elsewhere, and as many samples are outside of it",
        f"{TILES}._Tile._origin",
        "shfl max",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "no weight or pixel of the probes lies there",
        f"{TILES}._Tile._add_chunk",
        "setp",
        "constant source operands",
        Result.OTHER,
    ),
    Reason(
        "of no point of the probes is the first pixel alone outside of the window",
        f"{TILES}._Tile._add_rest",
        "setp",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "a level has fewer rows than the window, which are inside of it",
        f"{TILES}._bits",
        "selp",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "what a query's first points add to is zero",
        f"{TILES}._Tile._add_factors",
        "cvt ld",
        "source",
        Result.OTHER,
    ),
    Reason(
        "what is not added may be anything",
        f"{TILES}._Tile._add_rest > ptx.tile.vectors.load_words",
        "mov",
        "constant source",
        Result.OTHER,
    ),
    Reason(
        "a sum of products with zero is zero or NaN",
        "ptx.tile.vectors.any_infinite",
        "fma",
        "operands",
        Result.OTHER,
    ),
    Reason("numbers of pixels are whole", PIXEL, "cvt", "rounding"),
    Reason("fractions have few bits", f"{COLUMN} > {POINTS}.rounded", "cvt", "rounding"),
    Reason(
        "what is far reads nothing, whatever its fraction is",
        f"{COLUMN} > {POINTS}.rounded",
        "cvt",
        "source",
        Result.OTHER,
    ),
    Reason(
        "a sample of NaN is NaN, whatever is read",
        f"ptx.kernels.sampling.windows.forward._body > {PIXEL}",
        "cvt",
        "source",
        Result.OTHER,
    ),
    Reason("a level is as wide as another one has pixels", f"{GATHER}._cell", "mov", "source"),
    Reason("an odd number is odd without its sign", REFLECTED, "mul", "constant", Result.OTHER),
]


class TestSampling(MutantStudy):
    sample, large_sample = 20, 200
    kernels = by_kernel((*KERNELS, *WINDOWS_KERNELS), SAMPLES | OF_WINDOWS)
    reasons = EQUIVALENT
