"""Calls of any kernel of a convolution, in any type, whose every result is exact."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptx.emulator import Report
from ptx.isa.dtypes import f64
from ptx.kernels.conv import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    ConvConfig,
    backward_weight_parts,
)
from ptx.testing.call import bytes_stored, numpy_dtype
from support.emulated_calls import EmulatedCall

__all__ = ["KERNELS", "ConvCall", "assert_written_once"]

_DEFINITIONS = {
    "forward": FORWARD,
    "backward_input": BACKWARD_INPUT,
    "backward_weight": BACKWARD_WEIGHT,
}
KERNELS = tuple(_DEFINITIONS)


@dataclasses.dataclass(frozen=True)
class ConvCall(EmulatedCall):
    """A call of one of `KERNELS`.

    Operands are small odd integers, so that each product and sum is exact in any type and order.
    What is rounded, the results, is rounded alike here.

    Attributes besides those of `EmulatedCall`:
      images: how many.
      height, width: of an image.
      out_size: of the output; None for one with as much padding below as above, and likewise to
        the right.
      parts: of the weights' gradient; None for as many as the library has.
    """

    definitions = _DEFINITIONS

    config: ConvConfig
    images: int = 2
    height: int = 7
    width: int = 9
    out_size: tuple[int, int] | None = None
    parts: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        (n, p, q), h, w = self.pixels, self.height, self.width
        parts = self.parts or backward_weight_parts(self.config, n * p * q)
        return {"n": n, "h": h, "w": w, "p": p, "q": q, "s": parts}

    @property
    def pixels(self) -> tuple[int, int, int]:
        """Images, and height and width of the output."""
        c = self.config
        high = (self.height + 2 * c.pad_h - c.dilation_h * (c.kernel_h - 1) - 1) // c.stride_h + 1
        wide = (self.width + 2 * c.pad_w - c.dilation_w * (c.kernel_w - 1) - 1) // c.stride_w + 1
        return (self.images, *(self.out_size or (high, wide)))

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        """x, weight [G, Co/G, T, C/G], bias and grad_y, all in float64."""
        c, generator = self.config, np.random.default_rng(self.seed)

        def odd(*shape: int) -> np.ndarray:
            return generator.choice([-3.0, -1.0, 1.0, 3.0], shape)

        return {
            "x": odd(self.images, self.height, self.width, c.in_channels),
            "weight": odd(c.groups, c.out_channels_per_group, c.taps, c.in_channels_per_group),
            "bias": odd(c.out_channels),
            "grad_y": odd(*self.pixels, c.out_channels),
        }

    @property
    def every_operand(self) -> Mapping[str, np.ndarray]:
        c, weight = self.config, self.operands["weight"]
        weight = weight.reshape(c.out_channels, c.kernel_h, c.kernel_w, -1)
        return {**self.operands, "weight": weight.transpose(1, 2, 3, 0)}

    @functools.cached_property
    def expected(self) -> np.ndarray:
        """The result in float64, before it is rounded; of `backward_weight` the sum of all parts.

        Sums are of numpy's order: it makes no difference where they are exact. Padding is zeros,
        forward: an infinite weight makes NaN of it.
        """
        c, o = self.config, self.operands
        grad_y = o["grad_y"].reshape(*self.pixels, c.groups, -1)
        if self.kernel == "backward_input":
            gradient = np.zeros((o["x"].size // c.in_channels + 1, c.in_channels))
            for tap, pixel in enumerate(self._pixels_read):
                shares = np.einsum("npqgo,goi->npqgi", grad_y, o["weight"][:, :, tap])
                np.add.at(gradient, pixel, shares.reshape(*self.pixels, c.in_channels))
            return gradient[1:].reshape(o["x"].shape)
        nothing = np.zeros((1, c.in_channels))
        x = np.concatenate([nothing, o["x"].reshape(-1, c.in_channels)])
        windows = x[self._pixels_read].reshape(c.taps, *self.pixels, c.groups, -1)
        if self.kernel == "backward_weight":
            gradient = np.einsum("tnpqgi,npqgo->tigo", windows, grad_y)
            shape = c.kernel_h, c.kernel_w, c.in_channels_per_group, c.out_channels
            return gradient.reshape(shape)
        y = np.einsum("tnpqgi,goti->npqgo", windows, o["weight"])
        return y.reshape(*self.pixels, -1) + (o["bias"] if c.use_bias else 0.0)

    @property
    def result_type(self) -> np.dtype:
        """Of the kernel's result."""
        (result,) = self.definition.results(self.config).values()
        return numpy_dtype(result.dtype_of(self.config))

    def run(self, text: str | None = None, schedule: int | None = None, **options: Any) -> Report:
        """Launches the kernel, or a text in its place; raises if anything is wrong.

        The result holds nothing before, and the emulator raises if a byte of it is not written.
        """
        result, report = self.result(text=text, schedule=schedule, **options)
        self.compare(result)
        assert report is not None
        return report

    def result(
        self, operands: Mapping[str, np.ndarray] | None = None, **options: Any
    ) -> tuple[np.ndarray, Report | None]:
        """The kernel's result for some operands, and the emulator's report."""
        outcome = self.outcome(operands, **{"step_limit": 100_000, **options})
        (result,) = outcome.results.values()
        return result, outcome.report

    def compare(self, result: np.ndarray, expected: np.ndarray | None = None) -> None:
        """Asserts that a result, that of `backward_weight` by parts, is the expected one."""
        wide = np.float64 if self.config.float_type is f64 else np.float32
        rounded = (self.expected if expected is None else expected).astype(wide)
        rounded = rounded.astype(self.result_type).astype(wide)
        value = result.astype(wide)
        if self.kernel == "backward_weight":
            value = value.sum(0)
        np.testing.assert_array_equal(value.reshape(rounded.shape), rounded)

    @functools.cached_property
    def _pixels_read(self) -> np.ndarray:
        """Pixels of all images from 1 on that taps read, [T, N, P, Q]; 0 for none."""
        c, (images, high, wide) = self.config, self.pixels
        tap_y, tap_x = (v.reshape(-1, 1, 1, 1) for v in np.divmod(np.arange(c.taps), c.kernel_w))
        n, p, q = np.ogrid[:images, :high, :wide]
        y = p * c.stride_h - c.pad_h + tap_y * c.dilation_h
        x = q * c.stride_w - c.pad_w + tap_x * c.dilation_w
        inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
        return np.where(inside, (n * self.height + y) * self.width + x + 1, 0)


def assert_written_once(call: ConvCall, report: Report, text: str | None = None) -> None:
    """All stores together write as many bytes as the result has, and the launch all of them."""
    size = int(np.prod([call.sizes["s"], *call.expected.shape]))
    if call.kernel != "backward_weight":
        size = call.expected.size
    assert bytes_stored(text or call.text, report) == size * call.result_type.itemsize
