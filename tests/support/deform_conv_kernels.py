"""Calls of any kernel of a deformable convolution, in any type, with what they should compute."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ptx.emulator import Buffer, Report, launch
from ptx.isa.dtypes import DType, f16, f32, f64
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import backward_weight_parts
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER
from ptx.launch import Address, Launch
from support.deform_conv_problem import Problem

__all__ = ["KERNELS", "Call", "assert_written_once", "numpy_dtype"]

KERNELS = (
    "forward", "backward_offset", "backward_input", "backward_input_gather", "backward_weight",
)  # fmt: skip
# Relative Frobenius norms.
TOLERANCES = {"f64": 1e-13, "f32-exact": 2e-6, "f32": 1e-3, "f16": 1e-3, "bf16": 8e-3}
ROUNDING = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}  # of a result
_TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def numpy_dtype(dtype: DType) -> np.dtype:
    return np.dtype(_TYPES[dtype.name])


@dataclasses.dataclass(frozen=True)
class Call(Problem):
    """A call of one of `KERNELS`; operands and results are as their launch functions say.

    The operands are exact in every type, and the results are compared with float64's.
    """

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Operands as they lie in memory, by name, in the order of the call."""
        c, o = self.config, self.operands
        dtype, offset_type = c.float_type, c.offset_type or c.float_type
        # To the device: [Co, T, C/G], or [T, C/G, Co].
        weight = o["weight"].reshape(c.out_channels, c.taps, -1)
        backward = weight.transpose(1, 2, 0)
        mask = {"mask": (o["mask"], c.mask_type or dtype)} if c.use_modulation else {}
        x, offset, grad_y = (o["x"], dtype), (o["offset"], offset_type), (o["grad_y"], dtype)
        if self.kernel == "forward":
            typed = {"x": x, "offset": offset, "weight": (weight, dtype), **mask}
            if c.use_bias:
                typed["bias"] = (o["bias"], dtype)
        elif self.kernel == "backward_offset":
            typed = {"x": x, "offset": offset, "weight": (backward, dtype), **mask}
            typed["grad_y"] = grad_y
        elif self.kernel == "backward_input":
            typed = {"offset": offset, "weight": (backward, dtype), **mask, "grad_y": grad_y}
            typed["zeros"] = (np.zeros(o["x"].shape), self._accumulator)
        elif self.kernel == "backward_weight":
            typed = {"x": x, "offset": offset, **mask, "grad_y": grad_y}
        else:
            starts, order, corner_weights = self._lists()
            wide = f32 if dtype is f16 else dtype
            typed = {"corner_weights": (corner_weights, self._accumulator)}
            typed |= {"weight": (backward, wide), "grad_y": grad_y}
            lists = {"starts": starts, "order": order}
            return {**lists, **{n: v.astype(numpy_dtype(t)) for n, (v, t) in typed.items()}}
        return {name: v.astype(numpy_dtype(t), order="C") for name, (v, t) in typed.items()}

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

    @functools.cached_property
    def result_types(self) -> list[np.dtype]:
        c = self.config
        types = {
            "forward": [c.float_type],
            "backward_offset": [c.offset_type or c.float_type],
            "backward_input": [self._accumulator],
            "backward_input_gather": [c.float_type],
            "backward_weight": [self._accumulator],
        }[self.kernel]
        if self.kernel == "backward_offset" and c.use_modulation:
            types = [*types, c.mask_type or c.float_type]
        return [numpy_dtype(t) for t in types]

    @property
    def result_shapes(self) -> list[tuple[int, ...]]:
        shapes = [e.shape for e in self.expected]
        if self.kernel == "backward_weight":
            pixels = int(np.prod(self.operands["grad_y"].shape[:3]))
            shapes = [(backward_weight_parts(self.config, pixels), *shapes[0])]
        return shapes

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

        Outputs hold nothing before, and the emulator raises if a byte of them is not written.
        """
        buffers = [Buffer(v, writable=False) for v in self.arrays.values()]
        results = [
            Buffer(np.empty(shape, dtype), initialized=False)
            for shape, dtype in zip(self.result_shapes, self.result_types, strict=True)
        ]
        if self.kernel == "backward_input":  # is added to what the zeros' memory holds
            buffers[-1] = results[0] = Buffer(self.arrays["zeros"])
        report = self.launch_with([*buffers, *results], text, schedule, step_limit)
        self.compare([r.array for r in results])
        return report

    def launch_with(
        self,
        buffers: Sequence[Buffer],
        text: str | None = None,
        schedule: int | None = None,
        step_limit: int = 1_000_000,
    ) -> Report:
        """Launches on buffers: of the operands, then of the results."""
        kernel, target = self._registered, TARGETS[self.target]
        assert kernel.launch is not None
        how = kernel.launch(self.config, target, [b.array.shape for b in buffers])
        if (taps := self.taps_per_block) is not None:
            grid = (*how.grid[:2], -(-self.config.taps // taps))
            how = Launch(grid, how.block, (*how.arguments[:-1], np.uint32(taps)))
        arguments = [buffers[a.buffer] if isinstance(a, Address) else a for a in how.arguments]
        return launch(
            text or self.text, how.grid, how.block, arguments, schedule=schedule,
            dynamic_shared=kernel.dynamic_shared(self.config, target), statistics=False,
            step_limit=step_limit,
        )  # fmt: skip

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

    @property
    def _accumulator(self) -> DType:
        return f64 if self.config.float_type is f64 else f32

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

    def _lists(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts, order and weights of the samples in each cell."""
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
        order = np.argsort(cell, axis=-1, kind="stable").astype(np.uint32)
        numbers = np.arange(images * (height + border) * pitch + 1)
        starts = [np.searchsorted(np.sort(row), numbers) for row in cell.reshape(-1, cell.shape[2])]
        starts = np.reshape(starts, (*cell.shape[:2], -1)).astype(np.uint32)
        weights = self._corner_weights().reshape(4, -1, c.offset_groups, c.taps)
        return starts, order, weights.transpose(3, 1, 2, 0)


def assert_written_once(call: Call, report: Report) -> None:
    """All stores together write as many bytes as the results have, and the launch all of them."""
    lines, written = call.text.splitlines(), 0
    for line, count in report.executed.items():
        store = re.search(r"\bst\.global(?:\.v(\d))?\.[a-z]+(\d+) ", lines[line - 1])
        if store:
            written += count * int(store[1] or 1) * int(store[2]) // 8
    sizes = zip(call.result_shapes, call.result_types, strict=True)
    assert written == sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in sizes)
