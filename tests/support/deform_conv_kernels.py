"""Calls of any kernel of a deformable convolution, in any type, with what they should compute."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ptx.emulator import Report
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER, list_sizes
from ptx.testing.call import bytes_stored
from support.deform_conv_problem import KERNELS, Problem

__all__ = ["KERNELS", "Call"]

# Relative Frobenius norms.
TOLERANCES = {"f64": 1e-13, "f32-exact": 2e-6, "f32": 1e-3, "f16": 1e-3, "bf16": 8e-3}
ROUNDING = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}  # of a result


@dataclasses.dataclass(frozen=True)
class Call(Problem):
    """A call of one of `KERNELS`, in any type.

    The operands are exact in every type, and the results are compared with float64's.
    """

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        operands = super().operands
        return self._crowded(operands) if self.kernel == "backward_input_gather" else operands

    @property
    def _operands(self) -> Mapping[str, np.ndarray]:
        lists = self._lists() if self.kernel == "backward_input_gather" else {}
        return {**super()._operands, **lists}

    @property
    def sizes(self) -> dict[str, int]:
        sizes = super().sizes
        if self.kernel != "backward_input_gather":
            return sizes
        return {**sizes, **list_sizes(sizes)}

    @functools.cached_property
    def expected(self) -> list[np.ndarray]:
        """The results in float64; those of `backward_weight` are sums over all parts."""
        c, o = self.config, self.operands
        grad_y = o["grad_y"].reshape(*o["grad_y"].shape[:3], c.groups, -1)
        gcol = np.einsum("npqgo,goti->npqtgi", grad_y, o["weight"])
        gcol = gcol.reshape(*gcol.shape[:4], c.in_channels)
        _, _, corners = self._samples
        weights = self._spread(self._corner_weights())
        sampled = (weights * corners).sum(0)
        sampled = sampled.reshape(*sampled.shape[:4], c.groups, -1)
        if self.kernel == "forward":
            y = np.einsum("npqtgi,goti->npqgo", sampled, o["weight"])
            return [y.reshape(*y.shape[:3], -1) + (o["bias"] if c.use_bias else 0.0)]
        if self.kernel == "backward_weight":
            gradient = np.einsum("npqtgi,npqgo->tigo", sampled, grad_y)
            return [gradient.reshape(c.taps, c.in_channels_per_group, -1)]
        if self.kernel != "backward_offset":
            gradient = np.zeros((o["x"].size // c.in_channels + 1, c.in_channels))
            np.add.at(gradient, (self._places(), np.arange(c.in_channels)), weights * gcol)
            return [gradient[1:].reshape(o["x"].shape)]
        return self._backward_offset()

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

    @staticmethod
    def _rounded(exact: np.ndarray) -> np.ndarray:
        return exact  # results are compared within a tolerance

    def _corner_weights(self) -> np.ndarray:
        """[4, N, P, Q, OG, T], with the mask."""
        ly, lx, _ = self._samples
        hy, hx = 1 - ly, 1 - lx
        return np.stack([hy * hx, hy * lx, ly * hx, ly * lx]) * self._mask

    def _spread(self, per_group: np.ndarray) -> np.ndarray:
        """[..., OG, T] as [..., T, C]."""
        return np.repeat(per_group.swapaxes(-1, -2), self.config.channels_per_offset_group, -1)

    def _places(self) -> np.ndarray:
        """Pixels of all images from 1 on that corners read, [4, N, P, Q, T, C]; 0 for none."""
        numbered = dataclasses.replace(self)
        x = self.operands["x"]
        number = np.arange(1.0, x.size // x.shape[-1] + 1).reshape(*x.shape[:3], 1)
        numbered.__dict__["operands"] = {**self.operands, "x": np.broadcast_to(number, x.shape)}
        return numbered._samples[2].astype(int)

    def _crowded(self, operands: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The same, but in all images save one all samples of a tap lie in one cell."""
        c, offset = self.config, operands["offset"].copy()
        images, p, q, _ = offset.shape
        fraction = offset % 1
        tap_y, tap_x = np.divmod(np.arange(c.taps), c.kernel_w)
        rows, columns = np.ogrid[:p, :q]
        y = (rows * c.stride_h - c.pad_h)[..., None] + tap_y * c.dilation_h
        x = (columns * c.stride_w - c.pad_w)[..., None] + tap_x * c.dilation_w
        to = np.stack(np.broadcast_arrays(-y, -x), axis=-1)
        to = np.broadcast_to(to.reshape(p, q, 1, -1), (p, q, c.offset_groups, 2 * c.taps))
        offset[:-1] = fraction[:-1] + to.reshape(p, q, -1)
        assert images == 1 or (np.floor(offset[:-1]) == to.reshape(p, q, -1)).all()
        return {**operands, "offset": offset}

    def _lists(self) -> Mapping[str, np.ndarray]:
        """The samples in each cell, for `backward_input_gather`."""
        c, (images, height, width, _) = self.config, self.operands["x"].shape
        border, pitch = 2 * CELL_BORDER, width + 2 * CELL_BORDER
        cell = np.zeros((), int)
        for corner, (down, right) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            place = self._places()[corner][..., :: c.channels_per_offset_group]
            row, column = np.divmod(place - 1, width)
            image, row = np.divmod(row, height)
            at = (image * (height + border) + row - down + CELL_BORDER) * pitch
            cell = np.where(place > 0, at + column - right + CELL_BORDER, cell)
        cell = cell.reshape(-1, c.taps, c.offset_groups).transpose(2, 1, 0)  # [OG, T, samples]
        order = np.argsort(cell, axis=-1, kind="stable")
        numbers = np.arange(images * (height + border) * pitch + 1)
        starts = [np.searchsorted(np.sort(row), numbers) for row in cell.reshape(-1, cell.shape[2])]
        starts = np.reshape(starts, (*cell.shape[:2], -1))
        weights = self._corner_weights().reshape(4, -1, c.offset_groups, c.taps)
        weights = np.take_along_axis(weights.transpose(2, 3, 1, 0), order[..., None], axis=2)
        return {"starts": starts, "order": order, "corner_weights": weights}
