"""Launches that are larger than kernels can count are refused, and nothing wraps."""

import pytest

from ptx.isa.dtypes import bf16, f64
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
)
from ptx.kernels.deform_conv import DeformConvConfig as Layer
from ptx.kernels.limits import PIXELS, TABLE_PIXELS
from ptx.launch import Launch

pytestmark = pytest.mark.proof

TABLE, GENERAL = Layer(64, 64, float_type=bf16), Layer(20, 24, float_type=f64)
KERNELS = {
    "forward": FORWARD,
    "backward_offset": BACKWARD_OFFSET,
    "backward_input": BACKWARD_INPUT,
    "backward_weight": BACKWARD_WEIGHT,
}


def launched(kernel: str, config: Layer, images: int, in_size, out_size, parts: int = 1) -> Launch:
    """The launch for images and outputs of some sizes."""
    (h, w), (p, q), definition = in_size, out_size, KERNELS[kernel]
    shapes = definition.shapes(config, {"n": images, "h": h, "w": w, "p": p, "q": q, "s": parts})
    return definition.launch(config, "sm_80", list(shapes.values()))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("config", "limit"), [(TABLE, TABLE_PIXELS), (GENERAL, PIXELS)])
def test_pixels_of_images(kernel, config, limit):
    launched(kernel, config, limit >> 20, (1024, 1024), (1, 1))
    power = limit.bit_length() - 1
    with pytest.raises(ValueError, match=rf"images of 1024 x 1024.* 2\*\*{power} at most"):
        launched(kernel, config, (limit >> 20) + 1, (1024, 1024), (1, 1))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", [TABLE, GENERAL])
def test_pixels_of_outputs(kernel, config):
    launched(kernel, config, 2048, (8, 8), (1024, 1024))
    with pytest.raises(ValueError, match=r"2049 outputs of 1024 x 1024.* 2\*\*31 at most"):
        launched(kernel, config, 2049, (8, 8), (1024, 1024))


@pytest.mark.parametrize("kernel", KERNELS)
def test_extents(kernel):
    """A position's integer part has 32 bits, and what is far outside stays there."""
    longest = 2**30 - 3  # with a row of padding, and a stride
    launched(kernel, GENERAL, 1, (longest, 1), (1, 1))
    launched(kernel, GENERAL, 1, (1, longest), (1, 1))
    with pytest.raises(ValueError, match=r"pixels high.* 2\*\*30"):
        launched(kernel, GENERAL, 1, (longest + 1, 1), (1, 1))
    with pytest.raises(ValueError, match=r"pixels wide.* 2\*\*30"):
        launched(kernel, GENERAL, 1, (1, longest + 1), (1, 1))
    strides = Layer(20, 24, stride_h=2**20, float_type=f64)
    launched(kernel, strides, 1, (8, 8), (2**10, 1))
    with pytest.raises(ValueError, match=r"pixels high.* 2\*\*30"):
        launched(kernel, strides, 1, (8, 8), (2**10 + 1, 1))


def test_blocks():
    groups = Layer(8 * 2**16, 8 * 2**16, groups=2**16, float_type=f64)
    with pytest.raises(ValueError, match="65536 blocks in y, and a launch takes 65535"):
        launched("forward", groups, 1, (8, 8), (8, 8))
    offset_groups = Layer(8 * 2**16, 8, offset_groups=2**16, float_type=f64)
    for kernel in ("backward_offset", "backward_input"):
        with pytest.raises(ValueError, match="65536 blocks in y, and a launch takes 65535"):
            launched(kernel, offset_groups, 1, (8, 8), (8, 8))
    with pytest.raises(ValueError, match="65536 blocks in z, and a launch takes 65535"):
        launched("backward_weight", GENERAL, 1, (8, 8), (8, 8), parts=65536)

    depthwise = Layer(4096, 4096, groups=4096)
    for kernel in ("forward", "backward_input"):
        with pytest.raises(ValueError, match="blocks in x, and a launch takes 2147483647"):
            launched(kernel, depthwise, 2048, (1024, 1024), (1024, 1024))


@pytest.mark.parametrize("kernel", ["forward", "backward_offset", "backward_input"])
def test_empty_batches_are_launches_of_nothing(kernel):
    assert 0 in launched(kernel, GENERAL, 0, (8, 8), (8, 8)).grid


def lists(
    images: int, height: int, width: int, out_size: tuple[int, int], channels: int = 16
) -> Launch:
    """The launch for lists of the cells of images of some size, and of outputs of another."""
    config, (p, q) = Layer(channels, 8, 1, 1), out_size
    sizes = {"n": images, "h": height, "w": width, "p": p, "q": q, "s": images * p * q}
    sizes["z"] = images * (height + 4) * (width + 4) + 1
    shapes = BACKWARD_INPUT_GATHER.shapes(config, sizes)
    return BACKWARD_INPUT_GATHER.launch(config, "sm_80", list(shapes.values()))


def test_lists():
    lists(2048, 1020, 1020, (2**10, 2**10))
    with pytest.raises(ValueError, match=r"cells of 2049 images.* 2\*\*31 at most"):
        lists(2049, 1020, 1020, (8, 8))
    with pytest.raises(ValueError, match=r"samples of a tap.* 2\*\*31 at most"):
        lists(1, 8, 8, (2**31 + 1, 1))
    with pytest.raises(ValueError, match="blocks in x, and a launch takes 2147483647"):
        lists(2048, 1020, 1020, (8, 8), channels=128 * 65)


@pytest.mark.parametrize(("dim", "wanted"), [("s", 64), ("z", 145)])
def test_lists_of_other_images(dim, wanted):
    config = Layer(16, 8, 1, 1)
    sizes = {"n": 1, "h": 8, "w": 8, "p": 8, "q": 8, "s": 64, "z": 145}
    shapes = BACKWARD_INPUT_GATHER.shapes(config, {**sizes, dim: wanted + 1})
    with pytest.raises(ValueError, match=f"must have {dim} = {wanted}, got {wanted + 1}"):
        BACKWARD_INPUT_GATHER.launch(config, "sm_80", list(shapes.values()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"in_channels": 2**27}, r"kernel_h \* kernel_w \* in_channels must be below 2\*\*30"),
        ({"out_channels": 2**30}, r"out_channels must be below 2\*\*30"),
    ],
)
def test_channels(fields, message):
    with pytest.raises(ValueError, match=message):
        Layer(**{"in_channels": 64, "out_channels": 64, **fields}).validate()
