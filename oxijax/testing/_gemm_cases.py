"""Named matrix products, each small enough for an emulator."""

import dataclasses
import math
import zlib
from typing import Any

import numpy as np

__all__ = ["GEMM_CASES", "GemmCase"]


@dataclasses.dataclass(frozen=True)
class GemmCase:
    """A matrix product alpha * op(a) @ op(b) + beta * c.

    Attributes:
      name: what the product is known by in test names and tables.
      m, n, k: rows and columns of the result, and what is summed over.
      batch_a, batch_b: leading dimensions of a and b.
      batch_c: the batch of c; None if there is no c.
      alpha, beta: factors.
      traced: whether they are arrays, which may be differentiated, or numbers.
    """

    name: str
    m: int
    n: int
    k: int
    batch_a: tuple[int, ...] = ()
    batch_b: tuple[int, ...] = ()
    batch_c: tuple[int, ...] | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    traced: bool = False
    strategy: str = "auto"

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `oxijax.gemm`, but for alpha and beta that are arrays."""
        factors = {} if self.traced else {"alpha": self.alpha, "beta": self.beta}
        layout = {"transpose_a": self.transpose_a, "transpose_b": self.transpose_b}
        return {**layout, **factors, "strategy": self.strategy}

    @property
    def batch(self) -> tuple[int, ...]:
        """Leading dimensions of the result."""
        return np.broadcast_shapes(self.batch_a, self.batch_b, self.batch_c or ())

    @property
    def multiply_adds(self) -> int:
        return math.prod(self.batch) * self.m * self.n * self.k

    def operands(self) -> dict[str, np.ndarray]:
        """A, b, c if there is one, alpha and beta if traced, in float32: the same at every call."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        a = rng.standard_normal((*self.batch_a, self.m, self.k)) / math.sqrt(max(self.k, 1))
        b = rng.standard_normal((*self.batch_b, self.k, self.n))
        operands = {
            "a": a.swapaxes(-1, -2) if self.transpose_a else a,
            "b": b.swapaxes(-1, -2) if self.transpose_b else b,
        }
        if self.batch_c is not None:
            operands["c"] = rng.standard_normal((*self.batch_c, self.m, self.n))
        if self.traced:
            operands["alpha"] = np.asarray(self.alpha)
        if self.traced and self.batch_c is not None:
            operands["beta"] = np.asarray(self.beta)
        return {name: np.array(v, np.float32, order="C") for name, v in operands.items()}

    def grad_y(self) -> np.ndarray:
        """A gradient with respect to the result, in float32."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()) + 1)
        return rng.standard_normal((*self.batch, self.m, self.n), dtype=np.float32)


_TA: dict[str, Any] = {"transpose_a": True}
_TB: dict[str, Any] = {"transpose_b": True}
_BOTH: dict[str, Any] = {**_TA, **_TB}
_PLUS_C: dict[str, Any] = {"batch_c": (), "beta": 1.0}
_TRACED: dict[str, Any] = {"batch_c": (), "alpha": 0.75, "beta": -1.5, "traced": True}

_CASES = (
    # Layouts, with either operand as the larger one.
    GemmCase("plain", 40, 12, 20),
    GemmCase("a-transposed", 40, 12, 20, **_TA),
    GemmCase("b-transposed", 40, 12, 20, **_TB),
    GemmCase("both-transposed", 40, 12, 20, **_BOTH),
    GemmCase("wide", 12, 40, 20),
    GemmCase("wide-a-transposed", 12, 40, 20, **_TA),
    GemmCase("wide-b-transposed", 12, 40, 20, **_TB),
    GemmCase("wide-both-transposed", 12, 40, 20, **_BOTH),
    # alpha, beta and c.
    GemmCase("alpha", 33, 8, 16, alpha=-0.5),
    GemmCase("alpha-0", 17, 8, 16, alpha=0.0, batch_c=(), beta=2.0),
    GemmCase("alpha-traced", 33, 8, 16, alpha=-0.5, traced=True),
    GemmCase("plus-c", 33, 8, 16, **_PLUS_C),
    GemmCase("plus-c-wide", 8, 33, 16, **_PLUS_C),
    GemmCase("beta", 33, 8, 16, batch_c=(), alpha=2.0, beta=0.25),
    GemmCase("beta-0", 33, 8, 16, batch_c=(), alpha=3.0),
    GemmCase("traced", 33, 8, 16, **_TRACED),
    GemmCase("traced-wide", 8, 33, 16, **_BOTH, **_TRACED),
    GemmCase("traced-beta-0", 33, 8, 16, batch_c=(), alpha=2.0, beta=0.0, traced=True),
    # Sizes.
    GemmCase("one", 1, 1, 1),
    GemmCase("row", 1, 70, 24, **_PLUS_C),
    GemmCase("column", 70, 1, 24, **_TRACED),
    GemmCase("inner", 1, 1, 200),
    GemmCase("outer", 37, 29, 1),
    GemmCase("odd", 51, 7, 13, **_TRACED),
    GemmCase("odd-both-transposed", 51, 7, 13, **_BOTH, **_PLUS_C),
    GemmCase("odd-wide", 7, 51, 13, **_TB),
    GemmCase("tall", 300, 8, 8),
    GemmCase("square", 64, 64, 32),
    GemmCase("columns-130", 140, 130, 16, alpha=2.0),
    GemmCase("deep", 24, 16, 1100, **_TRACED),
    GemmCase("deep-a-transposed", 16, 24, 1025, **_TA, **_PLUS_C),
    GemmCase("deep-outer", 16, 24, 2048, **_TA),
    # Strategies.
    GemmCase("shallow", 70, 24, 32, strategy="shallow_k", **_TRACED),
    GemmCase("shallow-wide", 24, 70, 31, strategy="shallow_k", **_BOTH),
    GemmCase("persistent", 70, 24, 100, strategy="cache_persistent", **_TRACED),
    GemmCase("persistent-wide", 24, 70, 72, strategy="cache_persistent", **_TA),
    GemmCase("persistent-short-k", 70, 24, 8, strategy="cache_persistent", **_TB),
    GemmCase("split", 70, 24, 100, strategy="warp_parallel", **_TRACED),
    GemmCase("split-wide", 24, 70, 72, strategy="warp_parallel", **_BOTH, alpha=2.0),
    GemmCase("split-short-k", 30, 9, 8, strategy="warp_parallel", **_TA, **_PLUS_C),
    # Batches.
    GemmCase("batch", 20, 9, 16, (3,), (3,), (3,), alpha=0.75, beta=-1.5, traced=True),
    GemmCase("batch-wide", 9, 20, 16, (3,), (3,), (), beta=1.0, **_BOTH),
    GemmCase("batch-2x3", 12, 8, 8, (2, 3), (2, 3)),
    GemmCase("b-shared", 20, 9, 16, (3,), (), (3,), alpha=2.0, beta=0.5),
    GemmCase("b-shared-a-transposed", 20, 9, 16, (3,), (), (3,), beta=1.0, **_TA),
    GemmCase("b-shared-2x2", 7, 8, 8, (2, 2), (), (), alpha=0.75, beta=-1.5, traced=True),
    GemmCase("a-shared", 20, 9, 16, (), (3,), (), beta=1.0),
    GemmCase("a-shared-both-transposed", 9, 20, 16, (), (3,), **_BOTH),
    GemmCase("heads", 12, 8, 8, (2, 3), (3,), (2, 1), beta=1.0),
    GemmCase("heads-transposed", 12, 8, 8, (2, 3), (2, 1), **_BOTH),
    GemmCase("only-c", 20, 9, 16, (), (), (3,), alpha=0.75, beta=-1.5, traced=True),
    GemmCase("batch-split", 9, 8, 96, (2,), (2,), (2,), beta=1.0, strategy="warp_parallel"),
    GemmCase("batch-split-shared", 8, 9, 96, (2,), strategy="warp_parallel", **_BOTH),
    GemmCase("batch-of-1", 20, 9, 16, (1, 1), (1,), (1, 1), beta=1.0),
)

GEMM_CASES = {case.name: case for case in _CASES}
