"""Launches of weighted sums of samples that are larger than kernels can count are refused."""

import dataclasses

import pytest
from support.sampling_kernels import DEFINITIONS, KERNELS, SamplingCall
from support.windows_kernels import WINDOWS_KERNELS, WindowsCall

from ptx.isa.dtypes import f16
from ptx.kernels.limits import PIXELS
from ptx.kernels.sampling import BACKWARD_POINTS, SamplingConfig
from ptx.kernels.sampling.geometry import Grid, Window
from ptx.kernels.sampling.windows import WindowsConfig
from ptx.launch import Launch

pytestmark = pytest.mark.proof

LAYER = SamplingConfig(4, 8, ((512, 512),), (2,))


def launched(kernel: str, config: SamplingConfig, images: int, queries: int) -> Launch:
    """The launch for so many images and queries."""
    call = SamplingCall(kernel, config, images, queries)
    shapes = call.definition.shapes(config, call.sizes)
    return call.definition.launch(config, "sm_80", list(shapes.values()))


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "backward_value_gather"])
def test_pixels_of_images(kernel):
    launched(kernel, LAYER, PIXELS >> 18, 1)
    with pytest.raises(ValueError, match=r"8193 images of levels .* 2\*\*31 at most"):
        launched(kernel, LAYER, (PIXELS >> 18) + 1, 1)


def test_cells_and_points_of_lists():
    kernel, cells = "backward_value_gather", 4 * 516 * 516
    launched(kernel, LAYER, PIXELS // cells, 1)
    with pytest.raises(ValueError, match=r"cells of 4 heads of 2017 images .* 2\*\*31 at most"):
        launched(kernel, LAYER, PIXELS // cells + 1, 1)
    launched(kernel, LAYER, 1, PIXELS >> 3)
    with pytest.raises(ValueError, match=r"points of 4 heads of 1 x 268435457 queries"):
        launched(kernel, LAYER, 1, (PIXELS >> 3) + 1)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "backward_value_gather"])
def test_heads_of_queries(kernel):
    launched(kernel, LAYER, 2, PIXELS >> 3)
    with pytest.raises(ValueError, match=r"heads of 2 x 268435457 queries: .* 2\*\*31 at most"):
        launched(kernel, LAYER, 2, (PIXELS >> 3) + 1)


def test_lists_of_another_length():
    call = SamplingCall("backward_value_gather", LAYER, 2, 3)
    shapes = call.definition.shapes(LAYER, {**call.sizes, "i": 7})
    with pytest.raises(ValueError, match="lists must have i = 48, got 7"):
        call.definition.launch(LAYER, "sm_80", list(shapes.values()))


@pytest.mark.parametrize("kernel", ["forward", "backward_value", "backward_points"])
def test_rows_of_another_width(kernel):
    """Of a packed operand, which has 48 elements: a multiple of 8."""
    config = dataclasses.replace(LAYER, points=(3,), heads=5, packed=True, use_weights=False)
    launched(kernel, config, 2, 3)
    call = SamplingCall(kernel, config, 2, 3)
    shapes = call.definition.shapes(config, call.sizes)
    assert shapes["packed"] == (2, 3, 48)
    with pytest.raises(ValueError, match=r"packed must have p = 48, got \(2, 3, 45\)"):
        call.definition.launch(config, "sm_80", [*{**shapes, "packed": (2, 3, 45)}.values()])


@pytest.mark.parametrize("packed", [False, True])
def test_operands_that_a_call_passes(packed):
    """Either locations, and perhaps weights, or what has both."""
    config = dataclasses.replace(LAYER, packed=packed, use_weights=not packed)
    names = {"packed"} if packed else {"locations", "weights"}
    for kernel in ("forward", "backward_value", "backward_points"):
        definition = DEFINITIONS[kernel]
        for given in (config, LAYER):
            others = definition.operands(config).keys() - names
            assert definition.with_operands(given, [*others, *names]) == config
            with pytest.raises(TypeError, match=r"takes .*, and was given"):
                definition.with_operands(given, [*others, *names, "packed", "locations"])
    results = BACKWARD_POINTS.results(config)
    assert results.keys() == {f"grad_{name}" for name in names}


