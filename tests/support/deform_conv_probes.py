"""Operands for which a broken kernel of a deformable convolution gives itself away."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from ptx.emulator import Report
from ptx.isa.dtypes import bf16
from ptx.kernels.deform_conv import DeformConvConfig
from support.deform_conv_kernels import DeformConvCall

__all__ = ["PROBES"]

# Nothing to sample, and for NaN no result: y and x of an offset.
STRANGE = [
    (np.nan, 0.5), (0.25, np.nan), (np.inf, 0.5), (0.5, -np.inf), (2.0**30, 0.25),
    (0.25, -(2.0**31)), (3e38, 0.5), (0.5, -3e38), (100.5, 0.5), (0.5, -100.5),
]  # fmt: skip
TINY = 2.0**-50  # is lost in a sum with anything else, but for rounding towards zero
# Positions that are outside of any image, in the direction of one of its corners.
FAR = [
    (-100.5, -100.5), (100.5, 100.5), (-100.5, 100.5), (100.5, -100.5), (-np.inf, -np.inf),
    (np.inf, np.inf), (2.0**30, 2.0**30), (-(2.0**31), -(2.0**31)), (-3e38, 3e38), (3e38, -3e38),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Probe(DeformConvCall):
    """A call with less regular operands of bfloat16, whose results are compared bit by bit.

    Each product and sum is exact in float32 in any order. What is rounded to bfloat16, the sampled
    values and the results, is rounded alike here.

    Images have 8 significant bits, so that sums often lie halfway between two results, and where
    they do the last bit of what was summed decides.

    Attributes:
      strange: of the first image, the corners are infinite, and half of the output pixels sample
        nothing but what is far outside. Infinite, NaN and far offsets are all over the others.
      ties: much of the images and some offsets are tiny, and grad_y and the images are such that
        results lie halfway more often. A sum that is rounded towards zero is another one then.
    """

    strange: bool = False
    ties: bool = False

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        c, generator = self.config, np.random.default_rng(self.seed)
        pixels = (self.images, *c.output_size(self.height, self.width))

        def tiny(share: float, values: np.ndarray) -> np.ndarray:
            signs = generator.choice([-TINY, TINY], values.shape)
            return np.where(generator.random(values.shape) < share, signs, values)

        shape = (*pixels, c.mask_channels, 2)
        halves, finer = generator.integers(-10, 11, shape) / 2.0, odd(generator, 8, shape) / 64
        offset = np.where(generator.random(shape) < 0.8, halves, finer)
        x = odd(generator, 8, (self.images, self.height, self.width, c.in_channels))
        grad_y = odd(generator, 2, (*pixels, c.out_channels))
        if self.ties:
            if self.kernel != "forward":  # few bits more than a result has, in each dot
                x = odd(generator, 2, x.shape)
                grad_y = np.where(generator.random(grad_y.shape) < 0.15, grad_y, 0.0)
            x, offset = tiny(0.25, x), tiny(0.15, offset)
        if self.strange:
            offset, x = self._strange(generator, offset, x)
        weight = (c.groups, c.out_channels_per_group, c.taps, c.in_channels_per_group)
        return {
            "x": x,
            "offset": offset.reshape(*pixels, c.offset_channels),
            "weight": odd(generator, 2, weight),
            "mask": generator.choice([0.5, 1.0, 1.5, 2.0], (*pixels, c.mask_channels)),
            "bias": odd(generator, 8, (c.out_channels,)),
            "grad_y": grad_y,
        }

    def _strange(
        self, generator: np.random.Generator, offset: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        others = offset[1:].reshape(-1, 2)
        places = generator.choice(len(others), 6 * len(STRANGE), replace=False)
        others[places] = STRANGE * 6
        far = generator.random(offset.shape[1:3]) < 0.5
        number = generator.integers(len(FAR), size=(far.sum(), offset.shape[3]))
        offset[0][far] = np.array(FAR)[number]
        x = x.copy()
        x[0, [0, -1], [0, -1]] = np.inf
        x[0, [0, -1], [-1, 0]] = -np.inf
        return offset, x

    @functools.cached_property
    def expected(self) -> list[np.ndarray]:
        with np.errstate(invalid="ignore"):
            return [self._rounded(exact) for exact in super().expected]

    def run(
        self, text: str | None = None, schedule: int | None = None, step_limit: int = 20_000
    ) -> Report:
        """Launches a text in the place of the kernel's; raises if anything is wrong."""
        results, report = self._results(text, schedule, step_limit)
        for result, expected in zip(results, self.expected, strict=True):
            self._assert_equal(result, expected)
        return report

    def _results(
        self, text: str | None, schedule: int | None, step_limit: int
    ) -> tuple[list[np.ndarray], Report]:
        """What a text writes, in float32."""
        outcome = self.outcome(text=text, schedule=schedule, step_limit=step_limit)
        assert outcome.report is not None
        return [v.astype(np.float32) for v in outcome.results.values()], outcome.report

    def _as_multiplied(self, sampled: np.ndarray) -> np.ndarray:
        return sampled.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)

    @staticmethod
    def _rounded(exact: np.ndarray) -> np.ndarray:
        single = exact.astype(np.float32)
        np.testing.assert_allclose(single, exact, rtol=2.0**-24)
        return single.astype(ml_dtypes.bfloat16).astype(np.float32)

    def _assert_equal(self, result: np.ndarray, expected: np.ndarray) -> None:
        # What is left where all else is 0 depends on the order of the sum.
        result, expected = (np.where(np.abs(v) < 2.0**-30, 0, v) for v in (result, expected))
        np.testing.assert_array_equal(result, expected)


