"""Launches of convolutions that are larger than kernels can count are refused."""

import pytest
from support.conv_kernels import KERNELS, ConvCall

from ptx.isa.dtypes import bf16, f64
from ptx.kernels.conv import ConvConfig as Layer
from ptx.kernels.conv.direct.common import is_direct
from ptx.kernels.limits import PIXELS
from ptx.launch import Launch

pytestmark = pytest.mark.proof

STREAMED, TILED = Layer(64, 64, float_type=bf16), Layer(20, 24, float_type=f64)
DIRECT = Layer(4, 4, groups=4)
LAYERS = (STREAMED, TILED, DIRECT)
assert is_direct(DIRECT)


def launched(kernel: str, config: Layer, images: int, in_size, out_size, parts: int = 1) -> Launch:
    """The launch for images and outputs of some sizes."""
    (h, w), (p, q) = in_size, out_size
    sizes = {"n": images, "h": h, "w": w, "p": p, "q": q, "s": parts}
    call = ConvCall(kernel, config)
    return call.launch_of(call.definition.shapes(config, sizes))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", LAYERS)
def test_pixels_of_images(kernel, config):
    launched(kernel, config, PIXELS >> 20, (1024, 1024), (1, 1))
    with pytest.raises(ValueError, match=r"2049 images of 1024 x 1024.* 2\*\*31 at most"):
        launched(kernel, config, (PIXELS >> 20) + 1, (1024, 1024), (1, 1))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", LAYERS)
def test_pixels_of_outputs(kernel, config):
    launched(kernel, config, 2048, (8, 8), (1024, 1024 - 1))
    with pytest.raises(ValueError, match=r"2049 outputs of 1024 x 1024.* 2\*\*31 at most"):
        launched(kernel, config, 2049, (8, 8), (1024, 1024))


@pytest.mark.parametrize("kernel", KERNELS)
def test_extents(kernel):
    longest = 2**30 - 3  # with a row of padding, and a stride
    launched(kernel, TILED, 1, (longest, 1), (1, 1))
    launched(kernel, TILED, 1, (1, longest), (1, 1))
    with pytest.raises(ValueError, match=r"pixels high.* 2\*\*30"):
        launched(kernel, TILED, 1, (longest + 1, 1), (1, 1))
    with pytest.raises(ValueError, match=r"pixels wide.* 2\*\*30"):
        launched(kernel, TILED, 1, (1, longest + 1), (1, 1))


@pytest.mark.parametrize("kernel", ["forward", "backward_weight"])
@pytest.mark.parametrize("fields", [{"pad_h": 2**11}, {"kernel_h": 2, "dilation_h": 2**11}])
def test_windows_that_reach_far(kernel, fields):
    """A window may begin above the first image, as far as an s32 counts."""
    config = Layer(20, 24, **fields)
    launched(kernel, config, 1, (8, 2**20 - 1), (1, 1))
    with pytest.raises(ValueError, match=r"2048 rows of images 1048576 wide: .* 2\*\*31 at most"):
        launched(kernel, config, 1, (8, 2**20), (1, 1))


def test_windows_behind_the_last_gradient():
    """Backward to input, pixels gather upwards from there."""
    launched("backward_input", TILED, 2, (2**19 - 2, 8), (2**10, 2**11 - 1))
    with pytest.raises(ValueError, match=r"rows of outputs 2047 wide.* 2\*\*31 at most"):
        launched("backward_input", TILED, 2, (2**20, 8), (2**10, 2**11 - 1))


def test_blocks():
    groups = Layer(8 * 2**16, 8 * 2**16, groups=2**16, float_type=f64)
    for kernel in ("forward", "backward_input"):
        with pytest.raises(ValueError, match="65536 blocks in y, and a launch takes 65535"):
            launched(kernel, groups, 1, (8, 8), (8, 8))
    assert launched("backward_weight", groups, 1, (8, 8), (8, 8)).grid[1:] == (1, 1)
    strides = Layer(20, 24, stride_h=2**8, stride_w=2**8, float_type=f64)
    with pytest.raises(ValueError, match="65536 blocks in z, and a launch takes 65535"):
        launched("backward_input", strides, 1, (8, 8), (8, 8))
    with pytest.raises(ValueError, match="65536 blocks in z, and a launch takes 65535"):
        launched("backward_weight", TILED, 1, (8, 8), (8, 8), parts=65536)

    depthwise = Layer(4096, 4096, groups=4096)
    for kernel in ("forward", "backward_input"):
        with pytest.raises(ValueError, match="blocks in x, and a launch takes 2147483647"):
            launched(kernel, depthwise, 2047, (1024, 1024), (1024, 1024))
    with pytest.raises(ValueError, match="blocks in x, and a launch takes 2147483647"):
        launched("backward_weight", depthwise, 1, (8, 8), (8, 8), parts=2**30)


@pytest.mark.parametrize("config", LAYERS)
@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_empty_batches_are_launches_of_nothing(kernel, config):
    assert 0 in launched(kernel, config, 0, (8, 8), (8, 8)).grid


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"in_channels": 2**27}, r"kernel_h \* kernel_w \* in_channels must be below 2\*\*30"),
        ({"out_channels": 2**30}, r"out_channels must be below 2\*\*30"),
        ({"in_channels": 2**15, "out_channels": 2**15}, r"weights must be below 2\*\*32"),
    ],
)
def test_channels(fields, message):
    with pytest.raises(ValueError, match=message):
        Layer(**{"in_channels": 64, "out_channels": 64, **fields}).validate()
