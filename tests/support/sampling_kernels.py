"""Calls of any kernel of weighted sums of samples, in any type, whose results are known."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptx.definition import KernelDefinition
from ptx.emulator import Report
from ptx.isa.dtypes import bf16, f16, f64
from ptx.kernels.sampling import (
    BACKWARD_POINTS,
    BACKWARD_VALUE,
    BACKWARD_VALUE_GATHER,
    FORWARD,
    SamplingConfig,
)
from ptx.kernels.sampling.backward_value_gather import CELL_BORDER, cells_of
from ptx.kernels.sampling.geometry import HEIGHT, WIDTH, Across, Grid, Window
from ptx.kernels.sampling.parameters import weight_type
from ptx.tile.vectors import accumulator_of
from support.drawn_samples import in_grid
from support.emulated_calls import EmulatedCall
from support.formulas import Axis, samples

__all__ = ["KERNELS", "SamplingCall", "small", "wide"]

DEFINITIONS: Mapping[str, KernelDefinition[SamplingConfig]] = {
    "forward": FORWARD,
    "backward_value": BACKWARD_VALUE,
    "backward_value_gather": BACKWARD_VALUE_GATHER,
    "backward_points": BACKWARD_POINTS,
}
KERNELS = tuple(DEFINITIONS)
_NOWHERE = -100.0  # a position far outside


def additions(report: Report, text: str) -> int:
    """The atomic additions that threads have made with a text, each of one number or of several."""
    lines = text.splitlines()
    return sum(n for line, n in report.executed.items() if "red.global" in lines[line - 1])


def small(config: SamplingConfig) -> SamplingConfig:
    """The configuration with small images, in which positions are exact in any type.

    Sizes are powers of two, or one more where coordinates go from centre to centre; or any, for a
    window.
    """
    geometry = config.geometry
    if isinstance(geometry, Window):
        geometry = dataclasses.replace(geometry, out_size=(3, 5))
        return dataclasses.replace(config, levels=((15, 9),), geometry=geometry)
    corners = isinstance(geometry, Grid) and geometry.align_corners
    sides, more = ((2, 4, 8), (4, 2, 4), (1, 8, 2), (2, 1, 1)), int(corners)
    levels = tuple(
        tuple(
            1 if size == 1 else side + more
            for size, side in zip(level, sides[i % 4][-config.dims :], strict=True)
        )
        for i, level in enumerate(config.levels)
    )
    return dataclasses.replace(config, levels=levels)


def wide(config: SamplingConfig) -> SamplingConfig:
    """A small configuration with images that are wider than what a tile of queries has of them."""
    level = (26, 28) if isinstance(config.geometry, Window) else (16, 32)
    return dataclasses.replace(config, levels=(level, *config.levels[1:]))


@dataclasses.dataclass(frozen=True)
class SamplingCall(EmulatedCall):
    """A call of one of `KERNELS`, with images as `small` makes them.

    Operands are small numbers with few bits, so that each product and sum is exact in any type and
    order, unless there is a softmax. One point is NaN, and some are infinite.

    Attributes besides those of `EmulatedCall`:
      images, queries: how many.
      strange: whether points are NaN and infinite.
      far: whether one in eight offsets in a window is 16 pixels longer along each axis, weights are
        large too, and with seed 2 some gradients are infinite.
    """

    definitions = DEFINITIONS

    config: SamplingConfig
    images: int = 2
    queries: int = 35
    _: dataclasses.KW_ONLY
    strange: bool = True
    far: bool = False
    small: bool = True

    @property
    def tiled(self) -> bool:
        """Whether the kernel has tiles of queries, whose factors are rounded as images are."""
        return self.plan.slice > 0

    @property
    def sizes(self) -> dict[str, int]:
        n, q, heads = self.images, self.queries, self.config.heads
        return {
            "n": n, "q": q, "z": n * cells_of(self.config) * heads + 1,
            "i": n * q * heads * sum(self.config.points),
        }  # fmt: skip

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        """Value, locations, weights and grad_y, in float64 but as their types have them.

        And locations and weights "packed", with NaN in the padding.
        """
        c, random = self.config, np.random.default_rng(self.seed)
        n, q, points = self.images, self.queries, sum(c.points)
        shape = n, q, c.heads, points
        size = np.array([np.repeat([s[axis] for s in c.levels], c.points) for axis in c.axes[::-1]])
        if isinstance(c.geometry, Window):
            locations = random.integers(-8, 9, (*shape, 2)) / 4
            if self.far:
                locations += np.where(random.random((*shape, 2)) < 1 / 8, 16.0, 0.0)
        else:
            positions = random.integers(-10, 4 * size.T + 6, (*shape, c.dims)) / 4
            if isinstance(c.geometry, Across) or c.geometry.coordinates == "unit":
                locations = (positions + 0.5) / size.T
            elif c.geometry.coordinates == "pixel":
                locations = positions
            elif c.geometry.align_corners:
                locations = 2 * positions / np.maximum(size.T - 1, 1) - 1
            else:
                locations = (2 * positions + 1) / size.T - 1
        if self.strange:
            axis = self.seed % c.dims
            locations[n - 1, q // 2, c.heads - 1, points - 1, axis] = np.nan
            if self._infinite_is_outside:
                locations[0, 1, 0, 0, axis] = np.inf
                locations[0, 2, 0, points - 1, axis] = -np.inf

        def odd(*shape: int) -> np.ndarray:
            return random.choice([-3.0, -1.0, 1.0, 3.0], shape)

        large = self.far and isinstance(c.geometry, Window)  # for factors in f16
        weights = random.choice([-1.0, 0.5, 2.0, 0.25, *[32.0] * large], shape)
        if c.normalize:
            weights = random.integers(-16, 17, shape) / 8
        value, grad_y = odd(n, c.pixels, c.heads, c.channels), odd(n, q, c.heads, c.channels)
        if self.far and self.seed == 2:
            for query, channel in enumerate(range(min(q, c.channels))):
                grad_y[0, query, 0, channel] = np.inf
        return {
            "value": value,
            "locations": locations,
            "weights": weights,
            "grad_y": grad_y,
            **({"packed": self._packed(locations, weights, padding=np.nan)} if c.packed else {}),
        }

    def _packed(self, locations: np.ndarray, weights: np.ndarray, padding: float) -> np.ndarray:
        """Rows of the locations and weights of all heads of a query, with some padding."""
        rows = np.full((self.images, self.queries, self.config.packed_width), padding)
        for head in range(self.config.heads):
            pairs = locations[:, :, head].reshape(*rows.shape[:2], -1)
            each = np.concatenate([pairs, weights[:, :, head]], axis=-1)
            rows[:, :, head * each.shape[-1] :][..., : each.shape[-1]] = each
        return rows

    @property
    def _infinite_is_outside(self) -> bool:
        """Whether an infinite position reads zeros, not the pixel at the edge."""
        geometry = self.config.geometry
        if isinstance(geometry, Across):
            return not geometry.nearest
        return isinstance(geometry, Window) or geometry.padding_mode != "border"

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Positions along each axis; far outside where a coordinate is not finite."""
        c, found = self.config, []
        locations = self.operands["locations"]
        nowhere = ~np.isfinite(locations).all(-1)
        for axis in c.axes:
            at = np.where(nowhere, 0.0, locations[..., -1 - axis])
            size = np.repeat([level[axis] for level in c.levels], c.points)
            g = c.geometry
            if isinstance(g, Window):
                taps = [(i, j) for j in range(g.kernel_size[1]) for i in range(g.kernel_size[0])]
                if g.remove_center:
                    taps.remove((g.kernel_size[0] // 2, g.kernel_size[1] // 2))
                middle = g.dilation[axis] * (g.kernel_size[axis] - 1) // 2
                tap = np.array([t[axis] * g.dilation[axis] - middle for t in taps])
                query = np.arange(self.queries)
                columns = g.out_size[WIDTH]
                pixel = query % columns if axis else query // columns % g.out_size[HEIGHT]
                start = pixel * g.strides[axis] + middle - g.padding[axis]
                position = start[:, None, None] + g.offset_scale * (at + tap)
                along = Axis(position, g.offset_scale)
            elif isinstance(g, Grid):
                along = in_grid(
                    at, int(size[0]), g.padding_mode, g.align_corners,
                    nearest=g.nearest, coordinates=g.coordinates,
                )  # fmt: skip
            elif g.nearest:
                along = Axis(np.clip(np.floor(at * size + 0.5), 0, size - 1), 0.0)
            else:
                along = Axis(at * size - 0.5, size)
            found.append(Axis(np.where(nowhere, _NOWHERE, along.position), along.slope))
        return tuple(found)

    @functools.cached_property
    def expected(self) -> Mapping[str, np.ndarray]:
        """All results in float64, before they are rounded, by the names that kernels give them."""
        c, o = self.config, self.operands
        with np.errstate(invalid="ignore"):
            found = samples(
                o["value"], self.axes, o["weights"] if c.has_weights else None, o["grad_y"],
                levels=[*c.levels], points=[*c.points], normalize=c.normalize,
            )  # fmt: skip
        results = {
            "y": found["y"],
            "grad_value": found["dvalue"],
            "grad_locations": found["dcoordinates"],
            "grad_weights": found["dweights"],
        }
        invalid = np.isnan(o["locations"]).any(-1)
        results["y"][invalid.any(-1)] = np.nan
        results["grad_locations"][invalid] = np.nan
        results["grad_weights"][invalid.any(-1) if c.normalize else invalid] = np.nan
        if c.packed:
            gradients = results["grad_locations"], results["grad_weights"]
            results["grad_packed"] = self._packed(*gradients, padding=0.0)
        return results

    @functools.cached_property
    def lists(self) -> Mapping[str, np.ndarray]:
        """What the gathering kernel reads, by name."""
        c = self.config
        starts = np.cumsum([0, *(math.prod(s + 4 for s in level) for level in c.levels)])
        level = np.repeat(np.arange(len(c.levels)), c.points)
        cells, pairs = 0, []
        for axis, position in enumerate(along.position for along in self.axes):
            floor = np.floor(position)
            size = np.array([s[axis] for s in c.levels])[level]
            cell = (np.clip(floor, -CELL_BORDER, size) + CELL_BORDER).astype(int)
            cells = cells * (size + 2 * CELL_BORDER) + cell
            pairs.append((1 - (position - floor), position - floor))
        image = np.arange(self.images).reshape(-1, 1, 1, 1) * cells_of(c)
        cells = ((image + starts[level] + cells) * c.heads + np.arange(c.heads)[:, None]).ravel()
        used = self.operands["weights"] if c.has_weights else np.ones(self.axes[0].position.shape)
        if c.normalize:
            used = np.exp(used) / np.exp(used).sum(-1, keepdims=True)
        weights = [math.prod(corner) for corner in itertools.product(*pairs)]
        weights = np.stack(weights[: c.corners], -1) * used[..., None]
        order = np.argsort(cells, kind="stable")
        boundaries = np.arange(self.sizes["z"])
        return {
            "starts": np.searchsorted(cells[order], boundaries),
            "order": order,
            "corner_weights": weights.reshape(len(order), -1)[order],
        }

    @property
    def every_operand(self) -> Mapping[str, np.ndarray]:
        return {**self.operands, **self.lists, "zeros": np.zeros(self.operands["value"].shape)}

    def run(self, text: str | None = None, schedule: int | None = None, **options: Any) -> Report:
        """Launches the kernel, or a text in its place; raises if anything is wrong."""
        limit = 10_000 if self.tiled else 200_000  # steps of tiles take long
        outcome = self.outcome(text=text, schedule=schedule, step_limit=limit, **options)
        for name, result in outcome.results.items():
            self.compare(name, result)
        assert outcome.report is not None
        if text is not None and self.tiled:
            assert additions(outcome.report, text) == self.additions
        return outcome.report

    @functools.cached_property
    def additions(self) -> int:
        """The atomic additions that threads make."""
        report = self.outcome(step_limit=200_000).report
        assert report is not None
        return additions(report, self.text)

    def compare(self, name: str, result: np.ndarray) -> None:
        """Asserts that a result is the expected one."""
        c = self.config
        wide = np.float64 if c.float_type is f64 else np.float32
        with np.errstate(over="ignore"):
            expected = self.expected[name].astype(wide).astype(result.dtype).astype(np.float64)
        found = result.astype(np.float64)
        rounded = c.normalize or c.float_type is bf16  # whose 8 bits don't hold sums of factors
        if self.tiled and rounded:
            precision = {f16: 5e-4, bf16: 4e-3}[c.float_type]
        elif not c.normalize:
            np.testing.assert_array_equal(found, expected, err_msg=name)
            return
        else:  # a softmax is in f32, or in f64 where weights are
            width = min(accumulator_of(weight_type(c)).bytes, c.sum_type.bytes, result.itemsize)
            precision = {2: 1e-2, 4: 3e-6, 8: 1e-13}[width]
        scale = float(np.nanmax(np.abs(expected)))
        np.testing.assert_allclose(
            found, expected, rtol=precision, atol=precision * scale, err_msg=name
        )
