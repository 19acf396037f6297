"""Deformable convolutions whose every result is exact, and a reference in numpy for them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ptx.definition import KernelDefinition
from ptx.emulator import Report
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    DeformConvConfig,
    backward_weight_parts,
)
from ptx.launch import Launch
from ptx.testing.call import Outcome, numpy_dtype, run

__all__ = ["KERNELS", "Problem"]

KERNELS: dict[str, KernelDefinition[DeformConvConfig]] = {
    "forward": FORWARD,
    "backward_offset": BACKWARD_OFFSET,
    "backward_input": BACKWARD_INPUT,
    "backward_input_gather": BACKWARD_INPUT_GATHER,
    "backward_weight": BACKWARD_WEIGHT,
}
HALF = ml_dtypes.bfloat16
# Nothing to sample, and for NaN no result: y and x of an offset.
STRANGE = [
    (np.nan, 0.5), (0.25, np.nan), (np.inf, 0.5), (0.5, -np.inf), (2.0**30, 0.25),
    (0.25, -(2.0**31)), (3e38, 0.5), (0.5, -3e38), (100.5, 0.5), (0.5, -100.5),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Problem:
    """One call of a kernel, with bfloat16 operands.

    All are small integers and fractions, so that in float32 each product and sum is exact in any
    order. What is rounded to bfloat16, the sampled values and the results, is rounded alike here.

    Attributes:
      kernel: "forward" or "backward_offset".
      config: the convolution.
      images: how many.
      height, width: of an image.
      seed: of the operands.
      taps_per_block: for a launch with other parts of the taps than it would have.
      strange: offsets that are infinite, NaN or far, and an image with infinite values at its edge.
      target: for which the kernel is.
      small: whether the kernel has the plan of so small a launch; else that of a large one.
    """

    kernel: str
    config: DeformConvConfig
    images: int = 4
    height: int = 4
    width: int = 5
    seed: int = 0
    taps_per_block: int | None = None
    strange: bool = False
    target: str = "sm_80"
    small: bool = False

    @property
    def definition(self) -> KernelDefinition[DeformConvConfig]:
        """The kernel."""
        return KERNELS[self.kernel]

    @property
    def plan(self) -> Any:
        """The kernel's plan."""
        sizes = self.sizes if self.small else None
        return self.definition.plan(self.config, TARGETS[self.target], sizes)

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        return self.launch.text

    @property
    def launch(self) -> Launch:
        """The kernel's launch."""
        shapes = self.definition.shapes(self.config, self.sizes)
        ordered = list(shapes.values())
        return self.definition.launch(self.config, self.target, ordered, plan=self.plan)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions that the configuration does not know, by name."""
        n, h, w, (p, q) = (
            *(self.images, self.height, self.width),
            self.config.output_size(self.height, self.width),
        )
        parts = backward_weight_parts(self.config, n * p * q)
        return {"n": n, "h": h, "w": w, "p": p, "q": q, "s": parts}

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        """x, offset, weight [G, Co/G, T, C/G], mask, bias and grad_y, all in float64."""
        c, generator = self.config, np.random.default_rng(self.seed)
        pixels = (self.images, *c.output_size(self.height, self.width))

        def integers(*shape: int) -> np.ndarray:
            return generator.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], shape)

        x = integers(self.images, self.height, self.width, c.in_channels)
        offset = generator.integers(-24, 25, (*pixels, c.mask_channels, 2)) / 8
        if self.strange:
            flat = offset.reshape(-1, 2)
            places = generator.choice(len(flat), 4 * len(STRANGE), replace=False)
            flat[places] = STRANGE * 4
            x[0, 0, 0, :: c.segment] = np.inf
            x[0, -1, -1, c.segment - 1 :: c.segment] = -np.inf
        return {
            "x": x,
            "offset": offset.reshape(*pixels, c.offset_channels),
            "weight": integers(c.groups, c.out_channels_per_group, c.taps, c.in_channels_per_group),
            "mask": generator.choice([0.5, 1.0, 1.5, 2.0], (*pixels, c.mask_channels)),
            "bias": integers(c.out_channels),
            "grad_y": integers(*pixels, c.out_channels),
        }

    @functools.cached_property
    def expected(self) -> list[np.ndarray]:
        """What the kernel writes: y; or the gradients to offset, and to mask if there is one."""
        with np.errstate(invalid="ignore"):
            return self._forward() if self.kernel == "forward" else self._backward_offset()

    def run(self, text: str, schedule: int | None = None, step_limit: int = 20_000) -> Report:
        """Launches a text in the place of the kernel's; raises if anything is wrong."""
        results, report = self._results(text, schedule, step_limit)
        for result, expected in zip(results, self.expected, strict=True):
            self._assert_equal(result, expected)
        return report

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The kernel's operands, by name, with dimensions in the order of their `dims`."""
        c, o = self.config, self._operands
        return {
            name: o[name].astype(numpy_dtype(parameter.dtype_of(c)), order="C")
            for name, parameter in self.definition.operands(c).items()
        }

    @property
    def _operands(self) -> Mapping[str, np.ndarray]:
        """All that kernels may take, in float64 or whole numbers."""
        c, o = self.config, self.operands
        weight = o["weight"].reshape(c.out_channels, c.kernel_h, c.kernel_w, -1)
        return {**o, "weight": weight.transpose(1, 2, 3, 0), "zeros": np.zeros(o["x"].shape)}

    def outcome(self, **options: Any) -> Outcome:
        """What the kernel does, or a text in its place; the emulator raises if that is a fault."""
        if (taps := self.taps_per_block) is not None:
            parts = -(-self.config.taps // taps)
            options["values"] = {"taps_per_block": taps}
            options["grid"] = lambda grid: (*grid[:2], parts)
        operands, options = self.arrays, {"plan": self.plan, **options}
        return run(self.definition, self.config, self.target, operands, self.sizes, **options)

    def _results(
        self, text: str, schedule: int | None, step_limit: int
    ) -> tuple[list[np.ndarray], Report]:
        """What a text writes, in float32."""
        outcome = self.outcome(text=text, schedule=schedule, step_limit=step_limit)
        assert outcome.report is not None
        return [v.astype(np.float32) for v in outcome.results.values()], outcome.report

    def _assert_equal(self, result: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_array_equal(result, expected)

    @functools.cached_property
    def _samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fractions ly and lx [N, P, Q, OG, T], and the four corners [4, N, P, Q, T, C]."""
        c, x = self.config, self.operands["x"]
        images, height, width, _ = x.shape
        offset = self.operands["offset"]
        offset = offset.reshape(*offset.shape[:3], c.offset_groups, c.taps, 2)
        floor = np.floor(offset)
        far = np.abs(offset) > 2.0**30
        fraction = np.where(far, 0.0, offset - floor)
        fraction += 0.0 * fraction.sum(-1, keepdims=True)
        near = np.nan_to_num(np.clip(floor, -(2.0**30), 2.0**30), nan=-(2.0**30)).astype(int)
        tap_y, tap_x = np.divmod(np.arange(c.taps), c.kernel_w)
        p, q = np.ogrid[: offset.shape[1], : offset.shape[2]]
        y = (p * c.stride_h - c.pad_h)[..., None, None] + tap_y * c.dilation_h + near[..., 0]
        x_ = (q * c.stride_w - c.pad_w)[..., None, None] + tap_x * c.dilation_w + near[..., 1]
        channel_group = np.arange(c.in_channels) // c.channels_per_offset_group
        channel = np.arange(c.in_channels)
        image = np.arange(images).reshape(-1, 1, 1, 1, 1)
        corners = []
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            at_y, at_x = (
                v.swapaxes(-1, -2)[..., channel_group] for v in (y + down, x_ + right)
            )  # [N, P, Q, T, C]
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            values = x[image, at_y.clip(0, height - 1), at_x.clip(0, width - 1), channel]
            corners.append(np.where(inside, values, 0.0))
        return fraction[..., 0], fraction[..., 1], np.stack(corners)

    @property
    def _mask(self) -> np.ndarray:
        """[N, P, Q, OG, T]: ones without modulation."""
        c, mask = self.config, self.operands["mask"]
        mask = mask.reshape(*mask.shape[:3], c.offset_groups, c.taps)
        return mask if c.use_modulation else np.ones_like(mask)

    def _forward(self) -> list[np.ndarray]:
        c, o = self.config, self.operands
        ly, lx, corners = self._samples
        m = self._mask
        weights = ((1 - ly) * (1 - lx) * m, (1 - ly) * lx * m, ly * (1 - lx) * m, ly * lx * m)
        sampled = np.zeros(corners.shape[1:])
        for weight, corner in zip(weights, corners, strict=True):
            spread = np.repeat(weight.swapaxes(-1, -2), c.channels_per_offset_group, -1)
            sampled += spread * corner
        sampled = sampled.astype(np.float32).astype(HALF).astype(np.float64)
        sampled = sampled.reshape(*sampled.shape[:4], c.groups, c.in_channels_per_group)
        y = np.einsum("npqtgi,goti->npqgo", sampled, o["weight"])
        y = y.reshape(*y.shape[:3], -1) + (o["bias"] if c.use_bias else 0.0)
        return [self._rounded(y)]

    def _backward_offset(self) -> list[np.ndarray]:
        c, o, m = self.config, self.operands, self._mask
        ly, lx, corners = self._samples
        grad_y = o["grad_y"].reshape(*o["grad_y"].shape[:3], c.groups, -1)
        gcol = np.einsum("npqgo,goti->npqtgi", grad_y, o["weight"])
        gcol = gcol.reshape(*gcol.shape[:4], c.in_channels)
        shape = (*gcol.shape[:4], c.offset_groups, -1)
        d1, d2, d3, d4 = (
            (gcol * corner).reshape(shape).sum(-1).swapaxes(-1, -2) for corner in corners
        )
        hy, hx = 1 - ly, 1 - lx
        along_y = m * (hx * (d3 - d1) + lx * (d4 - d2))
        along_x = m * (hy * (d2 - d1) + ly * (d4 - d3))
        of_mask = hy * (hx * d1 + lx * d2) + ly * (hx * d3 + lx * d4)
        pixels = gcol.shape[:3]
        results = [np.stack([along_y, along_x], -1).reshape(*pixels, -1)]
        if c.use_modulation:
            results.append(of_mask.reshape(*pixels, -1))
        return [self._rounded(v) for v in results]

    @staticmethod
    def _rounded(exact: np.ndarray) -> np.ndarray:
        single = exact.astype(np.float32)
        np.testing.assert_array_equal(single, exact)  # the operands are small enough
        return single.astype(HALF).astype(np.float32)