class Flat(Probe):
    """A probe all of whose results are 0, but for what rounding leaves, and at edges.

    For the gradients, images are the same everywhere: the four dots of a sample are equal bit for
    bit, and their differences 0. Forward, neighbours of a row are opposite and samples lie in their
    middle: what the sum of the corners leaves is its rounding errors. They have to be those of the
    kernel as it is.
    """

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        c, generator = self.config, np.random.default_rng(self.seed)
        o = dict(super().operands)
        images, height, width, channels = o["x"].shape
        if self.kernel != "forward":
            one = odd(generator, 8, (images, 1, 1, channels))
            one *= 2.0 ** generator.integers(-12, 13, one.shape)
            return o | {"x": np.broadcast_to(one, o["x"].shape)}
        rows = odd(generator, 8, (images, height, 1, channels))
        offset = o["offset"].reshape(*o["offset"].shape[:3], c.offset_groups, c.taps, 2)
        down = odd(generator, 8, offset.shape[:-1]) / 2**12
        column = np.arange(offset.shape[2]) * c.stride_w - c.pad_w
        column = column[:, None, None] + np.arange(c.taps) % c.kernel_w * c.dilation_w
        right = generator.integers(0, width - 1, offset.shape[:-1]) + 0.5 - column
        offset = np.stack([down, right], -1).reshape(o["offset"].shape)
        mask = odd(generator, 8, o["mask"].shape) / 256
        x = rows * (1 - np.arange(width) % 2 * 2)[:, None]
        return o | {"x": x, "offset": offset, "mask": mask, "bias": 0 * o["bias"]}

    @functools.cached_property
    def expected(self) -> list[np.ndarray]:
        if self.kernel != "forward":
            return super().expected
        results, _ = self._results(self.text, None, 20_000)
        return results

    def _assert_equal(self, result: np.ndarray, expected: np.ndarray) -> None:
        if self.kernel != "forward":
            result, expected = result[expected == 0], expected[expected == 0]
        assert len(np.unique(result)) > 1 or self.kernel != "forward"
        np.testing.assert_array_equal(result, expected)


def odd(generator: np.random.Generator, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Odd numbers of either sign and at most so many bits."""
    return generator.integers(-(2**bits) // 2, 2**bits // 2, shape) * 2.0 + 1


def probes(
    kernel: str, config: DeformConvConfig, taps_per_block: Sequence[int | None] = (None,)
) -> tuple[Probe, ...]:
    """What each mutant of a kernel has to solve: partial tiles, several blocks, two strips."""
    taps = itertools.cycle(taps_per_block)
    small = functools.partial(Probe, kernel, config, images=3, height=9, width=7)
    line = functools.partial(Probe, kernel, config, images=2, height=1, width=39)
    flat = functools.partial(Flat, kernel, config, images=3, height=9, width=7)
    return (
        small(strange=True, taps_per_block=next(taps)),
        line(seed=1, ties=True, taps_per_block=next(taps)),
        flat(seed=2, taps_per_block=next(taps)),
    )


_COMMON = {
    **{"float_type": bf16, "use_bias": True, "stride_h": 2, "dilation_w": 2},
    **{"pad_h": 2, "pad_w": 1},
}
# Each of the ways in which tiles of samples are made, with several groups of both kinds, slices
# along K and tables or fills of the sampler where there can be.
PROBES = {
    "forward-tiled": probes(
        "forward", DeformConvConfig(56, 40, 5, 2, groups=2, offset_groups=4, **_COMMON)
    ),
    "forward-table": probes(
        "forward", DeformConvConfig(256, 40, 2, 3, groups=2, offset_groups=4, **_COMMON)
    ),
    "forward-positions": probes(
        "forward", DeformConvConfig(128, 40, 2, 3, groups=2, offset_groups=16, **_COMMON)
    ),
    "backward-offset-tiled": probes(
        "backward_offset",
        DeformConvConfig(28, 160, 5, 2, groups=2, offset_groups=2, **_COMMON),
    ),
    "backward-offset-table": probes(
        "backward_offset",
        DeformConvConfig(48, 128, 2, 3, groups=2, offset_groups=2, **_COMMON),
        taps_per_block=(4, 5, 1),
    ),
    "backward-offset-positions": probes(
        "backward_offset",
        DeformConvConfig(48, 128, 2, 3, groups=2, offset_groups=6, **_COMMON),
        taps_per_block=(4, 5, 1),
    ),
}
