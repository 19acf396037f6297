"""Operands for which a broken kernel of a convolution gives itself away."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptx.emulator import Report
from ptx.isa.dtypes import bf16
from ptx.kernels.conv import ConvConfig
from support.conv_kernels import ConvCall, assert_written_once

__all__ = ["PROBES"]

TINY = 2.0**-18  # beside integers up to 2^5 it fits into 24 bits, beside larger ones it is rounded


@dataclasses.dataclass(frozen=True)
class Probe(ConvCall):
    """A call with less regular operands; its results still are exact, but for their rounding.

    Operands have 8 significant bits, so that what is read, or written, in another's place is seen.

    Attributes:
      strange: elements of images, of grad_y and forward of weights are infinite, the first and the
        last ones among them: what is beyond the end of something and multiplied by 0 shows.
      bare: most of the images is 0, so that anything added shows.
      ties: most of the images is 0 and some of it tiny, so that forward with a bias many results
        lie just beside the middle between two neighbours, and the last of 24 bits of a sum decides.
    """

    strange: bool = False
    bare: bool = False
    ties: bool = False

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        o, generator = super().operands, np.random.default_rng(self.seed)

        def odd(bits: int, shape: tuple[int, ...]) -> np.ndarray:
            return generator.integers(-(2**bits) // 2, 2**bits // 2, shape) * 2.0 + 1

        x, weight, grad_y = (odd(8, o[name].shape) for name in ("x", "weight", "grad_y"))
        if self.kernel == "forward":
            weight = odd(2, weight.shape)
        else:
            grad_y = odd(2, grad_y.shape)
        bias = odd(8, o["bias"].shape)
        if self.ties:
            terms = self.config.taps * self.config.in_channels_per_group
            number = generator.random(x.shape) * terms
            x = np.where(number < 20, odd(1, x.shape), 0.0)
            x = np.where(number < 4, x * TINY, x)
            bias = 384 + odd(6, bias.shape) + 1
        if self.bare:
            x[:, :, x.shape[2] // 4 : -x.shape[2] // 4] = 0.0
        if self.strange:
            x, grad_y = self._strange(generator, x), self._strange(generator, grad_y)
            if self.kernel == "forward":
                self._make_strange(weight)
        return {"x": x, "weight": weight, "bias": bias, "grad_y": grad_y}

    @staticmethod
    def _make_strange(weight: np.ndarray) -> None:
        """Infinite weights of single channels: 0 times them is NaN, and the least number is not."""
        _, columns, _, channels = weight.shape
        for column in range(min(8, columns)):
            weight[:, column, -(column // 4), 2 * column % 8 % channels] = np.inf
        weight[:, columns // 2, 0, 0] = weight[:, -1, -1, -1] = np.inf

    @staticmethod
    def _strange(generator: np.random.Generator, images: np.ndarray) -> np.ndarray:
        """Infinite channels at the ends of images and of groups, and here and there."""
        flat = images.reshape(-1, images.shape[-1]).copy()
        places = generator.choice(len(flat), len(flat) // 12, replace=False)
        flat[places, generator.integers(flat.shape[1], size=len(places))] = -np.inf
        flat[[0, -1], [0, -1]] = np.inf
        return flat.reshape(images.shape)

    def run(self, text: str | None = None, schedule: int | None = None, **options: Any) -> Report:
        report = super().run(text, schedule, **{"step_limit": 2000, **options})
        assert_written_once(self, report, text)
        return report

    @functools.cached_property
    def expected(self) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return super().expected


def probes(kernel: str, config: ConvConfig) -> tuple[Probe, ...]:
    """What each mutant of a kernel has to solve: partial tiles, several blocks and strips."""
    config = dataclasses.replace(config, float_type=bf16, use_bias=True)
    make = functools.partial(Probe, kernel, config)
    # So large an output that the last windows have all of their taps outside, or so small.
    below = -(-(9 + config.pad_h) // config.stride_h) + 1
    beside = -(-(7 + config.pad_w) // config.stride_w) + 1
    size = (below // 2, beside // 2) if kernel == "backward_input" else (below, beside)
    # `backward_weight` has in each part more pixels than it looks up together: in the last part one
    # more, so that nearly all of a first slice is beyond the end.
    many: dict[str, Any] = {"images": 3, "height": 13, "width": 33}
    if kernel == "backward_weight":
        many = {"images": 3, "height": 13, "width": 64, "parts": 2}
    return (
        make(images=2, height=9, width=7, out_size=size, strange=True),
        # Strips of 16 columns, in a block each.
        make(images=1, height=4, width=78, out_size=(4, 76), bare=True, seed=1),
        make(**many, ties=kernel == "forward", seed=2),
    )


# Operands that are streamed or in tiles, windows with and without a mask of their taps, blocks that
# have all of their columns or not, and several groups.
_CONFIGS = {
    "forward-streamed": ConvConfig(128, 48, 2, 3, 2, 1, 1, 2, 1, 2, groups=2),
    "forward-streamed-compared": ConvConfig(64, 64, 3, 11, 1, 1, 1, 5, groups=2),
    "forward-tiled": ConvConfig(24, 56, 3, 2, 1, 2, 1, 1, 2, 1, groups=2),
    "forward-tiled-compared": ConvConfig(10, 30, 7, 5, 2, 1, 3, 2, groups=2),
    "backward_input-streamed": ConvConfig(48, 128, 3, 2, 2, 1, 0, 1, 1, 2, groups=2),
    "backward_input-tiled": ConvConfig(56, 40, 2, 3, 1, 2, 1, 0, 2, 1, groups=2),
    "backward_weight": ConvConfig(24, 56, 3, 2, 1, 2, 1, 1, 2, 1, groups=2),
}
PROBES = {name: probes(name.split("-")[0], config) for name, config in _CONFIGS.items()}
