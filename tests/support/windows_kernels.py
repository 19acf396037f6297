"""Calls of the kernels of windows of samples, in any type, whose results are known."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptx.definition import KernelDefinition
from ptx.emulator import Report
from ptx.kernels.sampling import WINDOWS_BACKWARD_VALUE, WINDOWS_FORWARD
from ptx.kernels.sampling.windows import WindowsConfig
from support.drawn_samples import in_grid
from support.emulated_calls import EmulatedCall
from support.formulas import Axis, samples

__all__ = ["WINDOWS_KERNELS", "WindowsCall"]

DEFINITIONS: Mapping[str, KernelDefinition[WindowsConfig]] = {
    "windows_forward": WINDOWS_FORWARD,
    "windows_backward_value": WINDOWS_BACKWARD_VALUE,
}
WINDOWS_KERNELS = tuple(DEFINITIONS)
_NOWHERE = -100.0  # a position far outside


@dataclasses.dataclass(frozen=True)
class WindowsCall(EmulatedCall):
    """A call of one of `WINDOWS_KERNELS`.

    Operands are small numbers with few bits, so that each product and sum is exact in any type and
    order. One centre is NaN, and some are infinite.

    Attributes besides those of `EmulatedCall`:
      images, queries: how many, and windows of each.
      strange: whether centres are NaN and infinite.
    """

    definitions = DEFINITIONS

    config: WindowsConfig
    images: int = 2
    queries: int = 7
    _: dataclasses.KW_ONLY
    strange: bool = True

    @property
    def sizes(self) -> dict[str, int]:
        return {"n": self.images, "q": self.queries}

    @property
    def every_operand(self) -> Mapping[str, np.ndarray]:
        return self.operands

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        """All operands, in float64."""
        c, random = self.config, np.random.default_rng(self.seed)
        n, q = self.images, self.queries
        most = 4 * np.array(c.size[::-1]) + 10
        centers = random.integers(-10, most, (n, q, c.dims)) / 4
        if self.strange:
            axis = self.seed % c.dims
            centers[n - 1, q // 2, axis] = np.nan
            centers[0, 1, axis], centers[0, 2, axis] = np.inf, -np.inf

        def odd(*shape: int) -> np.ndarray:
            return random.choice([-3.0, -1.0, 1.0, 3.0], shape)

        return {
            "value": odd(n, c.pixels, 1),
            "centers": centers,
            "grad_y": odd(n, q, math.prod(c.window), 1),
            "zeros": np.zeros((n, c.pixels, 1)),
        }

    @functools.cached_property
    def expected(self) -> Mapping[str, np.ndarray]:
        """All results in float64, before they are rounded, by the names that kernels give them."""
        c, o = self.config, self.operands
        steps = np.indices(c.window).reshape(c.dims, -1) - np.array(c.radius)[:, None]
        invalid, axes = np.any(np.isnan(o["centers"]), axis=-1), []
        for axis, size in enumerate(c.size):
            center = o["centers"][..., -1 - axis]
            edge = np.where(center > 0, size - 1.0, 0.0) if c.padding_mode == "border" else _NOWHERE
            at = np.where(np.isfinite(center), center, 0.0)[..., None] + steps[axis]
            along = in_grid(at, size, c.padding_mode, False, nearest=False, coordinates="pixel")
            position = np.where(
                np.isinf(center)[..., None], np.expand_dims(edge, -1), along.position
            )
            position = np.where(invalid[..., None], _NOWHERE, position)
            axes.append(Axis(position.reshape(self.images, -1, 1, 1), 1.0))
        grad_y = o["grad_y"].reshape(self.images, -1, 1, 1)
        found = samples(o["value"][:, :, None], axes, None, grad_y, levels=[c.size], points=[1])
        y = found["y"].reshape(o["grad_y"].shape)
        y[invalid] = np.nan
        return {"y": y, "grad_value": found["dvalue"][:, :, 0]}

    def run(self, text: str | None = None, schedule: int | None = None, **options: Any) -> Report:
        """Launches the kernel, or a text in its place; raises if anything is wrong."""
        outcome = self.outcome(text=text, schedule=schedule, step_limit=200_000, **options)
        for name, result in outcome.results.items():
            expected = self.expected[name].astype(result.dtype).astype(np.float64)
            np.testing.assert_array_equal(result.astype(np.float64), expected, err_msg=name)
        assert outcome.report is not None
        return outcome.report