def test_points_of_a_softmax():
    def config(points: int) -> SamplingConfig:
        return dataclasses.replace(LAYER, points=(points,), normalize=True)

    launched("backward_points", config(1536), 1, 1)
    with pytest.raises(ValueError, match=r"normalize with \(1537,\) points takes 49280 bytes"):
        launched("backward_points", config(1537), 1, 1)
    launched("forward", config(1537), 1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"levels": ()}, "levels must have 1, 2 or 3 sizes of at least 1"),
        ({"levels": ((0, 3),)}, "levels must have 1, 2 or 3 sizes of at least 1"),
        ({"levels": ((2, 2, 2, 2),)}, "levels must have 1, 2 or 3 sizes of at least 1"),
        ({"levels": ((2, 3), (2,)), "points": (1, 1)}, "levels must have as many dimensions each"),
        ({"levels": ((4,),), "geometry": Window((3, 3)), "points": (9,)}, "must have two sizes"),
        ({"levels": ((4,),), "packed": True, "use_weights": False}, "packed needs images of two"),
        ({"geometry": Grid(coordinates="pixels")}, "coordinates must be"),
        ({"points": (1, 2)}, "points must be one number of at least 1 for each of 1 levels"),
        ({"geometry": Grid(padding_mode="wrap")}, "padding_mode must be"),
        ({"geometry": Window((3, 3))}, "points of a window must be its 9 taps"),
        ({"geometry": Window((2**15, 1), strides=(2**15, 1))}, "out_size .* must be below"),
        ({"geometry": Window((3, 3), padding=(0, 2**30))}, "and padding, must be below"),
        ({"geometry": Window((3, 3), dilation=(0, 1))}, "dilation must be at least 1"),
        ({"geometry": Window((0, 3))}, "out_size must be positive"),
        ({"use_weights": False, "normalize": True}, "normalize needs weights"),
        ({"packed": True}, "packed has no weights apart"),
        ({"packed": True, "use_weights": False, "weight_type": f16}, "nor a weight_type"),
        ({"channels": 2**26}, r"heads \* channels must be below 2\*\*28"),
        ({"levels": ((2**14, 2**14),)}, r"pixels of all levels must be below 2\*\*28"),
        ({"points": (2**26,)}, r"heads \* sum\(points\) must be below 2\*\*28"),
    ],
)
def test_configurations_that_make_no_sense(fields, message):
    config = dataclasses.replace(LAYER, **fields)
    for definition in DEFINITIONS.values():
        with pytest.raises(ValueError, match=message):
            definition.validate(config)
    assert BACKWARD_POINTS.validate(LAYER) is None


@pytest.mark.parametrize("kernel", WINDOWS_KERNELS)
@pytest.mark.parametrize(
    ("config", "images", "queries", "message"),
    [
        (WindowsConfig(1, (512, 512), (1, 1)), PIXELS >> 18, 1, "8193 images of"),
        (WindowsConfig(1, (4, 4), (1, 1)), 1, PIXELS >> 2, "windows: .* 2.*31 at most"),
    ],
)
def test_windows_that_are_too_many(kernel, config, images, queries, message):
    """Columns of pixels are counted, one more than of samples."""
    WindowsCall(kernel, config, images, queries).launch.text  # noqa: B018
    more = (images, queries + 1) if queries > 1 else (images + 1, 1)
    with pytest.raises(ValueError, match=message):
        WindowsCall(kernel, config, *more).launch.text  # noqa: B018


@pytest.mark.parametrize("kernel", WINDOWS_KERNELS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": 2}, "windows of samples must have 1 channel, got 2"),
        ({"size": ()}, "size must be 1, 2 or 3 numbers of at least 1"),
        ({"size": (4, 0)}, "size must be 1, 2 or 3 numbers of at least 1"),
        ({"radius": (1,)}, "radius must be 2 numbers of at least 0"),
        ({"radius": (1, -1)}, "radius must be 2 numbers of at least 0"),
        ({"padding_mode": "wrap"}, "padding_mode must be"),
        ({"size": (2**14, 2**14)}, "pixels of an image must be below"),
        ({"radius": (2**13, 2**13)}, "pixels of a window must be below"),
    ],
)
def test_windows_that_make_no_sense(kernel, fields, message):
    config = dataclasses.replace(WindowsConfig(1, (4, 4), (1, 1)), **fields)
    with pytest.raises(ValueError, match=message):
        WindowsCall(kernel, config).launch.text  # noqa: B018
