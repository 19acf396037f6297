"""Calls of any kernel of a deformable convolution, in any type, with what they should compute."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptx.definition import KernelDefinition
from ptx.emulator import Report
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    DeformConvConfig,
    backward_weight_parts,
)
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER, list_sizes
from ptx.testing.call import Outcome, bytes_stored
from support.emulated_calls import EmulatedCall

__all__ = ["KERNELS", "DeformConvCall"]

KERNELS: dict[str, KernelDefinition[DeformConvConfig]] = {
    "forward": FORWARD,
    "backward_offset": BACKWARD_OFFSET,
    "backward_input": BACKWARD_INPUT,
    "backward_input_gather": BACKWARD_INPUT_GATHER,
    "backward_weight": BACKWARD_WEIGHT,
}
# Relative Frobenius norms.
TOLERANCES = {"f64": 1e-13, "f32-exact": 2e-6, "f32": 1e-3, "f16": 1e-3, "bf16": 8e-3}
ROUNDING = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}  # of a result

SUM_SCALE = 8.0  # of lists in float16


@dataclasses.dataclass(frozen=True)
class DeformConvCall(EmulatedCall):
    """A call of one of `KERNELS`, in any type.

    Operands are small integers and fractions, exact in every type; the results are compared with
    float64's.

    Attributes besides those of `EmulatedCall`:
      images: how many.
      height, width: of an image.
      taps_per_block: for a launch with other parts of the taps than it would have.
    """

    definitions = KERNELS

    config: DeformConvConfig
    images: int = 4
    height: int = 4
    width: int = 5
    taps_per_block: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        n, h, w, (p, q) = (
            *(self.images, self.height, self.width),
            self.config.output_size(self.height, self.width),
        )
        sizes = {"n": n, "h": h, "w": w, "p": p, "q": q}
        sizes["s"] = backward_weight_parts(self.config, n * p * q)
        return {**sizes, **(list_sizes(sizes) if self.gathers else {})}

    @property
    def gathers(self) -> bool:
        """Whether the kernel reads lists of samples."""
        return self.kernel == "backward_input_gather"

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        """x, offset, weight [G, Co/G, T, C/G], mask, bias and grad_y, all in float64."""
        c, generator = self.config, np.random.default_rng(self.seed)
        pixels = (self.images, *c.output_size(self.height, self.width))

        def integers(*shape: int) -> np.ndarray:
            return generator.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], shape)

        x = integers(self.images, self.height, self.width, c.in_channels)
        offset = generator.integers(-24, 25, (*pixels, c.mask_channels, 2)) / 8
        offset = offset.reshape(*pixels, c.offset_channels)
        return {
            "x": x,
            "offset": self._crowded(offset) if self.gathers else offset,
            "weight": integers(c.groups, c.out_channels_per_group, c.taps, c.in_channels_per_group),
            "mask": generator.choice([0.5, 1.0, 1.5, 2.0], (*pixels, c.mask_channels)),
            "bias": integers(c.out_channels),
            "grad_y": integers(*pixels, c.out_channels),
        }

    @property
    def every_operand(self) -> Mapping[str, np.ndarray]:
        c, o = self.config, self.operands
        weight = o["weight"].reshape(c.out_channels, c.kernel_h, c.kernel_w, -1)
        weight, zeros = weight.transpose(1, 2, 3, 0), np.zeros(o["x"].shape)
        return {**o, "weight": weight, "zeros": zeros, **(self._lists() if self.gathers else {})}

    def outcome(self, operands: Mapping[str, np.ndarray] | None = None, **options: Any) -> Outcome:
        if (taps := self.taps_per_block) is not None:
            parts = -(-self.config.taps // taps)
            options["values"] = {"taps_per_block": taps}
            options["grid"] = lambda grid: (*grid[:2], parts)
        return super().outcome(operands, **options)

    @functools.cached_property
    def expected(self) -> list[np.ndarray]:
        """The results in float64; those of `backward_weight` are sums over all parts."""
        c, o = self.config, self.operands
        grad_y = o["grad_y"].reshape(*o["grad_y"].shape[:3], c.groups, -1)
        gcol = np.einsum("npqgo,goti->npqtgi", grad_y, o["weight"])
        gcol = gcol.reshape(*gcol.shape[:4], c.in_channels)
        if self.kernel == "backward_offset":
            return self._offset_gradients(gcol)
        _, _, corners = self._samples
        weights = self._spread(self._corner_weights())
        if self.kernel.startswith("backward_input"):
            gradient = np.zeros((o["x"].size // c.in_channels + 1, c.in_channels))
            np.add.at(gradient, (self._pixels_read(), np.arange(c.in_channels)), weights * gcol)
            return [gradient[1:].reshape(o["x"].shape)]
        sampled = self._as_multiplied((weights * corners).sum(0))
        sampled = sampled.reshape(*sampled.shape[:4], c.groups, -1)
        if self.kernel == "forward":
            y = np.einsum("npqtgi,goti->npqgo", sampled, o["weight"])
            return [y.reshape(*y.shape[:3], -1) + (o["bias"] if c.use_bias else 0.0)]
        gradient = np.einsum("npqtgi,npqgo->tigo", sampled, grad_y)
        return [gradient.reshape(c.taps, c.in_channels_per_group, -1)]

    @property
    def tolerance(self) -> float:
        name = self.config.float_type.name
        return TOLERANCES["f32-exact" if name == "f32" and self.config.exact else name]

    def run(
        self,
        text: str | None = None,
        schedule: int | None = None,
        step_limit: int = 1_000_000,
    ) -> Report:
        """Launches the kernel, or a text in its place, and compares the results.

        Results hold nothing before; each byte is written, and but for sums in memory only once.
        """
        outcome = self.outcome(text=text, schedule=schedule, step_limit=step_limit)
        self.compare(list(outcome.results.values()))
        assert outcome.report is not None
        if self.kernel != "backward_input":
            size = sum(result.nbytes for result in outcome.results.values())
            assert bytes_stored(text or self.text, outcome.report) == size
        return outcome.report

    def compare(
        self, results: Sequence[np.ndarray], expectations: Sequence[np.ndarray] | None = None
    ) -> None:
        """Asserts that results are what is expected, within the type's tolerance.

        Args:
          results: of a launch, those of `backward_weight` by parts.
          expectations: what is expected; None for all that `expected` has.
        """
        for result, expected in zip(results, expectations or self.expected, strict=True):
            value = result.astype(np.float64)
            if self.kernel == "backward_weight":
                value = value.sum(0)
            value = value.reshape(expected.shape)
            error = np.linalg.norm(value - expected) / np.linalg.norm(expected)
            tolerance = max(self.tolerance, ROUNDING[result.dtype.name])
            assert error <= tolerance, f"relative error {error:.3g} > {tolerance:.3g}"

    def _as_multiplied(self, sampled: np.ndarray) -> np.ndarray:
        """The sampled values as the matrix product has them."""
        return sampled

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

    def _corner_weights(self) -> np.ndarray:
        """[4, N, P, Q, OG, T], with the mask."""
        ly, lx, _ = self._samples
        hy, hx = 1 - ly, 1 - lx
        return np.stack([hy * hx, hy * lx, ly * hx, ly * lx]) * self._mask

    def _spread(self, per_group: np.ndarray) -> np.ndarray:
        """[..., OG, T] as [..., T, C]."""
        return np.repeat(per_group.swapaxes(-1, -2), self.config.channels_per_offset_group, -1)

    def _pixels_read(self) -> np.ndarray:
        """Pixels of all images from 1 on that corners read, [4, N, P, Q, T, C]; 0 for none."""
        numbered = dataclasses.replace(self)
        x = self.operands["x"]
        number = np.arange(1.0, x.size // x.shape[-1] + 1).reshape(*x.shape[:3], 1)
        numbered.__dict__["operands"] = {**self.operands, "x": np.broadcast_to(number, x.shape)}
        return numbered._samples[2].astype(int)

    def _offset_gradients(self, gcol: np.ndarray) -> list[np.ndarray]:
        """The gradients to offset, and to mask if there is one, from that to the samples."""
        c, m = self.config, self._mask
        ly, lx, corners = self._samples
        shape = (*gcol.shape[:4], c.offset_groups, -1)
        d1, d2, d3, d4 = (
            (gcol * corner).reshape(shape).sum(-1).swapaxes(-1, -2) for corner in corners
        )
        hy, hx = 1 - ly, 1 - lx
        along_y = m * (hx * (d3 - d1) + lx * (d4 - d2))
        along_x = m * (hy * (d2 - d1) + ly * (d4 - d3))
        of_mask = hy * (hx * d1 + lx * d2) + ly * (hx * d3 + lx * d4)
        pixels = gcol.shape[:3]
        gradients = [np.stack([along_y, along_x], -1).reshape(*pixels, -1)]
        return [*gradients, of_mask.reshape(*pixels, -1)] if c.use_modulation else gradients

    def _crowded(self, offset: np.ndarray) -> np.ndarray:
        """The same, but in all images save one all samples of a tap lie in one of three cells.

        A thread has several rows, whose further samples are read by instructions of their own.
        """
        c, offset = self.config, offset.copy()
        images, p, q, _ = offset.shape
        fraction = offset % 1
        tap_y, tap_x = np.divmod(np.arange(c.taps), c.kernel_w)
        rows, columns = np.ogrid[:p, :q]
        last_cell = max(0, self.height - 2)
        y = (rows * c.stride_h - c.pad_h)[..., None] + tap_y * c.dilation_h
        y = y - (rows * 3 // p * last_cell // 2)[..., None]
        x = (columns * c.stride_w - c.pad_w)[..., None] + tap_x * c.dilation_w
        to = np.stack(np.broadcast_arrays(-y, -x), axis=-1)
        to = np.broadcast_to(to.reshape(p, q, 1, -1), (p, q, c.offset_groups, 2 * c.taps))
        offset[:-1] = fraction[:-1] + to.reshape(p, q, -1)
        assert images == 1 or (np.floor(offset[:-1]) == to.reshape(p, q, -1)).all()
        return offset

    def _lists(self) -> Mapping[str, np.ndarray]:
        """The samples in each cell, for `backward_input_gather`."""
        c, (images, height, width, _) = self.config, self.operands["x"].shape
        border, pitch = 2 * CELL_BORDER, width + 2 * CELL_BORDER
        cell = np.zeros((), int)
        for corner, (down, right) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            pixel = self._pixels_read()[corner][..., :: c.channels_per_offset_group]
            row, column = np.divmod(pixel - 1, width)
            image, row = np.divmod(row, height)
            at = (image * (height + border) + row - down + CELL_BORDER) * pitch
            cell = np.where(pixel > 0, at + column - right + CELL_BORDER, cell)
        cell = cell.reshape(-1, c.taps, c.offset_groups).transpose(2, 1, 0)  # [OG, T, samples]
        order = np.argsort(cell, axis=-1, kind="stable")
        numbers = np.arange(images * (height + border) * pitch + 1)
        starts = [np.searchsorted(np.sort(row), numbers) for row in cell.reshape(-1, cell.shape[2])]
        starts = np.reshape(starts, (*cell.shape[:2], -1))
        weights = self._corner_weights().reshape(4, -1, c.offset_groups, c.taps)
        weights = np.take_along_axis(weights.transpose(2, 3, 1, 0), order[..., None], axis=2)
        if not c.sums_fit:
            weights = weights / SUM_SCALE
        scale = np.full(1, SUM_SCALE)
        return {"starts": starts, "order": order, "corner_weights": weights, "sum_scale": scale}
