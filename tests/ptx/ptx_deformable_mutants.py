"""Operands for which a broken kernel of a deformable convolution gives itself away."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
from ptx_deformable import STRANGE, Problem

__all__ = ["Probe", "check"]

TINY = 2.0**-50  # is lost in a sum with anything else, but for rounding towards zero
# Positions that are outside of any image, in the direction of one of its corners.
FAR = [
    (-100.5, -100.5), (100.5, 100.5), (-100.5, 100.5), (100.5, -100.5), (-np.inf, -np.inf),
    (np.inf, np.inf), (2.0**30, 2.0**30), (-(2.0**31), -(2.0**31)), (-3e38, 3e38), (3e38, -3e38),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Probe(Problem):
    """A problem with less regular operands; its results still are exact, but for their rounding.

    Images have 8 significant bits, so that sums lie halfway between two results often, and where
    they do the last bit of what was summed decides: tiny numbers among the operands make that bit
    another one if a sum is rounded towards zero.

    Attributes:
      strange: of the first image, the corners are infinite, and half of the output pixels sample
        nothing but what is far outside. Infinite, NaN and far offsets are all over the others.
      sparse: share of grad_y that is not zero, and of the images that is not tiny.
    """

    sparse: float = 1.0

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        c, generator = self.config, np.random.default_rng(self.seed)
        pixels = (self.images, *c.output_size(self.height, self.width))

        def some(values: np.ndarray, share: float, other: float) -> np.ndarray:
            return np.where(generator.random(values.shape) < share, values, other)

        def odd(bits: int, shape: tuple[int, ...]) -> np.ndarray:
            return generator.integers(-(2**bits) // 2, 2**bits // 2, shape) * 2.0 + 1

        x = odd(8, (self.images, self.height, self.width, c.in_channels))
        grad_y = odd(2, (*pixels, c.out_channels))
        shape = (*pixels, c.mask_channels, 2)
        offset = generator.integers(-6, 7, shape) / 2.0
        offset = some(offset, 0.8, np.nan)
        finer = odd(8, shape) / 64
        offset = np.where(np.isnan(offset), finer, offset)
        if self.sparse < 1:
            # Small images, so that the few products of a dot have few more bits than a result.
            x = odd(2, x.shape) if self.kernel != "forward" else x
            sign = generator.choice([-1.0, 1.0], x.shape)
            x = np.where(generator.random(x.shape) < 0.75, x, sign * TINY)
            grad_y = some(grad_y, self.sparse, 0.0)
            sign = generator.choice([-1.0, 1.0], shape)
            offset = np.where(generator.random(shape) < 0.85, offset, sign * TINY)
        if self.strange:
            offset, x = self._strange(generator, offset, x)
        weight = (c.groups, c.out_channels_per_group, c.taps, c.in_channels_per_group)
        return {
            "x": x,
            "offset": offset.reshape(*pixels, c.offset_channels),
            "weight": odd(2, weight),
            "mask": generator.choice([0.5, 1.0, 1.5, 2.0], (*pixels, c.mask_channels)),
            "bias": odd(8, (c.out_channels,)),
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

    @staticmethod
    def _rounded(exact: np.ndarray) -> np.ndarray:
        single = exact.astype(np.float32)
        np.testing.assert_allclose(single, exact, rtol=2.0**-24)
        return single.astype(ml_dtypes.bfloat16).astype(np.float32)

    @staticmethod
    def _assert_equal(result: np.ndarray, expected: np.ndarray) -> None:
        # What is left where all else is 0 depends on the order of the sum.
        result, expected = (np.where(np.abs(v) < 2.0**-30, 0, v) for v in (result, expected))
        np.testing.assert_array_equal(result, expected)


def check(*probes: Probe) -> Callable[[str], None]:
    """A function that raises if a text does not solve one of the problems; all have one kernel."""
    assert len({probe.text for probe in probes}) == 1

    def notices(text: str) -> None:
        for number, probe in enumerate(probes):
            probe.run(text, schedule=number or None)

    return notices
