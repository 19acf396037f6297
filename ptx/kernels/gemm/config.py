"""Descriptions of matrix products, and of the kernels that compute them."""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.operator import Description
from ptx.tile.vectors import accumulator_of, vector_width

__all__ = [
    "LARGEST",
    "SHALLOW_DEPTH",
    "STRATEGIES",
    "GemmConfig",
    "MatrixProduct",
    "largest_resident_depth",
]

STRATEGIES = ("shallow_k", "cache_persistent", "warp_parallel")
SHALLOW_DEPTH = 32  # the fragments of so much of K, and the sums, fit the registers of a warp
LARGEST = 2**31  # what counts rows and columns has 32 bits, and a tile is added
_RESIDENT_BYTES = 32 * 1024  # of the small operand's narrowest tile: it fits any GPU


@dataclasses.dataclass(frozen=True)
class MatrixProduct(Description):
    """Products alpha * op(a) @ op(b) + beta * c, but for their number and sizes.

    Dimensions of arrays are called: products g, of which each has m rows, n columns, and a depth of
    k.

    Attributes:
      transpose_a: a is [K, M], not [M, K].
      transpose_b: b is [N, K], not [K, N].
      strategy: one of `STRATEGIES`, or "auto".
      float_type, exact, use_alpha, use_c, use_beta: as in `GemmConfig`.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    strategy: str = "auto"
    float_type: DType = f32
    exact: bool = False
    use_alpha: bool = False
    use_c: bool = False
    use_beta: bool = False


@dataclasses.dataclass(frozen=True)
class GemmConfig(Description):
    """The kernel of a product, which is chosen by its sizes: `ptx.kernels.gemm.plan.choose`.

    A large operand is streamed and a small one is kept. The result has a row for each row of the
    large operand and a column for each of the small one; `swapped` says that it is stored the other
    way round. The number of rows is known to launches only.

    Attributes:
      strategy: one of `STRATEGIES`.
      columns: the columns of the result: N, or M where swapped.
      depth: what is summed over: K.
      large_k_axis, small_k_axis: the axis of each operand, 0 or 1, that counts along K.
      swapped: the large operand is op(B), and the result is stored transposed.
      parts: the parts of K, which are summed after; None for strategies that have K in one piece.
      float_type: the type of all tensors but partial sums: f16, bf16, f32 or f64.
      exact: f32 is multiplied as f32, not rounded to TF32.
      use_alpha, use_c, use_beta: what there is of alpha, c and beta; without beta c is added as it
        is. Partial sums have none of them.
    """

    strategy: str
    columns: int
    depth: int
    large_k_axis: int = 1
    small_k_axis: int = 0
    swapped: bool = False
    parts: int | None = None
    float_type: DType = f32
    exact: bool = False
    use_alpha: bool = False
    use_c: bool = False
    use_beta: bool = False

    @property
    def known_sizes(self) -> dict[str, int]:
        parts = {} if self.parts is None else {"s": self.parts}
        return {"n": self.columns, "k": self.depth, **parts}

    @property
    def sum_type(self) -> DType:
        """The type that products are added up in."""
        return accumulator_of(self.float_type)

    def large_width(self, rows: int) -> int:
        """Neighbouring elements of the large operand, of `rows` rows, that are read together."""
        return vector_width(self.float_type, self.depth if self.large_k_axis == 1 else rows)

    @property
    def small_width(self) -> int:
        """Neighbouring elements of the small operand that are read together."""
        extent = self.depth if self.small_k_axis == 1 else self.columns
        return vector_width(self.float_type, extent)

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {STRATEGIES}, got {self.strategy!r}")
        for name in ("columns", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if max(self.columns, self.depth) >= LARGEST or self.columns * self.depth >= 2 * LARGEST:
            raise ValueError(
                "columns and depth must be below 2**31, and their product below 2**32, got "
                f"{self.columns} and {self.depth}"
            )
        for name in ("large_k_axis", "small_k_axis"):
            if getattr(self, name) not in (0, 1):
                raise ValueError(f"{name} must be 0 or 1, got {getattr(self, name)}")
        if self.float_type not in (f16, bf16, f32, f64):
            raise ValueError(f"float_type must be f16, bf16, f32 or f64, got {self.float_type}")
        if self.strategy == "shallow_k" and self.depth > SHALLOW_DEPTH:
            raise ValueError(
                f"strategy 'shallow_k' has all of K in registers: depth must be at most "
                f"{SHALLOW_DEPTH}, got {self.depth}"
            )
        resident = largest_resident_depth(self.float_type)
        if self.strategy == "cache_persistent" and self.depth > resident:
            raise ValueError(
                f"strategy 'cache_persistent' has all of K in shared memory: depth must be at most "
                f"{resident} for {self.float_type}, got {self.depth}"
            )
        if (self.parts is not None) != (self.strategy == "warp_parallel"):
            raise ValueError(f"parts are for strategy 'warp_parallel', got {self.parts}")
        if self.parts is not None and self.parts < 1:
            raise ValueError(f"parts must be at least 1, got {self.parts}")
        if self.parts is not None and (self.use_alpha or self.use_c or self.use_beta):
            raise ValueError("partial sums have no alpha, c and beta: use_... must be False")
        if self.use_beta and not self.use_c:
            raise ValueError("use_beta must be False without c")


def largest_resident_depth(dtype: DType) -> int:
    """The deepest K that strategy 'cache_persistent' can have."""
    narrowest = 32 if dtype.bytes == 2 else 16
    return _RESIDENT_BYTES // (narrowest * dtype.bytes)
