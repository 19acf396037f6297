"""Products whose every result is exact, and what runs a GEMM kernel on them."""

from __future__ import annotations

import dataclasses
import functools
import re

import ml_dtypes
import numpy as np

from ptx import emulator
from ptx.emulator import Buffer, Report
from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.isa.targets import TARGETS
from ptx.kernels.gemm import GEMM, GemmConfig, choose
from ptx.launch import BufferAddress

__all__ = ["NUMPY", "GemmProblem"]

NUMPY = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32, f64: np.float64}


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """One call of the kernel: alpha * op(a) @ op(b) + beta * c.

    Operands are odd integers, so small and few that each product and sum is exact in any order.

    Attributes:
      m, n, k: sizes.
      strategy: "auto" or one of the kernel's.
      transpose_a, transpose_b: whether a is [k, m], and b [n, k].
      batch: products.
      shared: "a" or "b" is the same in all products.
      float_type, exact: of the operands.
      alpha, beta: None where there is none; with c, beta None means 1.
      use_c: whether c is added.
      target: for which the kernel is.
      seed: the seed that the operands are drawn with.
      bits: significant bits of the operands; with few of them results are exact too.
      blocks: the blocks of a launch that has fewer than it would have; None for all.
    """

    m: int
    n: int
    k: int
    strategy: str = "auto"
    transpose_a: bool = False
    transpose_b: bool = False
    batch: int = 1
    shared: str = ""
    float_type: DType = bf16
    exact: bool = False
    alpha: float | None = None
    beta: float | None = None
    use_c: bool = False
    target: str = "sm_80"
    seed: int = 0
    bits: int = 1
    blocks: int | None = None

    @functools.cached_property
    def config(self) -> GemmConfig:
        return choose(
            self.m, self.n, self.k, batch=self.batch,
            transpose_a=self.transpose_a, transpose_b=self.transpose_b,
            float_type=self.float_type, exact=self.exact, strategy=self.strategy,
            use_alpha=self.alpha is not None, use_c=self.use_c, use_beta=self.beta is not None,
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The kernel's PTX."""
        rows = max(self.m, self.n)
        return GEMM.write(self.config, self.target, {"r": rows}).text

    @functools.cached_property
    def operands(self) -> dict[str, np.ndarray]:
        """a, b and c in float64, each [batch, rows, columns], a and b transposed if they are."""
        generator = np.random.default_rng(self.seed)

        def integers(name: str, *shape: int) -> np.ndarray:
            batch = 1 if name in self.shared else self.batch
            # Odd, so that none is half of another.
            return generator.integers(-(2**self.bits), 2**self.bits, (batch, *shape)) * 2.0 + 1

        a = integers("a", *((self.k, self.m) if self.transpose_a else (self.m, self.k)))
        b = integers("b", *((self.n, self.k) if self.transpose_b else (self.k, self.n)))
        return {"a": a, "b": b, "c": integers("c", self.m, self.n)}

    @functools.cached_property
    def expected(self) -> np.ndarray:
        """The result [batch, m, n], not rounded."""
        o = self.operands
        a = o["a"].swapaxes(1, 2) if self.transpose_a else o["a"]
        b = o["b"].swapaxes(1, 2) if self.transpose_b else o["b"]
        product = np.broadcast_to(a @ b, (self.batch, self.m, self.n))
        if self.config.parts is not None:
            return product
        result = product * (1.0 if self.alpha is None else self.alpha)
        return result + (
            0.0 if not self.use_c else o["c"] * (1.0 if self.beta is None else self.beta)
        )

    def run(self, text: str | None = None, schedule: int | None = None, **options) -> Report:
        """Launches the kernel, or a text in its place; raises if anything is wrong."""
        result, report = self.result(text, schedule, **options)
        expected = self.expected.astype(NUMPY[self.float_type]).astype(np.float64)
        width = np.dtype(NUMPY[self.float_type]).itemsize
        if self.config.parts is not None:
            expected, width = self.expected, 8 if self.float_type is f64 else 4
        np.testing.assert_array_equal(result, expected)
        lines, written = (text or self.text).splitlines(), 0
        for line, count in report.executed.items():
            if store := re.search(r"\bst\.global\S*?(?:\.v(\d))?\.[a-z]+(\d+) ", lines[line - 1]):
                written += count * int(store[1] or 1) * int(store[2]) // 8
        assert written == expected.size * (self.config.parts or 1) * width  # each element once
        return report

    def result(
        self, text: str | None = None, schedule: int | None = None, **options
    ) -> tuple[np.ndarray, Report]:
        """The result [batch, m, n] of the kernel, in float64."""
        config, target, o = self.config, TARGETS[self.target], self.operands
        element = NUMPY[self.float_type]
        wide = np.float64 if self.float_type is f64 else np.float32
        names = ["b", "a"] if config.swapped else ["a", "b"]
        shape = (self.batch, self.n, self.m) if config.swapped else (self.batch, self.m, self.n)
        buffers = [Buffer(o[name].astype(element), writable=False) for name in names]
        for value, used in ((self.alpha, config.use_alpha), (self.beta, config.use_beta)):
            if used:
                buffers.append(Buffer(np.full(1, value, wide), writable=False))
        if config.parts is not None:
            parts = (self.batch, config.parts, *shape[1:])
            result = Buffer(np.empty(parts, wide), initialized=False)
        elif config.use_c:
            result = Buffer(o["c"].astype(element))
        else:
            result = Buffer(np.empty((self.batch, self.m, self.n), element), initialized=False)
        buffers += [result] * (2 if config.use_c else 1)  # c, whose memory becomes the result's
        how = GEMM.launch(config, target, [b.array.shape for b in buffers])
        arguments = [
            buffers[v.buffer] if isinstance(v, BufferAddress) else v for v in how.arguments
        ]
        if self.blocks is not None:
            how = dataclasses.replace(how, grid=(self.batch * self.blocks, *how.grid[1:]))
            addresses = sum(isinstance(v, BufferAddress) for v in how.arguments)
            arguments[addresses + 1] = np.uint32(self.blocks)
        report = emulator.launch(
            text or self.text, how.grid, how.block, arguments, schedule=schedule,
            dynamic_shared=how.dynamic_shared, step_limit=20_000, **options,
        )  # fmt: skip
        y = result.array.astype(np.float64)
        if config.parts is not None:
            y = y.sum(axis=1)
            y = y.swapaxes(1, 2) if config.swapped else y
        return y, report
