"""Launches on tensors of more than 2^31 elements and 2^32 bytes: their far end, in the emulator.

Buffers are windows on the last rows of images that nobody has memory for, and only the last blocks
of the grid run. What they write must be what the end of a small image has.
"""

import dataclasses
import re

import numpy as np
import pytest
from support.deform_conv_kernels import DeformConvCall
from support.far import window

from ptx.emulator import Buffer, EmulatorError
from ptx.isa.dtypes import bf16, f32, f64
from ptx.kernels.deform_conv import DeformConvConfig as Layer
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER
from ptx.kernels.limits import PIXELS, TABLE_PIXELS
from ptx.testing.call import launch, numpy_dtype

pytestmark = pytest.mark.slow

IMAGES, WIDTH = 8, 32
SMALL, LAST = 16, 8  # rows of the small image, and those of the output that are calculated
PARTS = 2**16 - 1  # of the weights' gradient: the last one has the last rows


@dataclasses.dataclass(frozen=True)
class Far:
    """A kernel at the end of large images.

    Attributes:
      call: the same kernel on one small image.
      height: of the large images.
    """

    call: DeformConvCall
    height: int

    @staticmethod
    def make(kernel: str, config: Layer, pixels: int) -> "Far":
        """On nearly as many pixels as there may be."""
        call = DeformConvCall(kernel, config, images=1, height=SMALL, width=WIDTH)
        if kernel in ("backward_input", "backward_weight"):  # of the last rows alone
            call.operands["grad_y"][:, :-LAST] = 0.0
        per_part = pixels // (PARTS * 64) * 64
        lines = (PARTS - 1) * per_part // WIDTH + LAST
        assert lines % IMAGES == 0
        return Far(call, lines // IMAGES)

    @property
    def pixels(self) -> int:
        return IMAGES * self.height * WIDTH

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the large arrays, as they lie in memory, by name."""
        call, height = self.call, self.height
        cells = IMAGES * (height + 2 * CELL_BORDER) * (WIDTH + 2 * CELL_BORDER)
        sizes = {"n": IMAGES, "h": height, "w": WIDTH, "p": height, "q": WIDTH, "s": PARTS}
        if call.kernel == "backward_input_gather":
            sizes |= {"s": self.pixels, "z": cells + 1}
        return call.definition.shapes(call.config, sizes)

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Windows on operands and results, by name."""
        call, shapes, found = self.call, self.shapes, {}
        gathers = call.kernel == "backward_input_gather"
        before = np.uint32(self.pixels - SMALL * WIDTH)  # samples before those of the small image
        for name, parameter in call.definition.operands(call.config).items():
            array = call.arrays[name].transpose(parameter.axes(call.config))
            if name in ("offset", "mask", "grad_y") and not gathers:
                array = array[:, -LAST:]
            elif name in ("starts", "order"):
                array = array + before
            found[name] = window(array, shapes[name], writable=name == "zeros")
        for name, result in call.definition.results(call.config).items():
            if name == "grad_x" and not gathers:  # the result is where the zeros are
                found[name] = found["zeros"]
                continue
            part = (1, *((LAST, *shapes[name][2:]) if name != "partial" else shapes[name][1:]))
            unwritten = np.full(part, np.nan, numpy_dtype(result.dtype_of(call.config)))
            found[name] = window(unwritten, shapes[name], writable=True)
        return found

    def run(self, text: str | None = None) -> None:
        """Launches the last blocks, and compares what they write."""
        call, buffers, shapes = self.call, self.buffers, self.shapes
        assert max(int(np.prod(shape)) for shape in shapes.values()) > 2**31
        how = call.definition.launch(call.config, call.target, list(shapes.values()))
        launch(
            call.definition, call.config, call.target, buffers, shapes,
            text=text, blocks=self.last_blocks(how.grid),
        )  # fmt: skip
        expected = [
            e if e.shape[:2] != (1, SMALL) or call.kernel == "backward_input" else e[:, -LAST:]
            for e in call.expected
        ]
        results = [buffers[name].array.ravel() for name in call.definition.results(call.config)]
        call.compare([r[-e.size :][None] for r, e in zip(results, expected, strict=True)], expected)

    def last_blocks(self, grid: tuple[int, int, int]) -> list[int]:
        """Numbers of the blocks that have the last rows."""
        x, y, z = grid
        if self.call.kernel == "backward_weight":
            blocks = x * y * z
            return list(range(blocks - blocks // PARTS, blocks))
        strips = 2 if "strip_width" in self.call.text else 1
        count = x * LAST * WIDTH // self.pixels // strips
        ends = [x // strips * (strip + 1) for strip in range(strips)]
        return [end - i + x * j for end in ends for i in range(1, count + 1) for j in range(y * z)]


LARGE = {
    "table": Layer(64, 64, float_type=bf16),
    "wide-table": Layer(64, 256, float_type=bf16),
    "positions": Layer(64, 64, offset_groups=8, float_type=bf16),
    "tiles": Layer(24, 16, use_bias=True, exact=True),
    "tiles-of-f64": Layer(20, 8, float_type=f64),
    "tiny-groups": Layer(8, 8, groups=8),
    "1x1": Layer(64, 64, 1, 1, pad_h=0, pad_w=0, float_type=bf16),
    "1x1-of-f32": Layer(40, 24, 1, 1, pad_h=0, pad_w=0, float_type=f32),
}
CASES = [
    (kernel, name, TABLE_PIXELS if "table" in name else PIXELS)
    for name in LARGE
    if "1x1" not in name
    for kernel in ("forward", "backward_offset", "backward_input", "backward_weight")
]
# Lists count cells, which are more than pixels. Each tap's are far from the others'.
CASES += [("backward_input_gather", name, PIXELS // 2) for name in LARGE if "1x1" in name]


@pytest.mark.parametrize(("kernel", "name", "pixels"), CASES)
def test_the_far_end(kernel, name, pixels):
    far = Far.make(kernel, LARGE[name], pixels)
    far.run()


@pytest.mark.parametrize(("kernel", "name", "pixels"), CASES)
def test_an_overflow_is_noticed(kernel, name, pixels):
    """Of products that are cut to 32 bits, where they count elements and not bytes."""
    far = Far.make(kernel, LARGE[name], pixels)
    product = re.compile(r"^\s*m(?:ul|ad)\.wide\.[us]32\s+(%\w+), %\w+, ([^,;]+).*$", re.M)

    def cut(found: re.Match[str]) -> str:
        if found[2] in ("1", "2", "4", "8"):
            return found[0]
        return f"{found[0]}\n  and.b64 {found[1]}, {found[1]}, 4294967295;"

    text = product.sub(cut, far.call.text)
    assert text != far.call.text
    with pytest.raises((EmulatorError, AssertionError)):
        far.run(text)
