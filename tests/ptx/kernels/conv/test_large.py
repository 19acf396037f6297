"""Convolutions of more than 2^31 elements and 2^32 bytes: their far end, in the emulator.

Buffers are windows on the last rows of images that nobody has memory for, and only the last blocks
of the grid run. What they write must be what the end of a small image has.
"""

import dataclasses
import re

import numpy as np
import pytest
from support.conv_kernels import KERNELS, ConvCall
from support.far import window

from ptx.emulator import Buffer, EmulatorError
from ptx.isa.dtypes import bf16, f64
from ptx.kernels.conv import ConvConfig as Layer
from ptx.kernels.limits import PIXELS
from ptx.testing.call import launch

pytestmark = pytest.mark.slow

IMAGES, WIDTH = 8, 32
SMALL, LAST = 24, 16  # rows of the small image, and those of the output that are calculated
PARTS = 2**16 - 1  # of the weights' gradient: the last one has the last rows
LINES = (PARTS - 1) * (PIXELS // (PARTS * 64) * 64) // WIDTH + LAST  # of all images
LAYERS = {
    "streamed": Layer(64, 64, float_type=bf16),
    "compared": Layer(64, 64, 3, 11, pad_w=5, float_type=bf16),
    "tiles": Layer(24, 16, exact=True),
    "tiles-of-f64": Layer(20, 8, float_type=f64),
    "tiny-groups": Layer(64, 64, groups=64),
}


@dataclasses.dataclass(frozen=True)
class Far:
    """A kernel at the end of large images.

    Attributes:
      call: the same kernel on one small image.
    """

    call: ConvCall

    @staticmethod
    def make(kernel: str, name: str) -> "Far":
        call = ConvCall(kernel, LAYERS[name], images=1, height=SMALL, width=WIDTH)
        if kernel == "backward_weight":  # of the last rows alone
            call.operands["grad_y"][:, :-LAST] = 0.0
        return Far(call)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the large arrays, as they lie in memory, by name."""
        call, rows = self.call, LINES // IMAGES
        sizes = {**call.sizes, "n": IMAGES, "h": rows, "p": rows, "s": PARTS}
        return dict(call.definition.shapes(call.config, sizes))

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Windows on operands and the result, by name."""
        call, found = self.call, {}
        for name, parameter in call.definition.operands(call.config).items():
            array = call.arrays[name].transpose(parameter.axes(call.config))
            if name == "grad_y" and call.kernel == "backward_weight":
                array = array[:, -LAST:]
            found[name] = window(array, self.shapes[name], writable=False)
        (result,) = call.definition.results(call.config)
        unwritten = np.full(self.expected.shape, np.nan, call.result_type)
        found[result] = window(unwritten, self.shapes[result], writable=True)
        return found

    @property
    def expected(self) -> np.ndarray:
        """What the last blocks write, in float64."""
        expected = self.call.expected
        return expected if self.call.kernel == "backward_weight" else expected[:, -LAST:]

    def run(self, text: str | None = None) -> None:
        """Launches the last blocks, and compares what they write."""
        call, buffers = self.call, self.buffers
        assert max(int(np.prod(shape)) for shape in self.shapes.values()) > 2**31
        launch(
            call.definition, call.config, call.target, buffers, self.shapes, plan=call.plan,
            text=text, blocks=self.last_blocks(call.launch_of(self.shapes).grid),
        )  # fmt: skip
        (result,) = call.definition.results(call.config)
        written = buffers[result].array.ravel()[-self.expected.size :]
        call.compare(written.reshape(1, *self.expected.shape), self.expected)

    def last_blocks(self, grid: tuple[int, int, int]) -> list[int]:
        """Numbers of the blocks that have the last rows."""
        x, y, z = grid
        if self.call.kernel == "backward_weight":
            blocks = x * y * z
            return list(range(blocks - blocks // PARTS, blocks))
        strips = 2 if "strip_width" in self.call.text else 1
        count = x * LAST // LINES // strips
        assert count * LINES * strips == x * LAST
        ends = [x // strips * (strip + 1) for strip in range(strips)]
        return [end - i + x * j for end in ends for i in range(1, count + 1) for j in range(y * z)]


def test_there_are_nearly_as_many_pixels_as_there_may_be():
    assert LINES % (IMAGES * LAST // 8) == 0
    assert 0.99 * PIXELS < LINES * WIDTH <= PIXELS


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_far_end(kernel, name):
    far = Far.make(kernel, name)
    far.run()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LAYERS)
def test_an_overflow_is_noticed(kernel, name):
    """Of products that are cut to 32 bits, where they count elements and not bytes."""
    far = Far.make(kernel, name)
    product = re.compile(r"^\s*m(?:ul|ad)\.wide\.[us]32\s+(%\w+), %\w+, ([^,;]+).*$", re.M)

    def cut(found: re.Match[str]) -> str:
        if found[2] in ("1", "2", "4", "8"):
            return found[0]
        return f"{found[0]}\n  and.b64 {found[1]}, {found[1]}, 4294967295;"

    text = product.sub(cut, far.call.text)
    assert text != far.call.text
    with pytest.raises((EmulatorError, AssertionError)):
        far.run(text)
