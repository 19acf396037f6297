"""The matrix products that are timed: operands, work, and the figures that are wanted."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

import oxijax
import ptx
from gpu_suite.layers import Work
from oxijax.testing import GemmCase
from ptx.kernels.gemm import choose
from ptx.kernels.gemm.catalog import SHAPES

__all__ = ["DTYPES", "gemm", "is_narrow", "operands", "products", "strategy", "wanted", "work"]

DTYPES = {"bfloat16": ptx.bf16, "float64": ptx.f64, "float32": ptx.f32}
_NARROW = 64
_STREAMED = ("1M-64-64", "16K-16K-8", "1M-32-256")  # that a kernel should do as fast as a copy
_SHALLOW = 32
# Of each strategy one, and sizes that leave it its strategy.
_DRY_RUN = ("16K-16K-8", "1M-63-63", "64-64-4M")
_DRY_RUN_ROWS, _DRY_RUN_DEPTH = 40, 1024


def products(tiny: bool) -> list[GemmCase]:
    """The products; tiny ones are some, with fewer rows and columns, and less deep."""
    if not tiny:
        return [GemmCase(name, *sizes) for name, sizes in SHAPES.items()]
    some = {name: SHAPES[name] for name in _DRY_RUN}
    return [
        GemmCase(name, min(m, _DRY_RUN_ROWS), min(n, _DRY_RUN_ROWS), min(k, _DRY_RUN_DEPTH))
        for name, (m, n, k) in some.items()
    ]


def strategy(case: GemmCase, dtype: str) -> str:
    """The kernel's strategy for a product: that of "auto", wherever it takes a kernel."""
    return choose(case.m, case.n, case.k, float_type=DTYPES[dtype]).strategy


def is_narrow(case: GemmCase) -> bool:
    """Whether too few rows, columns or products to a sum keep tensor cores busy."""
    return min(case.m, case.n, case.k) <= _NARROW


def gemm(case: GemmCase) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """`oxijax.gemm` of (a, b) with its strategy named, so that no GPU hands it to XLA."""
    return lambda a, b: oxijax.gemm(a, b, strategy=strategy(case, a.dtype.name))


def operands(case: GemmCase, dtype: str, seed: jax.Array) -> tuple[jax.Array, ...]:
    """A [M, K] and b [K, N], of normal values; the product's are normal too."""
    shapes = (case.m, case.k), (case.k, case.n)
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    a, b = (jax.random.normal(*one, dtype=jnp.float32) for one in zip(keys, shapes, strict=True))
    return (a * case.k**-0.5).astype(dtype), b.astype(dtype)


def work(case: GemmCase, operation: str, dtype: str) -> Work:
    """What the product has to do; there is one operation."""
    elements = case.m * case.k + case.k * case.n + case.m * case.n
    return Work(2 * case.multiply_adds, elements * jnp.dtype(dtype).itemsize)


def wanted(case: GemmCase, dtype: str) -> dict[str, float]:
    """The least values of a comparison's figures: "ratio" to XLA, "of_floor" of a copy's rate."""
    figures = {}
    misaligned = any(size % 2 for size in (case.m, case.n, case.k))
    if misaligned or dtype == "float64" or case.k <= _SHALLOW:
        figures["ratio"] = 1.0
    if dtype == "bfloat16" and case.name in _STREAMED:
        figures["of_floor"] = 0.8
    return figures
