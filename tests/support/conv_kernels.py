"""Calls of any kernel of a convolution, in any type, whose every result is exact."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from ptx.emulator import Buffer, Report, launch
from ptx.isa.targets import TARGETS
from ptx.kernels.conv import ConvConfig, backward_weight_parts, is_direct
from ptx.launch import Address, Launch
from ptx.registry import RegisteredKernel, kernels

__all__ = ["KERNELS", "NUMPY", "Call", "assert_written_once"]

KERNELS = ("forward", "backward_input", "backward_weight")
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of one of `KERNELS`; operands and results are as their launch functions say.

    Operands are small odd integers, so that each product and sum is exact in any type and order.
    What is rounded, the results, is rounded alike here.

    Attributes:
      kernel: one of `KERNELS`.
      config: the convolution.
      images: how many.
      height, width: of an image.
      out_size: of the output; None for one with as much padding below as above, and likewise to
        the right.
      bias: whether there is one, forward.
      parts: of the weights' gradient; None for as many as the library has.
      seed: of the operands.
      target: for which the kernel is.
    """

    kernel: str
    config: ConvConfig
    images: int = 2
    height: int = 7
    width: int = 9
    out_size: tuple[int, int] | None = None
    bias: bool = True
    parts: int | None = None
    seed: int = 0
    target: str = "sm_80"

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        return self._registered.generate(self.config, TARGETS[self.target])

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

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Operands as they lie in memory, by name, in the order of the call."""
        c, o = self.config, self.operands
        weight = o["weight"].reshape(c.out_channels, c.taps, -1)
        if self.kernel == "backward_input" or is_direct(c):
            weight = weight.transpose(1, 2, 0)
        if self.kernel == "forward":
            found = {"x": o["x"], "weight": weight} | ({"bias": o["bias"]} if self.bias else {})
        elif self.kernel == "backward_input":
            found = {"weight": weight, "grad_y": o["grad_y"]}
        else:
            found = {"x": o["x"], "grad_y": o["grad_y"]}
        return {name: v.astype(NUMPY[c.float_type.name], order="C") for name, v in found.items()}

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
            for tap, place in enumerate(self._places):
                shares = np.einsum("npqgo,goi->npqgi", grad_y, o["weight"][:, :, tap])
                np.add.at(gradient, place, shares.reshape(*self.pixels, c.in_channels))
            return gradient[1:].reshape(o["x"].shape)
        nothing = np.zeros((1, c.in_channels))
        x = np.concatenate([nothing, o["x"].reshape(-1, c.in_channels)])
        windows = x[self._places].reshape(c.taps, *self.pixels, c.groups, -1)
        if self.kernel == "backward_weight":
            gradient = np.einsum("tnpqgi,npqgo->tigo", windows, grad_y)
            return gradient.reshape(c.taps, c.in_channels_per_group, -1)
        y = np.einsum("tnpqgi,goti->npqgo", windows, o["weight"])
        return y.reshape(*self.pixels, -1) + (o["bias"] if self.bias else 0.0)

    @property
    def result_type(self) -> np.dtype:
        """Of the kernel's result."""
        name = self.config.float_type.name
        wide = self.kernel == "backward_weight" and name != "f64"
        return np.dtype(NUMPY["f32" if wide else name])

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Of the kernel's result."""
        shape = self.expected.shape
        if self.kernel != "backward_weight":
            return shape
        return (self.parts or backward_weight_parts(self.config, int(np.prod(self.pixels))), *shape)

    def run(
        self, text: str | None = None, schedule: int | None = None, step_limit: int = 100_000
    ) -> Report:
        """Launches the kernel, or a text in its place; raises if anything is wrong.

        The result holds nothing before, and the emulator raises if a byte of it is not written.
        """
        result = Buffer(np.empty(self.result_shape, self.result_type), initialized=False)
        buffers = [*(Buffer(v, writable=False) for v in self.arrays.values()), result]
        report = self.launch_with(buffers, text, schedule, step_limit)
        self.compare(result.array)
        return report

    def plan(self, shapes: Sequence[tuple[int, ...]]) -> Launch:
        """The launch for operands and results of some shapes."""
        assert self._registered.launch is not None
        return self._registered.launch(self.config, TARGETS[self.target], shapes)

    def launch_with(
        self,
        buffers: Sequence[Buffer],
        text: str | None = None,
        schedule: int | None = None,
        step_limit: int = 100_000,
    ) -> Report:
        """Launches on buffers: of the operands, then of the result."""
        how = self.plan([b.array.shape for b in buffers])
        arguments = [buffers[a.buffer] if isinstance(a, Address) else a for a in how.arguments]
        return launch(
            text or self.text, how.grid, how.block, arguments, schedule=schedule,
            dynamic_shared=self._registered.dynamic_shared(self.config, TARGETS[self.target]),
            statistics=False, step_limit=step_limit,
        )  # fmt: skip

    def compare(self, result: np.ndarray, expected: np.ndarray | None = None) -> None:
        """Asserts that a result, that of `backward_weight` by parts, is the expected one."""
        wide = np.float64 if self.config.float_type.name == "f64" else np.float32
        rounded = (self.expected if expected is None else expected).astype(wide)
        rounded = rounded.astype(self.result_type).astype(wide)
        value = result.astype(wide)
        if self.kernel == "backward_weight":
            value = value.sum(0)
        np.testing.assert_array_equal(value.reshape(rounded.shape), rounded)

    @property
    def _registered(self) -> RegisteredKernel[ConvConfig]:
        return kernels()[f"conv_{self.kernel}"]

    @functools.cached_property
    def _places(self) -> np.ndarray:
        """Pixels of all images from 1 on that taps read, [T, N, P, Q]; 0 for none."""
        c, (images, high, wide) = self.config, self.pixels
        tap_y, tap_x = (v.reshape(-1, 1, 1, 1) for v in np.divmod(np.arange(c.taps), c.kernel_w))
        n, p, q = np.ogrid[:images, :high, :wide]
        y = p * c.stride_h - c.pad_h + tap_y * c.dilation_h
        x = q * c.stride_w - c.pad_w + tap_x * c.dilation_w
        inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
        return np.where(inside, (n * self.height + y) * self.width + x + 1, 0)


def assert_written_once(call: Call, report: Report, text: str | None = None) -> None:
    """All stores together write as many bytes as the result has, and the launch all of them."""
    lines, written = (text or call.text).splitlines(), 0
    for line, count in report.executed.items():
        store = re.search(r"\bst\.global(?:\.v(\d))?\.[a-z]+(\d+) ", lines[line - 1])
        if store:
            written += count * int(store[1] or 1) * int(store[2]) // 8
    assert written == int(np.prod(call.result_shape)) * call.result_type.itemsize
